"""Results of a search: a table as text, and a page with the scores over the trials and over each option."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from jsrl.report.charts import Axis, Series, chart
from jsrl.report.style import STYLE
from jsrl.tuning.ranges import Range
from jsrl.tuning.study import finished

WORDS = {"COMPLETE": "", "PRUNED": "pruned", "FAIL": "failed"}


def best_first(study: Any) -> list[Any]:
    """Return the trials that count, the best first; those without a score last."""
    scored = [trial for trial in finished(study) if trial.state.name == "COMPLETE"]
    others = [trial for trial in finished(study) if trial.state.name != "COMPLETE"]
    return sorted(scored, key=lambda trial: (-trial.value, trial.number)) + others


def rows(study: Any, ranges: Sequence[Range]) -> list[list[str]]:
    table = [["trial", "score", "", *(r.option for r in ranges), "seconds"]]
    for trial in best_first(study):
        values = [r.text(trial.params[r.option]) for r in ranges]
        score = f"{trial.value:.4g}{_spread(trial)}" if trial.state.name == "COMPLETE" else "-"
        wall_s = f"{trial.user_attrs.get('wall_s', 0):.0f}"
        table.append([str(trial.number), score, WORDS[trial.state.name], *values, wall_s])
    return table


def _spread(trial: Any) -> str:
    """Return the standard error over a trial's seeds; empty for one seed."""
    scores = trial.user_attrs.get("scores", [])
    if len(scores) < 2:
        return ""
    return f" ± {np.std(scores, ddof=1) / math.sqrt(len(scores)):.2g}"


def text_table(table: Sequence[Sequence[str]], most: int = 20) -> str:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    shown = table[: most + 1]
    lines = ["  ".join(w.rjust(n) for w, n in zip(row, widths, strict=True)).rstrip() for row in shown]
    left = len(table) - len(shown)
    return "\n".join([*lines, *([f"(and {left} more)"] if left else [])])


def page(title: str, study: Any, ranges: Sequence[Range], command: str) -> str:
    """Return the page of a search; `command`: of the best trial."""
    table = rows(study, ranges)
    head, *body = [[escape(word) for word in row] for row in table]
    lines = "".join(f"<tr>{''.join(f'<td>{word}</td>' for word in row)}</tr>" for row in body)
    titles = "".join(f"<th>{word}</th>" for word in head)
    best = f"<section><h2>The best trial</h2><pre>{escape(command)}</pre></section>" if command else ""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title><style>{STYLE}</style>'
        f"</head>\n<body><main><header><h1>{escape(title)}</h1></header>{best}\n"
        f'<section><h2>Scores</h2><div class="grid2">{"".join(_charts(study, ranges))}</div></section>\n'
        f'<section><h2>Trials</h2><div class="scroll"><table class="numbers"><thead><tr>{titles}</tr></thead>'
        f"<tbody>{lines}</tbody></table></div></section>\n</main></body></html>\n"
    )


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
