"""Find the fastest settings of an experiment on this machine: `jsrl tune ppo_cartpole`.

Runs short trials of the real system, three minutes in all, and prints the options of the fastest settings.
They do not change what is learned. Options that you give are not tuned: `jsrl tune ppo_pong --placement inline`.
`jsrl run ppo_cartpole --tune` tunes, and runs with the result.
"""

from __future__ import annotations

import functools
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from jsrl.cli import command_line as cli
from jsrl.cli.option_help import asked_of, execute, help_of
from jsrl.fields import PositiveFinite, option, suggesting
from jsrl.tools.tuning.tune import MINUTES, spelled, tune


@suggesting
@dataclass(frozen=True)
class TuneCommand:
    """The options of `jsrl tune`."""

    tune_minutes: PositiveFinite = option(MINUTES, "time for the tuning, in minutes.")
    batch: bool = option(False, "tune the number of environments and the batch as well, which changes what is learned.")


def main(arguments: Sequence[str] | None = None) -> int:
    text = functools.partial(help_of, "jsrl tune NAME [--option value ...]", __doc__, TuneCommand())
    return execute(arguments, _tune, text, "interrupted before anything was measured.")


def _tune(args: list[str]) -> int:
    name, asked = asked_of(args, TuneCommand())
    own: TuneCommand = asked.run
    tuned = tune(asked.experiment, given=asked.given, minutes=own.tune_minutes, batch=own.batch)
    words = [*cli.without(args, ("tune-minutes", "batch")), *spelled(tuned.options)]
    print(f"  `{shlex.join(['jsrl', 'run', name, *words])}` runs it")
    return 130 if tuned.interrupted else 0
