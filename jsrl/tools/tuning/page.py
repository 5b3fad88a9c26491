"""Results of a search: a table as text, and a page with the scores over the trials and over each option."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from jsrl.tools.report.charts import Axis, Series, chart
from jsrl.tools.report.page import Table, header, section, shell
from jsrl.tools.tuning.ranges import Range
from jsrl.tools.tuning.search import finished

WORDS = {"COMPLETE": "", "PRUNED": "pruned", "FAIL": "failed"}


def best_first(study: Any) -> list[Any]:
    """Return the trials that count, the best first; those without a score last."""
    scored = [trial for trial in finished(study) if trial.state.name == "COMPLETE"]
    others = [trial for trial in finished(study) if trial.state.name != "COMPLETE"]
    return sorted(scored, key=lambda trial: (-trial.value, trial.number)) + others


def trials_table(study: Any, ranges: Sequence[Range]) -> Table:
    rows = []
    for trial in best_first(study):
        values = [r.text(trial.params[r.option]) for r in ranges]
        score = f"{trial.value:.4g}{_spread(trial)}" if trial.state.name == "COMPLETE" else "-"
        wall_s = f"{trial.user_attrs.get('wall_s', 0):.0f}"
        rows.append((str(trial.number), score, WORDS[trial.state.name], *values, wall_s))
    return Table(("trial", "score", "", *(r.option for r in ranges), "seconds"), rows, "numbers")


def _spread(trial: Any) -> str:
    """Return the standard error over a trial's seeds; empty for one seed."""
    scores = trial.user_attrs.get("scores", [])
    if len(scores) < 2:
        return ""
    return f" ± {np.std(scores, ddof=1) / math.sqrt(len(scores)):.2g}"


def page(title: str, study: Any, ranges: Sequence[Range], command: str) -> str:
    """Return the page of a search; `command`: of the best trial."""
    sections = [
        header(title),
        section("The best trial", f"<pre>{escape(command)}</pre>" if command else ""),
        section("Scores", "".join(_charts(study, ranges)), "grid2"),
        section("Trials", trials_table(study, ranges).html()),
    ]
    return shell(title, "\n".join(one for one in sections if one))


def _charts(study: Any, ranges: Sequence[Range]) -> list[str]:
    """Return the history of the scores, and each option's values against the scores."""
    scored = [trial for trial in finished(study) if trial.state.name == "COMPLETE"]
    numbers = np.array([trial.number for trial in scored], float)
    scores = np.array([trial.value for trial in scored], float)
    if not scored:
        return []
    best = Series("best so far", numbers, np.maximum.accumulate(scores))
    drawn = [chart("score over the trials", "trial", [best, Series("a trial", numbers, scores, points=True)])]
    for r in ranges:
        values = [trial.params[r.option] for trial in scored]
        places = [r.choices.index(value) for value in values] if r.choices else values
        series = Series("a trial", np.array(places, float), scores, points=True)
        drawn.append(chart(f"score over {r.option}", r.option, [series], axis=Axis(r.is_log, r.choices)))
    return drawn
