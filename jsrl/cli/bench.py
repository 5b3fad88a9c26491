"""Measure how fast an experiment trains on this machine: `jsrl dev bench ppo_cartpole --num-envs 64`.

Each placement (or the one of --placement) runs in fresh processes, measured once it is warm; repetitions alternate.
Comparisons with other libraries and each part alone: `python experiments/bench.py` in a checkout.
"""

from __future__ import annotations

import functools
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from jsrl.cli.option_help import asked_of, execute, help_of
from jsrl.experiment.numbers import followed
from jsrl.fields import PositiveFinite, PositiveInt, option, suggesting
from jsrl.tools.report.page import Table
from jsrl.tools.tuning.trial import Limits, Trial, measure

PLACEMENTS = ("serial", "inline", "served", "apart")
TITLES = ("placement", "env steps/s", "range", "policy lag", "first update s")


@suggesting
@dataclass(frozen=True)
class BenchCommand:
    """The options of `jsrl dev bench`."""

    seconds: PositiveFinite = option(8.0, "measured of each run.")
    repetitions: PositiveInt = option(3, "runs of each placement.")


def main(arguments: Sequence[str] | None = None) -> int:
    text = functools.partial(help_of, "jsrl dev bench NAME [--option value ...]", __doc__, BenchCommand())
    return execute(arguments, _bench, text)


def _bench(args: list[str]) -> int:
    _, asked = asked_of(args, BenchCommand())
    every = (*PLACEMENTS, *(("fused",) if asked.experiment.env.in_jax else ()))
    wanted = (asked.experiment.placement,) if "placement" in asked.given else every
    experiments = {one: followed(asked.experiment, {"placement": one}, asked.given)[0] for one in wanted}
    limits = Limits(seconds=asked.run.seconds, longest_s=4 * asked.run.seconds)
    speeds: dict[str, list[Trial]] = {placement: [] for placement in experiments}
    for repetition in range(asked.run.repetitions):
        for placement, experiment in experiments.items():
            speeds[placement].append(speed := measure(experiment, limits))
            how = speed.error or f"{speed.env_steps_per_s:,.0f} env steps/s"
            print(f"  {repetition + 1}/{asked.run.repetitions} {placement}: {how}", file=sys.stderr)
    print(table(speeds))
    return 0


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
