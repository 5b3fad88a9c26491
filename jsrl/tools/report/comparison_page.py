"""Several runs on one page: scores with intervals, overlaid seeds, and settings that differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

import numpy as np

from jsrl.services.runs.files import write_atomic
from jsrl.services.runs.runs import Run
from jsrl.tools.report.charts import SMALL, WIDE, Series, chart, keys_of
from jsrl.tools.report.comparison import (
    SAME,
    band,
    grouped,
    runs_table,
    scored,
    scores_table,
    settings_table,
    summarise,
)
from jsrl.tools.report.curves import STEPS, algorithm_metrics, title_of
from jsrl.tools.report.page import header, section, shell
from jsrl.tools.report.run_report import flat_options
from jsrl.workers.learner.kind import KIND as LEARNER
from jsrl.workers.learner.kind import MEASURED

CURVES = (
    ("Win rate against named opponents", "evaluator/win_rate"),
    ("Return of an episode, evaluation", "evaluator/return_mean"),
    ("Return of an episode, training", "actor/return_mean"),
    ("Env steps per second taken by actors", "actor/env_steps_per_s"),
)
NOTE = (
    "Thin: each seed. Thick: their mean, from 4 seeds on the interquartile mean (IQM), up to the end of the shortest; around "
    "it its 95% t interval."
)


def comparison_page(runs: Sequence[Run]) -> str:
    """Return the page of several runs, as self-contained HTML."""
    groups = grouped(runs)
    title = f"{len(runs)} runs of {len(groups)} experiment{'s' if len(groups) > 1 else ''}"
    environments: dict[str, list[str]] = {}
    for name, own in groups.items():
        environments.setdefault(str(flat_options(own[0].config).get("env.id", "")), []).append(name)
    sections = [
        header(title),
        section("Scores", _scores(runs)),
        *(_curves(env, {name: groups[name] for name in names}) for env, names in environments.items()),
        section("Settings that differ", _settings(groups)),
        section("Runs", runs_table(runs).html()),
    ]
    return shell(title, "\n".join(one for one in sections if one))


def _curves(env: str, groups: Mapping[str, Sequence[Run]]) -> str:
    """Return the charts of the experiments in one environment: returns of different environments share no axis."""
    where = f": {env}" if env else ""
    runs = [run for own in groups.values() for run in own]
    large = "".join(_chart(name, metric, groups, WIDE) for name, metric in CURVES)
    names = dict.fromkeys(name for run in runs for name in algorithm_metrics(run.metrics, LEARNER, MEASURED))
    small = "".join(_chart(title_of(name), name, groups, SMALL) for name in names)
    none = np.zeros(0)
    keys = keys_of({name: Series(name, none, none, index=index).css for index, name in enumerate(groups)})
    learning = (
        f'<p class="legend">{keys}</p><p class="legend">{NOTE}</p><div class="grid2">{large}</div>' if large else ""
    )
    return section(f"Learning{where}", learning) + section(f"Algorithm{where}", small, "grid3")


def _chart(title: str, metric: str, groups: Mapping[str, Sequence[Run]], size: tuple[int, int]) -> str:
    """Return the seeds of each experiment in its colour, and their mean with its interval."""
    seeds, means = [], []
    for index, (name, runs) in enumerate(groups.items()):
        curves = [run.curve(metric) for run in runs if metric in run.metrics]
        curves = [(x, y) for x, y in curves if len(x) >= 2]
        middle = band(curves) if curves else None
        seeds += [Series(name, x, y, index=index, faint=middle is not None) for x, y in curves]
        if middle is not None:
            means.append(Series(name, middle.x, middle.middle, middle.low, middle.high, index=index))
    return chart(title, STEPS, [*seeds, *means], size=size, legend=False)


def _scores(runs: Sequence[Run]) -> str:
    """Return the final scores of each experiment with their intervals, as a table."""
    found, metric = scored(runs)
    if not metric:
        return ""
    table, notes = scores_table(found, metric)
    if without := [run.name for run in runs if run not in found]:
        notes.append(f"Without a score: {', '.join(without)}.")
    note = " ".join([f"{metric}, the last value of each run.", *notes])
    return f'{table.html()}<p class="legend">{escape(note)}</p>'


def _settings(groups: Mapping[str, Sequence[Run]]) -> str:
    table = settings_table(groups)
    return table.html() if table.rows else f"<p>{SAME}</p>"


def write_comparison(runs: Sequence[Run], path: Path) -> str:
    """Write the page of several runs to `path`; return their scores as a table."""
    write_atomic(path, comparison_page(runs).encode(), durable=False)
    found, metric = scored(runs)
    without = [run.name for run in runs if run not in found]
    note = f"\nwithout a score: {', '.join(without)}" if without else ""
    return (summarise(found, metric) if metric else "no score that all of these runs have") + note
