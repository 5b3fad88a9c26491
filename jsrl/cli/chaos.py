"""Kill, stop and flood a run at random: `jsrl dev chaos ppo_cartpole --storm-s 60 [options of jsrl run]`."""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from jsrl.cli import command_line as cli
from jsrl.cli.arguments import Parser, show_error
from jsrl.cli.experiments import files, load, take_name, use_working_directory
from jsrl.errors import ConfigError, JsrlError
from jsrl.tools.chaos.chaos import ChaosRun, ChaosSettings, run_command
from jsrl.workers.kinds import own_kinds

STRANGER = Path(__file__).parents[2] / "benchmarks" / "strangers.py"  # of a checkout

NOT_HERE = {
    "detach",
    "seeds",
    "plan",
    "resume",
    "run-name",
}  # options of `jsrl run` without a new run that can be watched


def main(arguments: Sequence[str] | None = None) -> int:
    """Inject faults, and print the score card; 0: passed, 1: failed, 2: it could not begin."""
    options, args = _parser().parse_known_args(arguments)
    name = f"chaos-{time.strftime('%Y%m%d-%H%M%S')}"
    try:
        settings = settings_of(options)
        use_working_directory()
        check_args(list(args))
        check_kinds(settings.kinds, args)
        command = run_command(args, options.runs_dir, name, hangs=options.hangs > 0)
        card = ChaosRun(command, options.runs_dir, name, settings, sender(options.messages_per_s)).run()
    except JsrlError as error:
        return show_error(error)
    print(card.text())
    return 0 if card.passed else 1


def _parser() -> Parser:
    parser = Parser(
        prog="jsrl dev chaos",
        usage="jsrl dev chaos NAME [--option value ...]",
        description=__doc__,
        epilog="All other options are those of `jsrl run NAME`.",
    )
    parser.add_argument(
        "--storm-s", type=float, default=60.0, help="seconds during which faults are injected (default: 60)"
    )
    parser.add_argument(
        "--calm-s", type=float, default=10.0, help="seconds without faults before that, as the baseline (default: 10)"
    )
    parser.add_argument(
        "--flood-s",
        type=float,
        default=10.0,
        help="seconds of unauthorised messages before the first fault (default: 10)",
    )
    parser.add_argument(
        "--messages-per-s",
        type=float,
        default=0.0,
        help="maximum unauthorised messages per second, such as 200; needs a checkout (default: none)",
    )
    parser.add_argument(
        "--every-s", type=float, default=5.0, help="mean seconds between a recovery and the next fault (default: 5)"
    )
    parser.add_argument(
        "--kinds",
        help="kinds of workers to hit, such as actor,learner (default: all that a run needs)",
    )
    parser.add_argument(
        "--pauses",
        type=float,
        default=0.25,
        help="share of faults that stop a process instead of killing it (default: 0.25)",
    )
    parser.add_argument(
        "--hangs", type=float, default=0.0, help="share of faults that stop only the main thread (default: 0)"
    )
    parser.add_argument("--storm-seed", type=int, default=0, help="seed of the faults (default: 0)")
    parser.add_argument(
        "--patience-s", type=float, default=60.0, help="seconds within which the run must recover (default: 60)"
    )
    parser.add_runs_dir()
    return parser


def settings_of(options: argparse.Namespace) -> ChaosSettings:
    if not 0 <= options.messages_per_s < math.inf:
        raise ConfigError(f"--messages-per-s is {options.messages_per_s:g}, expected 0 or more, and finite.")
    return ChaosSettings(
        storm_s=options.storm_s,
        calm_s=options.calm_s,
        every_s=options.every_s,
        kinds=None if options.kinds is None else tuple(options.kinds.split(",")),
        pauses=options.pauses,
        hangs=options.hangs,
        seed=options.storm_seed,
        patience_s=options.patience_s,
        flood_s=options.flood_s,
    )


def sender(messages_per_s: float) -> list[str] | None:
    """Return the command that sends unauthorised messages; None: none are sent."""
    if messages_per_s == 0:
        return None
    if not STRANGER.is_file():
        raise ConfigError("--messages-per-s needs a checkout of jsrl, whose benchmarks/strangers.py sends them.")
    return [sys.executable, str(STRANGER), "--per-s", str(messages_per_s)]


def check_kinds(kinds: Sequence[str] | None, args: Sequence[str]) -> None:
    known = [kind.name for kind in own_kinds()]
    unknown = [kind for kind in kinds or () if kind not in known]
    if unknown and not any(arg.startswith("--graph") for arg in args):
        raise ConfigError(f"--kinds names {unknown[0]!r}, which is no kind of worker; there are: {', '.join(known)}.")


def check_args(args: list[str]) -> None:
    """Check the experiment's name and options before the run is started."""
    name = take_name(args)
    if name is None:
        raise ConfigError(f"name an experiment; there are: {', '.join(files())}.")
    asked = cli.parse(args, load(name))
    if wrong := sorted(asked.given & NOT_HERE):
        raise ConfigError(
            f"--{wrong[0]} cannot be combined with jsrl dev chaos, which starts one new run and stops it; leave it out."
        )
    experiment = asked.experiment
    if not experiment.where.has_processes:
        raise ConfigError("a serial run is one process; take --placement served, inline or apart.")
    if experiment.recording is not None or getattr(experiment.agent, "needs_recording", False):
        raise ConfigError(
            "a run that learns from a recording has no actors, whose trajectories show that it recovered."
        )
