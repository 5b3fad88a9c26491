"""Predict how fast a run would be on hosts that you do not have yet, and what would limit it.

First measure the service times of your experiment on this machine, about two minutes in which it should do nothing else:

  jsrl dev simulate --calibrate NAME

Then simulate it on the hosts of a file (that of `jsrl run NAME --plan --hosts-file hosts.json`, which may give `out_mbit` and
`in_mbit` of each host's network):

  jsrl dev simulate hosts.json NAME --num-actors 128 --placement served

On a host with other cores, `jsrl dev simulate --core-speed NAME` prints the `core_speed` for its entry of that file.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jsrl.cli import command_line as cli
from jsrl.cli.arguments import Parser, show_error, user_path
from jsrl.cli.command_line import check_used
from jsrl.cli.experiments import files, load, take_name, use_working_directory
from jsrl.cli.report import check_folder
from jsrl.errors import ConfigError, JsrlError, counted
from jsrl.experiment import Experiment

if TYPE_CHECKING:
    from jsrl.tools.simulation.times import ServiceTimes


def parser() -> Parser:
    made = Parser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="jsrl dev simulate HOSTS.json NAME [--option value ...] | --calibrate NAME [--option value ...]",
        allow_abbrev=False,
        epilog="All other options are those of `jsrl run NAME`, such as --num-actors 128 or --placement served.",
    )
    made.add_argument("--calibrate", action="store_true", help="measure the service times of NAME on this machine")
    made.add_argument(
        "--from", dest="run", metavar="RUN", help="take the service times from a run's metrics instead (see --runs-dir)"
    )
    made.add_argument(
        "--core-speed", action="store_true", help="print this machine's core_speed for a file of hosts, from --times"
    )
    made.add_argument(
        "--times", type=user_path, metavar="FILE", help="file of service times (default: times-NAME.json)"
    )
    made.add_argument(
        "--trial-seconds", type=float, default=6.0, metavar="S", help="seconds measured of each calibration run"
    )
    made.add_argument("--seconds", type=float, default=10.0, metavar="S", help="seconds to simulate (default: 10)")
    made.add_argument(
        "--fan-out",
        type=int,
        metavar="N",
        help="hosts that each host sends params to (default: as runs do; 0: no tree)",
    )
    made.add_argument("--deaths-per-hour", type=float, default=0.0, metavar="N", help="deaths of each actor per hour")
    made.add_argument(
        "--restart-s", type=float, default=10.0, metavar="S", help="seconds until a dead actor works again"
    )
    made.add_argument("--page", type=user_path, metavar="FILE.html", help="draw the outcome")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    own, args = parser().parse_known_args(sys.argv[1:] if arguments is None else arguments)
    use_working_directory()
    try:
        hosts = args.pop(0) if args and args[0].endswith(".json") and not own.calibrate else None
        name = take_name(args)
        if name is None or (hosts is None and not own.calibrate and own.run is None and not own.core_speed):
            raise ConfigError(
                f"give a file of hosts and an experiment, or --calibrate and an experiment; there are: {', '.join(files())}."
            )
        _check(own)
        asked = cli.parse(args, load(name))
        check_used(asked, () if own.run is None else ("runs-dir",), "dev simulate")
        path = own.times or Path(f"times-{name}.json").absolute()
        if own.calibrate or own.run is not None:
            _measure(own, asked, path)
        if own.core_speed:
            _show_speed(path)
        if hosts is not None:
            _simulate(own, asked.experiment, hosts, path)
    except JsrlError as error:
        return show_error(error, 2 if isinstance(error, ConfigError) else 1)
    except KeyboardInterrupt:
        print("interrupted; nothing was written.", file=sys.stderr)
        return 130
    return 0


def _check(own: argparse.Namespace) -> None:
    """Refuse numbers that no run can have, and files in folders that do not exist, before anything takes time."""
    least = {"trial_seconds": 0.1, "seconds": 0.1, "fan_out": 0, "deaths_per_hour": 0, "restart_s": 0}
    for name, low in least.items():
        value = getattr(own, name)
        if value is not None and not low <= value < math.inf:
            raise ConfigError(f"--{name.replace('_', '-')} is {value:g}, expected a finite number of at least {low:g}.")
    for name in ("times", "page"):
        check_folder(getattr(own, name), f"--{name}")


def _measure(own: argparse.Namespace, asked: cli.CommandLine, path: Path) -> None:
    """Write the service times of an experiment, or of a run."""
    from jsrl.launch.plan import settle
    from jsrl.tools.simulation.calibration import INLINE, SERVED, calibrate, from_run

    if own.run is not None:
        times = from_run(own.run, asked.run.runs_dir)
    else:
        experiment, _ = settle(asked.experiment)
        placements = (experiment.placement,) if "placement" in asked.given else (INLINE, SERVED)
        times = calibrate(
            experiment, placements, seconds=own.trial_seconds, notify=lambda line: print(f"  {line}", flush=True)
        )
    times.save(path)
    print(f"service times: {path}")
    _warn(times)


def _warn(times: ServiceTimes) -> None:
    """Say that times were measured on a busy machine, if they were."""
    from jsrl.tools.simulation.speed import disturbed

    if why := disturbed(times):
        print(f"warning: {why}.", file=sys.stderr)


def _show_speed(path: Path) -> None:
    from jsrl.tools.simulation.speed import core_speed
    from jsrl.tools.simulation.times import read_times

    print(f'"core_speed": {core_speed(read_times(path)):.2f}  (this machine, over the one of {path})')


def _simulate(own: argparse.Namespace, experiment: Experiment, hosts: str, path: Path) -> None:
    """Assign an experiment to hosts, simulate it, and show the results."""
    from jsrl.launch.hosts.facts import read_hosts
    from jsrl.launch.hosts.layout import layout_text
    from jsrl.launch.plan import settle
    from jsrl.tools.simulation.outcome import simulate
    from jsrl.tools.simulation.page import page, summary
    from jsrl.tools.simulation.speed import interval
    from jsrl.tools.simulation.system import lay_out_on
    from jsrl.tools.simulation.times import read_times

    facts, times = read_hosts(hosts), read_times(path)
    experiment, chosen = settle(experiment)
    if chosen:
        print(chosen)
    layout, system = lay_out_on(experiment, facts)
    if lacking := times.lacks(bool(system.servers), system.far_rows or system.far_asks):
        raise ConfigError(f"{path} has no times of {lacking}; calibrate without --placement.")
    system = dataclasses.replace(
        system,
        fan_out=system.fan_out if own.fan_out is None else own.fan_out,
        deaths_per_hour=own.deaths_per_hour,
        restart_s=own.restart_s,
    )
    print(layout_text(layout))
    _warn(times)
    outcome = simulate(system, times, seconds=own.seconds)
    low, high = interval(outcome.env_steps_per_s, times)
    expected = f"  a real run is expected at {low:,.0f} to {high:,.0f} env steps/s"
    title = f"{experiment.name} on {counted(len(facts), 'host')}"
    print("", f"{title}, simulated:", summary(outcome), expected, sep="\n")
    if own.page is not None:
        own.page.write_text(page(title, outcome, [expected, *layout_text(layout).splitlines()]))
        print(f"page: {own.page}")
