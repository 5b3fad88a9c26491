"""Measure how fast an experiment trains on this machine: `jsrl dev bench ppo_cartpole --num-envs 64`.

Each placement (or the one of --placement) runs in fresh processes, measured once it is warm; repetitions alternate.
Comparisons with other libraries and each part alone: `python experiments/bench.py` in a checkout.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence

from jsrl.cli import command_line as cli
from jsrl.cli.arguments import Parser, show_error
from jsrl.cli.command_line import check_used
from jsrl.cli.experiments import files, load, take_name, use_working_directory
from jsrl.errors import ConfigError, JsrlError
from jsrl.report.page import Table
from jsrl.tuning.space import Trial
from jsrl.tuning.trial import Limits, measure

PLACEMENTS = ("serial", "inline", "served", "apart")
TITLES = ("placement", "env steps/s", "range", "policy lag", "first update s")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Parser(
        prog="jsrl dev bench",
        usage="%(prog)s NAME [--option value ...]",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        epilog="All other options are those of `jsrl run NAME`.",
    )
    parser.add_argument("--seconds", type=float, default=8.0, help="measured of each run (default: %(default)s)")
    parser.add_argument("--repetitions", type=int, default=3, help="runs of each placement (default: %(default)s)")
    own, args = parser.parse_known_args(arguments)
    use_working_directory()
    try:
        if any(word.partition("=")[0] == "--against" for word in args):
            raise ConfigError(
                "--against is an option of `python experiments/bench.py NAME`, which needs a checkout of jsrl."
            )
        if not 0 < own.seconds < float("inf") or own.repetitions < 1:
            raise ConfigError("--seconds must be above 0, and --repetitions at least 1.")
        print(table(_speeds(args, own.seconds, own.repetitions)))
    except JsrlError as error:
        return show_error(error, 2 if isinstance(error, ConfigError) else 1)
    except KeyboardInterrupt:
        return 130
    return 0


def _speeds(args: list[str], seconds: float, repetitions: int) -> dict[str, list[Trial]]:
    name = take_name(args)
    if name is None:
        raise ConfigError(f"name an experiment; there are: {', '.join(files())}.")
    asked = cli.parse(args, load(name))
    check_used(asked, (), "dev bench")
    wanted = (asked.experiment.placement,) if "placement" in asked.given else PLACEMENTS
    experiments = {one: cli.parse([*args, "--placement", one], load(name)).experiment for one in wanted}
    limits = Limits(seconds=seconds, longest_s=4 * seconds)
    speeds: dict[str, list[Trial]] = {placement: [] for placement in experiments}
    for repetition in range(repetitions):
        for placement, experiment in experiments.items():
            speeds[placement].append(speed := measure(experiment, limits))
            how = speed.error or f"{speed.env_steps_per_s:,.0f} env steps/s"
            print(f"  {repetition + 1}/{repetitions} {placement}: {how}", file=sys.stderr)
    return speeds


def table(speeds: dict[str, list[Trial]]) -> str:
    """Return a row for each placement, with medians of its runs, and why runs failed."""
    rows, notes = list[tuple[str, ...]](), list[str]()
    for placement, every in speeds.items():
        good = [speed for speed in every if not speed.error]
        notes += [f"{placement}: {speed.error}" for speed in every if speed.error]
        if good:
            rates = [speed.env_steps_per_s for speed in good]
            lag = statistics.median(speed.means.get("learner/policy_lag_mean", 0.0) for speed in good)
            start_s = statistics.median(speed.start_s for speed in good)
            between = f"{min(rates):,.0f} - {max(rates):,.0f}"
            rows.append((placement, f"{statistics.median(rates):,.0f}", between, f"{lag:.2f}", f"{start_s:.1f}"))
    return "\n".join([*([Table(TITLES, rows).text()] if rows else []), *notes])
