"""Kill and stop the workers of a run at random: `jsrl dev chaos ppo_cartpole --storm-s 60 [options of jsrl run]`."""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields

from jsrl.cli import command_line as cli
from jsrl.cli.main import user_path
from jsrl.cli.option_help import asked_of, execute, help_of
from jsrl.errors import ConfigError
from jsrl.experiment.options import RunOptions
from jsrl.fields import suggesting
from jsrl.tools.chaos.chaos import ChaosRun, ChaosSettings, run_command
from jsrl.workers.kinds import own_kinds

NOT_HERE = {
    "detach",
    "seeds",
    "plan",
    "resume",
    "run-name",
}  # options of `jsrl run` without a new run that can be watched


@suggesting
@dataclass(frozen=True)
class ChaosCommand(ChaosSettings, RunOptions):
    """The options of `jsrl dev chaos`: those of the storm, and of `jsrl run`."""


OWN = {f.name.replace("_", "-") for f in fields(ChaosCommand)} - {f.name.replace("_", "-") for f in fields(RunOptions)}


def main(arguments: Sequence[str] | None = None) -> int:
    text = functools.partial(help_of, "jsrl dev chaos NAME [--option value ...]", __doc__, ChaosCommand(), OWN)
    return execute(arguments, _chaos, text)


def _chaos(args: list[str]) -> int:
    """Inject faults, and print the score card; 0: passed, 1: failed, 2: it could not begin."""
    run_name = f"chaos-{time.strftime('%Y%m%d-%H%M%S')}"
    name, options = checked(args)
    words, runs_dir = [name, *cli.without(args, {*OWN, "runs-dir"})], user_path(options.runs_dir)
    command = run_command(words, runs_dir, run_name, hangs=options.hangs > 0)
    card = ChaosRun(command, runs_dir, run_name, options).run()
    print(card.text())
    return 0 if card.passed else 1


def checked(args: list[str]) -> tuple[str, ChaosCommand]:
    """Return the name of the experiment, and the options, before its run is started.

    Raises:
      ConfigError: there is no such experiment or kind of worker, an option is wrong, or the run would have nothing to hit.
    """
    name, asked = asked_of(args, ChaosCommand())
    if wrong := sorted(asked.given & NOT_HERE):
        raise ConfigError(
            f"--{wrong[0]} cannot be combined with jsrl dev chaos, which starts one new run and stops it; leave it out."
        )
    experiment, options = asked.experiment, asked.run
    known = [kind.name for kind in own_kinds()]
    unknown = [kind for kind in options.kinds or () if kind not in known]
    if unknown and options.graph is None:  # a changed graph may have kinds of its own
        raise ConfigError(f"--kinds names {unknown[0]!r}, which is no kind of worker; there are: {', '.join(known)}.")
    if not experiment.where.processes:
        raise ConfigError("a serial run is one process; take --placement served, inline or apart.")
    if experiment.recording is not None or getattr(experiment.agent, "needs_recording", False):
        raise ConfigError(
            "a run that learns from a recording has no actors, whose trajectories show that it recovered."
        )
    return name, options
