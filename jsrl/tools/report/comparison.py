"""Runs side by side: statistics over seeds with intervals, comparison of two runs. Plain text and arrays."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jsrl.errors import ConfigError
from jsrl.graph.graph_file import plain_graph
from jsrl.intervals import seeds_interval, t_factor
from jsrl.services.metrics.display_state import clock, short
from jsrl.services.runs.runs import Run
from jsrl.tools.report.page import Table
from jsrl.tools.report.run_report import flat_options, how_it_ended, rates_of

BAND_POINTS = 50
SCORES = (  # a win rate exists where opponents are named; there the return says little
    "evaluator/final_win_rate",
    "evaluator/win_rate",
    "evaluator/final_return_mean",
    "evaluator/return_mean",
    "actor/return_mean",
)


def interquartile_mean(values: np.ndarray) -> np.ndarray:
    """Return the mean of the middle half along the last axis; values partly inside count partly.

    Source: Agarwal et al. 2021, Deep Reinforcement Learning at the Edge of the Statistical Precipice, arXiv:2108.13264.
    """
    count = values.shape[-1]
    edges = np.arange(count + 1) / count
    inside = np.clip(np.minimum(edges[1:], 0.75) - np.maximum(edges[:-1], 0.25), 0.0, None)
    return np.sort(values, axis=-1) @ (inside / inside.sum())


def interval_of(values: np.ndarray, *, middle: bool) -> tuple[Any, Any]:
    """Return the ends of the 95% t interval of the mean, or of the mean of the `middle` half, over [..., seeds].

    NaN with one seed.
    """
    centre = interquartile_mean(values) if middle else values.mean(axis=-1)
    return seeds_interval(values, centre, values.shape[-1] // 4 if middle else 0)


@dataclass(frozen=True)
class Difference:
    """How the scores of two settings, A and B, differ.

    Attributes:
      mean: A's mean less B's. interval: its 95% t interval (Welch's). p: of a permutation test of the means, two-sided.
      wins: how often a seed of A scores more than a seed of B, 0 to 1; equal scores count half.
    """

    mean: float
    interval: tuple[float, float]
    p: float
    wins: float


def difference(a: np.ndarray, b: np.ndarray) -> Difference:
    """Compare the scores of two settings, a [seeds] and b [seeds]; equal scores always give the same result.

    The test assumes no distribution. If A and B were equally good, each split of the scores into two groups would be as
    likely as this one; p is twice the share of splits whose difference is at least as large, in A's or B's favour as here.
    With 5 seeds each it is at least 0.008.

    Source: Agarwal et al. 2021, arXiv:2108.13264, for the probability of improvement (`wins`).

    Raises:
      ConfigError: there are fewer than two scores of one of them.
    """
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if min(a.size, b.size) < 2:
        raise ConfigError(f"there are {a.size} and {b.size} scores; a test needs at least two seeds of each setting.")
    from scipy import stats  # here, as it takes half a second

    mean, (va, vb) = float(a.mean() - b.mean()), (own.var(ddof=1) / own.size for own in (a, b))
    degrees = (va + vb) ** 2 / max(va**2 / (a.size - 1) + vb**2 / (b.size - 1), 1e-300)
    half = t_factor(max(degrees, 1.0)) * math.sqrt(va + vb)
    test = stats.permutation_test(
        (a, b), lambda x, y, axis: x.mean(axis=axis) - y.mean(axis=axis), vectorized=True, random_state=0
    )
    wins = np.mean(a[:, None] > b) + 0.5 * np.mean(a[:, None] == b)
    return Difference(mean, (mean - half, mean + half), float(test.pvalue), float(wins))


LEARNED = (
    "agent.", "env.", "replay.", "num-envs", "rollout-length", "batch-envs", "max-policy-lag", "learner.reuse",
    "recording", "director.", "seats", "evaluator.env", "evaluator.against",
)  # fmt: skip
"""Prefixes of options that change what is learned or what a score means, and not only where or for how long; the same hold
for each policy."""


def changes_learning(option: str) -> bool:
    """Return whether an option, such as `policies.runner.agent.gamma`, changes what is learned or what a score means."""
    own = option.split(".", 2)[2] if option.startswith("policies.") else option
    return own.startswith(LEARNED)


def grouped(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Return runs by experiment: those of a folder and environment, split if what changes learning differs within them.

    That is settings and own workers, which are in the names: `ppo_cartpole, agent.learning-rate 0.001` or
    `ppo_cartpole, my_workers:AUGMENT`. All runs that began with params of other runs are `ppo_cartpole, init-from`.
    """
    tasks: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        tasks.setdefault((run.folder.path.parent.name, str(flat_options(run.config).get("env.id"))), []).append(run)
    several = Counter(folder for folder, _ in tasks)
    found: dict[str, list[Run]] = {}
    for (folder, env), own in tasks.items():
        name = folder if several[folder] == 1 else f"{folder}, {env}"
        differing = learned_differently(own)
        for run in own:
            found.setdefault(with_settings(name, run, differing), []).append(run)
    return found


def learned_differently(runs: Sequence[Run]) -> list[str]:
    """Return the options that differ between runs and change what is learned."""
    return [option for option in differing_options(runs) if changes_learning(option)]


def with_settings(name: str, run: Run, differing: Iterable[str]) -> str:
    """Return a name followed by a run's own values of some options, its own workers, and `init-from`."""
    options = flat_options(run.config)
    parts = [name, *(f"{option} {options.get(option)}" for option in differing), *own_workers(run)]
    parts += ["init-from"] if run.environment.get("init_from") else []
    return ", ".join(parts)


def own_workers(run: Run) -> list[str]:
    """Return the kinds of workers in a run's graph that are not built in, with their settings, each once."""
    graph = plain_graph(run.folder.path)
    own = [worker for worker in graph.workers if ":" in worker.kind] if graph is not None else []
    return sorted({worker.kind + (f" {json.dumps(worker.settings)}" if worker.settings else "") for worker in own})


def differing_options(runs: Sequence[Run]) -> list[str]:
    options = [flat_options(run.config) for run in runs]
    names = dict.fromkeys(name for own in options for name in own)
    return [name for name in names if len({str(own.get(name)) for own in options}) > 1]


@dataclass(frozen=True)
class Band:
    """Seeds of an experiment over env steps: their mean and its 95% interval, all [points]."""

    x: np.ndarray
    middle: np.ndarray
    low: np.ndarray
    high: np.ndarray


def band(curves: Sequence[tuple[np.ndarray, np.ndarray]], *, mean: bool = False) -> Band | None:
    """Return the mean of curves (env steps, values), where all curves have values.

    Of 4 or more it is the interquartile mean, unless the plain `mean` is asked for.
    None: there are fewer than two curves, or no env steps in common.
    """
    low_x, high_x = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
    if len(curves) < 2 or high_x <= low_x:
        return None
    x = np.linspace(low_x, high_x, BAND_POINTS)
    values = np.stack([np.interp(x, *curve) for curve in curves], axis=-1)
    robust = len(curves) >= 4 and not mean
    middle = interquartile_mean(values) if robust else values.mean(-1)
    return Band(x, middle, *interval_of(values, middle=robust))


UNEQUAL = "Runs end after different numbers of env steps, and each counts with its own end value."


def scores_table(runs: Sequence[Run], key: str) -> tuple[Table, list[str]]:
    """Return a line per experiment with its seeds' last values of `key`, and notes on them."""
    rows, unequal = [], False
    for experiment, own in grouped(runs).items():
        values, env_steps = _ends(own, key)
        fewest, most = float(env_steps.min()), float(env_steps.max())
        unequal |= most > 1.1 * fewest
        steps = f"{short(fewest)} to {short(most)}" if most > 1.1 * fewest else short(float(env_steps.mean()))
        mean = _with_interval(values.mean(), *interval_of(values, middle=False))
        iqm = _with_interval(float(interquartile_mean(values)), *interval_of(values, middle=True))
        rows.append((experiment, str(values.size), steps, mean, iqm, short(values.min()), short(values.max())))
    notes = ["One seed has no interval, and equal values have none."] if any("[" not in row[3] for row in rows) else []
    notes += [UNEQUAL] if unequal else []
    notes += repeated_seeds(runs)
    notes += [test] if (test := difference_text(runs, key)) else []
    head = ("experiment", "seeds", "env steps", "mean [95%]", "IQM [95%]", "lowest", "highest")
    return Table(head, rows, "numbers"), notes


def _with_interval(value: float, low: float, high: float) -> str:
    return short(value) + (f" [{short(low)}, {short(high)}]" if low < high else "")


def _ends(runs: Sequence[Run], key: str) -> np.ndarray:
    """Return the last values of a metric and the env steps at which they were reported, [2, runs]."""
    ends = []
    for run in runs:
        at, curve = run.curve(key)
        if not curve.size:
            raise ConfigError(f"run {run.name} has no finite value of {key}; leave it out, or choose another metric.")
        ends.append((curve[-1], at[-1]))
    return np.array(ends, np.float64).T


def difference_text(runs: Sequence[Run], key: str = "evaluator/return_mean") -> str:
    """Return how two experiments in one environment, with at least two seeds each, differ in the last value of `key`.

    Empty: these are other runs.
    """
    groups = grouped(runs)
    environments = {flat_options(run.config).get("env.id") for run in runs}
    if len(groups) != 2 or min(map(len, groups.values())) < 2 or len(environments) > 1:
        return ""
    found = difference(*(_ends(own, key)[0] for own in groups.values()))
    low, high = map(short, found.interval)
    return (
        f"Difference of the means ({' less '.join(groups)}): {short(found.mean)} [{low}, {high}]; permutation test: "
        f"p = {found.p:.3f}; a seed of the first scores more than one of the second: {found.wins:.0%}."
    )


def summarise(runs: Sequence[Run], key: str = "evaluator/return_mean") -> str:
    """Return a table: mean and interquartile mean over seeds with 95% t intervals, one line per experiment.

    Of two experiments it also says whether they differ; see difference_text.
    """
    table, notes = scores_table(runs, key)
    return "\n".join([f"{key}, end value", table.text(), *notes])


def repeated_seeds(runs: Sequence[Run]) -> list[str]:
    """Return a line for each experiment of which several runs have the same seed: they count as seeds, but are too alike."""
    lines = []
    for experiment, own in grouped(runs).items():
        counts = Counter(str(flat_options(run.config).get("seed")) for run in own)
        again = [f"{count} runs with seed {seed}" for seed, count in counts.items() if count > 1 and seed != "None"]
        if again:
            text = (
                f"{experiment}: {' and '.join(again[:3])}; each counts as a seed, so the intervals may be too narrow."
            )
            lines.append(f"{text} --seeds 0-4 runs different ones.")
    return lines


def settings_table(groups: Mapping[str, Sequence[Run]]) -> Table:
    """Return every option, and fact of the machine, that differs between runs, with the values of each experiment."""
    runs = [run for own in groups.values() for run in own]
    facts = {id(run): _facts(run) | flat_options(run.config) for run in runs}
    names = dict.fromkeys(name for own in facts.values() for name in own)
    rows = [
        (name, *(", ".join(dict.fromkeys(_shown(facts[id(run)].get(name)) for run in own)) for own in groups.values()))
        for name in names
        if len({str(own.get(name)) for own in facts.values()}) > 1
    ]
    return Table(("setting", *groups), rows)


SAME = "All runs have the same settings, commit and machine."


def _facts(run: Run) -> dict[str, Any]:
    agent = run.config.get("fields", {}).get("agent") or {}
    facts = {"algorithm": str(agent.get("$type", "?")).rpartition(":")[2]}
    for what in ("commit", "packages", "hardware"):
        found = run.environment.get(what)
        entries = found if isinstance(found, dict) else {"": found}
        facts |= {f"{what}.{name}".removesuffix("."): str(value) for name, value in entries.items()}
    return facts


def _shown(value: object) -> str:
    text = "-" if value is None else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def scored(runs: Sequence[Run]) -> tuple[list[Run], str]:
    """Return the runs that have a score (one that has just begun has none), and the metric in which all of them have one.

    The metric is empty if there is none.
    """

    def has(run: Run, name: str) -> bool:
        return bool(np.isfinite(run.metrics.get(name, np.zeros(0))).any())

    found = [run for run in runs if any(has(run, name) for name in SCORES)]
    return found, next((name for name in SCORES if found and all(has(run, name) for run in found)), "")


def runs_table(runs: Sequence[Run]) -> Table:
    """Return a line for each run: how it ended, its length, its rates, and the last value of the score that all have."""
    (found, metric), rows = scored(runs), list[Sequence[str]]()
    for run in runs:
        steps, wall_s = (run.metrics.get(name, np.zeros(0)) for name in ("env_steps", "wall_s"))
        length = (short(float(steps.max())), clock(float(wall_s[-1]))) if steps.size else ("-", "-")
        rates = rates_of(run.metrics)  # the last line of a rate also counts the end of the run
        speeds = [short(rates.get(name)) for name in ("env steps trained", "updates")]
        score = short(float(run.curve(metric)[1][-1])) if metric and run in found else "-"
        rows.append((run.name, how_it_ended(run.folder.path), *length, *speeds, score))
    head = ("run", "ended", "env steps", "wall clock", "env steps trained/s", "updates/s", metric or "score")
    return Table(head, rows, "numbers", words=(1,))


def compare_runs(runs: Sequence[Run]) -> str:
    """Return a text: how runs differ in configuration and origin, and how each ended."""
    settings = settings_table({run.name: [run] for run in runs})
    return f"{settings.text() if settings.rows else SAME}\n\n{runs_table(runs).text()}"
