"""Predict how fast a run would be on hosts that you do not have yet, and what would limit it.

First measure the service times of your experiment on this machine, about two minutes in which it should do nothing else:

  jsrl dev simulate --calibrate NAME

Then simulate it on the hosts of a file (that of `jsrl run NAME --plan --hosts-file hosts.json`, which may give `out_mbit` and
`in_mbit` of each host's network):

  jsrl dev simulate hosts.json NAME --num-actors 128 --placement served

On a host with other cores, `jsrl dev simulate --core-speed NAME` prints the `core_speed` for its entry of that file.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from jsrl.cli import command_line as cli
from jsrl.cli.option_help import asked_of, execute, help_of
from jsrl.cli.report import check_folder
from jsrl.errors import ConfigError, counted
from jsrl.experiment import Experiment
from jsrl.fields import NonNegativeFinite, NonNegativeInt, PositiveFinite, option, suggesting

if TYPE_CHECKING:
    from jsrl.tools.simulation.times import ServiceTimes


@suggesting
@dataclass(frozen=True)
class SimulateCommand:
    """The options of `jsrl dev simulate`."""

    calibrate: bool = option(False, "measure the service times of NAME on this machine.")
    run: str | None = option(None, "take the service times from the metrics of this run instead.")
    runs_dir: str = option("runs", "folder of all runs, for --run.")
    core_speed: bool = option(False, "print this machine's core_speed for a file of hosts, from --times.")
    times: str | None = option(None, "file of service times (default: times-NAME.json).")
    trial_seconds: PositiveFinite = option(6.0, "seconds measured of each calibration run.")
    seconds: PositiveFinite = option(10.0, "seconds to simulate.")
    fan_out: NonNegativeInt | None = option(
        None, "hosts that each host sends params to (default: as runs do; 0: no tree)."
    )
    deaths_per_hour: NonNegativeFinite = option(0.0, "deaths of each actor per hour.")
    restart_s: NonNegativeFinite = option(10.0, "seconds until a dead actor works again.")
    page: str | None = option(None, "file for a picture of the outcome, such as page.html.")


def main(arguments: Sequence[str] | None = None) -> int:
    usage = "jsrl dev simulate HOSTS.json NAME [--option value ...] | --calibrate NAME [--option value ...]"
    text = functools.partial(help_of, usage, __doc__, SimulateCommand())
    return execute(arguments, _begin, text, "interrupted; nothing was written.")


def _begin(args: list[str]) -> int:
    hosts = args.pop(0) if args and args[0].endswith(".json") and "--calibrate" not in args else None
    name, asked = asked_of(args, SimulateCommand())
    own: SimulateCommand = asked.run
    if hosts is None and not own.calibrate and own.run is None and not own.core_speed:
        raise ConfigError("give a file of hosts and an experiment, or --calibrate and an experiment.")
    for option_name in ("times", "page"):
        check_folder(getattr(own, option_name), f"--{option_name}")
    path = Path(own.times or f"times-{name}.json").absolute()
    if own.calibrate or own.run is not None:
        _measure(own, asked, path)
    if own.core_speed:
        _show_speed(path)
    if hosts is not None:
        _simulate(own, asked.experiment, hosts, path)
    return 0


def _measure(own: SimulateCommand, asked: cli.CommandLine, path: Path) -> None:
    """Write the service times of an experiment, or of a run."""
    from jsrl.graph.plan import decided
    from jsrl.tools.simulation.calibration import INLINE, SERVED, calibrate, from_run

    if own.run is not None:
        times = from_run(own.run, own.runs_dir)
    else:
        experiment, _ = decided(asked.experiment)
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


def _simulate(own: SimulateCommand, experiment: Experiment, hosts: str, path: Path) -> None:
    """Assign an experiment to hosts, simulate it, and show the results."""
    from jsrl.cluster.hosts_file import read_hosts
    from jsrl.cluster.layout import layout_text
    from jsrl.graph.plan import decided
    from jsrl.tools.simulation.outcome import simulate
    from jsrl.tools.simulation.page import page, summary
    from jsrl.tools.simulation.speed import interval
    from jsrl.tools.simulation.system import lay_out_on
    from jsrl.tools.simulation.times import read_times

    facts, times = read_hosts(hosts), read_times(path)
    experiment, chosen = decided(experiment)
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
        Path(own.page).write_text(page(title, outcome, [expected, *layout_text(layout).splitlines()]))
        print(f"page: {own.page}")
