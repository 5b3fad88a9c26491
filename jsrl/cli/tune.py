"""Find the fastest settings of an experiment on this machine: `jsrl tune ppo_cartpole`.

Runs short trials of the real system, three minutes in all, and keeps the fastest settings as the profile of later runs.
They do not change what is learned. Options that you give are not tuned: `jsrl tune ppo_pong --placement inline`.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence

from jsrl.cli import command_line as cli
from jsrl.cli.arguments import Parser, show_error, user_path
from jsrl.cli.command_line import check_used
from jsrl.cli.experiments import files, load, take_name, use_working_directory
from jsrl.cli.report import check_folder
from jsrl.errors import ConfigError, JsrlError
from jsrl.tuning.advice import Measurements, advise
from jsrl.tuning.profiles import load as load_file
from jsrl.tuning.tune import tune

OF_TUNING = ("tune", "tune-minutes")  # options of `jsrl run` that a tuning uses


def parser() -> Parser:
    made = Parser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="jsrl tune NAME [--option value ...] | --from FILE",
        allow_abbrev=False,
        epilog="All other options are those of `jsrl run NAME`, such as --tune-minutes 5 or --placement inline.",
    )
    made.add_argument(
        "--batch",
        action="store_true",
        help="tune the number of environments and the batch as well, which changes what is learned",
    )
    made.add_argument(
        "--from", dest="saved", metavar="FILE", type=user_path, help="only print advice, from saved measurements"
    )
    made.add_argument(
        "--output", metavar="FILE", type=user_path, help="where to write the measurements (default: beside the profile)"
    )
    made.add_argument(
        "--trial-seconds", type=float, metavar="S", help="seconds measured per trial (default: from --tune-minutes)"
    )
    return made


def command(name: str, args: Sequence[str]) -> str:
    """Return the command of a run with the options that were given: a profile is only for the same environments and batch."""
    return shlex.join(["jsrl", "run", name, *cli.without(args, OF_TUNING)])


def main(arguments: Sequence[str] | None = None) -> int:
    own, args = parser().parse_known_args(sys.argv[1:] if arguments is None else arguments)
    use_working_directory()
    try:
        if own.saved is not None:
            if args:
                raise ConfigError(f"--from takes no other options, got {' '.join(args)}.")
            print(advise(load_file(Measurements, own.saved)).text)
            return 0
        name = take_name(args)
        if name is None:
            raise ConfigError(f"name an experiment; there are: {', '.join(files())}.")
        asked = cli.parse(args, load(name))
        check_used(asked, OF_TUNING, "tune")
        check_folder(own.output, "--output")
        tuned = tune(
            asked.experiment,
            given=asked.given,
            minutes=asked.run.tune_minutes,
            trial_seconds=own.trial_seconds,
            batch=own.batch,
            output=own.output,
        )
    except JsrlError as error:
        return show_error(error, 2 if isinstance(error, ConfigError) else 1)
    except KeyboardInterrupt:
        print("interrupted before anything was measured.", file=sys.stderr)
        return 130
    profile = tuned.profile
    if profile is not None:
        earlier = profile.measurements != str(tuned.path)
        what = f"interrupted, so the profile of {profile.trials} trials stays" if earlier else "kept as the profile"
        print(f"  {what}: {profile.path}")
        print(f"  `{command(name, args)}` uses it from now on (with --profile none it does not)")
    return 130 if tuned.interrupted else 0
