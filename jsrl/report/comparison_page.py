"""Several runs on one page: scores with intervals, overlaid seeds, and settings that differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

import numpy as np

from jsrl.report.charts import SMALL, WIDE, Series, chart, keys_of
from jsrl.report.comparison import (
    UNEQUAL,
    band,
    difference_text,
    differing_options,
    grouped,
    repeated_seeds,
    summaries,
    with_interval,
)
from jsrl.report.curves import STEPS, algorithm_metrics, title_of
from jsrl.report.html import section, shell
from jsrl.report.run_report import flat_options, how_it_ended
from jsrl.report.text import number
from jsrl.runs.runs import Run
from jsrl.workers.learner.kind import KIND as LEARNER
from jsrl.workers.learner.kind import MEASURED

SCORES = (  # a win rate exists where opponents are named; there the return says little
    "evaluator/final_win_rate",
    "evaluator/win_rate",
    "evaluator/final_return_mean",
    "evaluator/return_mean",
    "actor/return_mean",
)
CURVES = (
    ("Win rate against named opponents", "evaluator/win_rate"),
    ("Return of an episode, evaluation", "evaluator/return_mean"),
    ("Return of an episode, training", "actor/return_mean"),
    ("Env steps per second taken by actors", "actor/env_steps_per_s"),
)
NOTE = (
    "Thin: each seed. Thick: their mean, from 4 seeds on the interquartile mean, up to the end of the shortest; around it "
    "its 95% t interval."
)


def comparison_page(runs: Sequence[Run]) -> str:
    """Return the page of several runs, as self-contained HTML.

    Raises:
      ConfigError: a folder is not a whole run.
    """
    groups = grouped(runs)
    title = f"{len(runs)} runs of {len(groups)} experiment{'s' if len(groups) > 1 else ''}"
    environments: dict[str, list[str]] = {}
    for name, own in groups.items():
        environments.setdefault(str(flat_options(own[0].config).get("env.id", "")), []).append(name)
    sections = [
        f"<header><h1>{escape(title)}</h1></header>",
        section("Scores", _scores(runs)),
        *(_curves(env, {name: groups[name] for name in names}) for env, names in environments.items()),
        section("Settings that differ", _settings(groups)),
        section("Runs", _runs(runs)),
    ]
    return shell(title, "\n".join(one for one in sections if one))


def _curves(env: str, groups: Mapping[str, Sequence[Run]]) -> str:
    """Return the charts of the experiments in one environment: returns of different environments share no axis."""
    where = f": {env}" if env else ""
    runs = [run for own in groups.values() for run in own]
    large = "".join(_chart(name, metric, groups, WIDE) for name, metric in CURVES)
    names = dict.fromkeys(name for run in runs for name in algorithm_metrics(run.metrics, LEARNER.prefix, MEASURED))
    small = "".join(_chart(title_of(name), name, groups, SMALL) for name in names)
    none = np.zeros(0)
    keys = keys_of({name: Series(name, none, none, index=index).css for index, name in enumerate(groups)})
    learning = (
        f'<p class="legend">{keys}</p><p class="legend">{NOTE}</p><div class="grid2">{large}</div>' if large else ""
    )
    return section(f"Learning{where}", learning) + section(f"Algorithm{where}", small, "grid3")


def with_score(runs: Sequence[Run]) -> list[Run]:
    """Return the runs that have a score; a run that has just begun has none."""
    return [run for run in runs if score_of([run])]


def score_of(runs: Sequence[Run]) -> str:
    """Return the metric in which all of the runs can be compared; empty: there is none."""
    for name in SCORES:
        if all(np.isfinite(run.metrics.get(name, np.zeros(0))).any() for run in runs):
            return name
    return ""


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
    scored = with_score(runs)
    metric = score_of(scored) if scored else ""
    if not metric:
        return ""
    head = ("experiment", "seeds", "env steps", "mean [95%]", "interquartile mean [95%]", "lowest", "highest")
    rows, found = [], summaries(scored, metric)
    for s in found:
        mean, iqm = with_interval(s.mean, s.interval, number), with_interval(s.iqm, s.iqm_interval, number)
        steps = " to ".join(map(number, s.ends))
        rows.append((s.experiment, str(s.seeds), steps, mean, iqm, number(s.lowest), number(s.highest)))
    few = any(row[1] == "1" for row in rows)
    note = f"{metric}, the last value of each run." + (" One seed has no interval." if few else "")
    note += f" {UNEQUAL[0].upper()}{UNEQUAL[1:]}" if any(len(s.ends) > 1 for s in found) else ""
    note += "".join(f" {line}" for line in repeated_seeds(scored))
    if test := difference_text(scored, metric):
        note += f" {test[0].upper()}{test[1:]}."
    without = [run.name for run in runs if run not in scored]
    note += f" Without a score: {', '.join(without)}." if without else ""
    return f'{_table(head, rows, "numbers")}<p class="legend">{escape(note)}</p>'


def _settings(groups: Mapping[str, Sequence[Run]]) -> str:
    """Return every option, and fact of the machine, that differs between runs, with the values of each experiment."""
    runs = [run for own in groups.values() for run in own]
    facts = {id(run): flat_options(run.config) | _facts(run) for run in runs}
    names = dict.fromkeys(name for run in runs for name in _facts(run))
    differing = [name for name in names if len({facts[id(run)].get(name) for run in runs}) > 1]
    differing += differing_options(runs)
    rows = [
        (name, *(", ".join(dict.fromkeys(_shown(facts[id(run)].get(name)) for run in own)) for own in groups.values()))
        for name in differing
    ]
    return _table(("setting", *groups), rows) if rows else "<p>All runs have the same settings, commit and machine.</p>"


def _facts(run: Run) -> dict[str, str]:
    """Return the algorithm and origin of a run."""
    agent = run.config.get("fields", {}).get("agent") or {}
    algorithm = str(agent.get("$type", "?")).rpartition(":")[2]
    facts = {"algorithm": algorithm}
    for what in ("commit", "packages", "hardware"):
        found = run.environment.get(what)
        entries = found if isinstance(found, dict) else {"": found}
        facts |= {f"{what}.{name}".removesuffix("."): str(value) for name, value in entries.items()}
    return facts


def _shown(value: object) -> str:
    text = "-" if value is None else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _runs(runs: Sequence[Run]) -> str:
    """Return a line for each run: how it ended, its env steps, its score."""
    scored, rows = with_score(runs), list[Sequence[str]]()
    metric = score_of(scored) if scored else ""
    for run in runs:
        steps = run.metrics.get("env_steps", np.zeros(0))
        score = number(float(run.curve(metric)[1][-1])) if metric and run in scored else "-"
        at = number(float(steps.max())) if steps.size else "-"
        rows.append((run.name, how_it_ended(run.folder.path), at, score))
    return _table(("run", "ended", "env steps", "score"), rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], kind: str = "") -> str:
    titles = "".join(f"<th>{escape(title)}</th>" for title in head)
    lines = "".join(
        f"<tr><th>{escape(row[0])}</th>{''.join(f'<td>{escape(cell)}</td>' for cell in row[1:])}</tr>" for row in rows
    )
    table = f'<table class="{kind}"><thead><tr>{titles}</tr></thead><tbody>{lines}</tbody></table>'
    return f'<div class="scroll">{table}</div>'
