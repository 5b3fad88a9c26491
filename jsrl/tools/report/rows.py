"""A line for each run of a folder, in `jsrl status` and `jsrl watch`."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from jsrl.errors import ConfigError
from jsrl.intervals import score_of
from jsrl.services.metrics.display_state import clock, short
from jsrl.services.runs.runs import RunFolder, last_values
from jsrl.services.runs.state import held_by, read_result
from jsrl.tools.report.page import RUNS
from jsrl.tools.report.run_report import how_it_ended

TITLES = ("run", "state", "environment", "env steps", "per second", "score", "last update")
CHANGING = ("metrics.jsonl", "result.json", "experiment.json", "videos/videos.json")


@dataclass(frozen=True)
class RunRow:
    """A run's line in the list.

    Attributes:
      updated_s: when its metrics last changed, in seconds since 1970; 0: it has none. hint: details of its state.
    """

    state: str
    env: str = "-"
    env_steps: float | None = None
    total_env_steps: float | None = None
    rate: float | None = None
    score: str = ""
    updated_s: float = 0.0
    hint: str = ""

    @property
    def cells(self) -> tuple[str, ...]:
        steps = short(self.env_steps)
        if self.env_steps is not None and self.total_env_steps:
            steps += f" / {short(self.total_env_steps)} ({100 * self.env_steps / self.total_env_steps:.0f}%)"
        return self.env, steps, short(self.rate), self.score or "-", age(self.updated_s)


def row_of(run: Path) -> RunRow:
    """Return a run's line in the list, from the end of its metrics."""
    fields = RunFolder(run).config.get("fields", {})
    result = read_result(run)
    running = not result and bool(held_by(run))
    last, updated_s = last_values(run / "metrics.jsonl")
    score = result.get("final") or result.get("evaluation") or {}
    names = ("evaluator/win_rate", "evaluator/return_mean", "actor/return_mean")
    value = score_of(score) if score else next((last[name] for name in names if name in last), None)
    row = RunRow(
        state=RUNS if running else how_it_ended(run),
        env=RunFolder(run).env_id,
        env_steps=result.get("env_steps", last.get("env_steps")),
        total_env_steps=fields.get("total_env_steps"),
        rate=last.get("actor/env_steps_per_s") if running else None,
        score="" if value is None else short(float(value)),
        updated_s=updated_s,
    )
    try:
        return msgspec.convert(vars(row), RunRow)
    except ValueError as error:
        raise ConfigError(f"a file of {run} is damaged ({error}).") from None


def signature(run: Path) -> tuple[Any, ...]:
    """Return a value that changes with a run's line and page: times and sizes of files, and whether it is running."""
    found: list[Any] = [held_by(run)]
    for name in CHANGING:
        try:
            facts = os.stat(run / name)
            found.append((facts.st_mtime_ns, facts.st_size))
        except OSError:
            found.append(None)
    return tuple(found)


def age(updated_s: float) -> str:
    """Return the time since something happened as text: seconds and minutes, then the date."""
    if not updated_s:
        return "-"
    passed_s = time.time() - updated_s
    if passed_s < 3600:
        return f"{clock(max(passed_s, 0.0))} ago"
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(updated_s))
