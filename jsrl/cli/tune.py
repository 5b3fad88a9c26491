"""Find the fastest settings of an experiment on this machine: `jsrl tune ppo_cartpole`.

Runs short trials of the real system, three minutes in all, and keeps the fastest settings as the profile of later runs.
They do not change what is learned. Options that you give are not tuned: `jsrl tune ppo_pong --placement inline`.
`jsrl tune FILE.json` only prints the advice of saved measurements.
"""

from __future__ import annotations

import functools
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jsrl.cli import command_line as cli
from jsrl.cli.option_help import asked_of, execute, help_of
from jsrl.cli.report import check_folder
from jsrl.fields import PositiveFinite, option, suggesting
from jsrl.tools.tuning.advice import Measurements, advise
from jsrl.tools.tuning.profiles import load as load_file
from jsrl.tools.tuning.tune import MINUTES, tune


@suggesting
@dataclass(frozen=True)
class TuneCommand:
    """The options of `jsrl tune`."""

    tune_minutes: PositiveFinite = option(MINUTES, "time for the tuning, in minutes.")
    batch: bool = option(False, "tune the number of environments and the batch as well, which changes what is learned.")
    output: str | None = option(None, "file for the measurements (default: beside the profile).")
    trial_seconds: PositiveFinite | None = option(
        None, "seconds measured of each trial (default: from --tune-minutes)."
    )


OWN = ("tune-minutes", "batch", "output", "trial-seconds")


def command(name: str, args: Sequence[str]) -> str:
    """Return the command of a run with the options that were given: a profile is only for the same environments and batch."""
    return shlex.join(["jsrl", "run", name, *cli.without(args, OWN)])


def main(arguments: Sequence[str] | None = None) -> int:
    usage = "jsrl tune NAME [--option value ...] | FILE.json"
    text = functools.partial(help_of, usage, __doc__, TuneCommand())
    return execute(arguments, _tune, text, "interrupted before anything was measured.")


def _tune(args: list[str]) -> int:
    if len(args) == 1 and args[0].endswith(".json"):
        print(advise(load_file(Measurements, Path(args[0]))).text)
        return 0
    name, asked = asked_of(args, TuneCommand())
    own: TuneCommand = asked.run
    output = None if own.output is None else Path(own.output)
    check_folder(output, "--output")
    tuned = tune(
        asked.experiment,
        given=asked.given,
        minutes=own.tune_minutes,
        trial_seconds=own.trial_seconds,
        batch=own.batch,
        output=output,
    )
    profile = tuned.profile
    if profile is not None:
        earlier = profile.measurements != str(tuned.path)
        what = f"interrupted, so the profile of {profile.trials} trials stays" if earlier else "kept as the profile"
        print(f"  {what}: {profile.path}")
        print(f"  `{command(name, args)}` uses it from now on (with --profile none it does not)")
    return 130 if tuned.interrupted else 0
