"""The pages of `jsrl watch`: the runs of a folder, each rendered again only when its files have changed."""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import msgspec

from jsrl.errors import ConfigError, counted
from jsrl.intervals import score_of
from jsrl.services.metrics.display_state import clock, short
from jsrl.services.runs.runs import RunFolder, last_values
from jsrl.services.runs.state import held_by, read_result
from jsrl.tools.report.html import body
from jsrl.tools.report.page import RUNS, UNREADABLE, Html, Table, badge, header
from jsrl.tools.report.run_report import how_it_ended, make_report

# files whose changes update a run's page
SIGNS = ("metrics.jsonl", "result.json", "experiment.json", "videos/videos.json")
# a folder with one of these is a run, perhaps incomplete
MARKS = ("experiment.json", "environment.json", "metrics.jsonl")
TITLES = ("run", "state", "env steps", "per second", "score", "last update")
MOST_PAGES = 32  # kept in memory
# what took longer than this is rendered again only after REST times as long, for a tenth of a core
LONG_S, REST = 0.5, 9
T = TypeVar("T")


@dataclass(frozen=True)
class RunPage:
    """A run's page: its content as HTML, and the files it may link, relative to the run's folder."""

    content: str
    files: frozenset[str] = frozenset()


@dataclass(frozen=True)
class RunRow:
    """A run's line in the list.

    Attributes:
      updated_s: when its metrics last changed, in seconds since 1970; 0: it has none. hint: details of its state.
    """

    state: str
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
        return steps, short(self.rate), self.score or "-", age(self.updated_s)


class Live:
    """The runs in a folder. Several threads may use it.

    Attributes:
      rendered: number of pages and lines rendered so far; unchanged ones are not rendered again.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.rendered = 0
        self._pages = _Kept(self._make_page, MOST_PAGES)
        self._rows = _Kept(self._make_row, 100_000)

    def runs(self) -> dict[str, Path]:
        """Return name -> folder of every run in the folder; links to other folders are left out."""
        found: dict[str, Path] = {}
        for pattern in [f"{depth}/{mark}" for depth in ("*", "*/*") for mark in MARKS]:
            for path in self.folder.glob(pattern):
                run = path.parent
                if run.resolve().is_relative_to(self.folder):
                    found[run.relative_to(self.folder).as_posix()] = run
        return found

    def page(self, name: str) -> RunPage | None:
        """Return the page of a run; None: there is no run of this name."""
        path = self.runs().get(name)
        if path is None:
            return None
        return self._pages.get(path)

    def file(self, name: str, relative: str) -> Path | None:
        """Return the path of a file that a run's page links; None: it has no such link."""
        page = self.page(name)
        if page is None or relative not in page.files:
            return None
        path = (self.folder / name / relative).resolve()
        return path if path.is_relative_to(self.folder / name) else None

    def index(self) -> str:
        """Return the list of all runs as HTML, the last changed first."""
        rows = {name: self._rows.get(path) for name, path in self.runs().items()}
        running = sum(row.state == RUNS for row in rows.values())
        top = header(self.folder.name, rest=f"<p>{counted(len(rows), 'run')}, {running} running</p>")
        if not rows:
            return f"{top}<section>There is no run in this folder yet. It appears here when it starts.</section>"
        newest = sorted(rows.items(), key=lambda entry: (entry[1].state != RUNS, -entry[1].updated_s))
        table = Table(TITLES, [_line(name, row) for name, row in newest], "numbers", words=(1,))
        return f"{top}<section>{table.html()}</section>"

    def _make_page(self, path: Path) -> RunPage:
        self.rendered += 1
        name = path.relative_to(self.folder).as_posix()
        try:
            report = make_report(RunFolder(path))
            return RunPage(body(report), frozenset([*report.files, *report.videos]))
        except Exception as error:  # half-written, damaged, or of a user's code that is missing here: shown on its page
            what = f"{type(error).__name__}: {error}"
            rest = f'<div class="error">{escape(what)}</div><p>The page follows when its files can be read.</p>'
            return RunPage(header(name, badge=badge(UNREADABLE), rest=rest))

    def _make_row(self, path: Path) -> RunRow:
        self.rendered += 1
        try:
            return row_of(path)
        except Exception as error:  # as for the page
            return RunRow(UNREADABLE, hint=str(error))


class _Kept(Generic[T]):
    """Values computed from run folders, kept until one of a folder's files changes, and longer if they took long."""

    def __init__(self, make: Callable[[Path], T], most: int) -> None:
        self._make, self._most = make, most
        self._kept: OrderedDict[Path, tuple[Any, float, T]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, path: Path) -> T:
        with self._lock:
            sign, begun_s = signature(path), time.monotonic()
            kept_sign, due_s, _ = self._kept.get(path, (None, 0.0, None))
            if path not in self._kept or (kept_sign != sign and begun_s >= due_s):
                value, ended_s = self._make(path), time.monotonic()
                took_s = ended_s - begun_s
                self._kept[path] = sign, ended_s + (REST * took_s if took_s > LONG_S else 0.0), value
            self._kept.move_to_end(path)
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
            return self._kept[path][2]


def signature(run: Path) -> tuple[Any, ...]:
    """Return a value that changes with a run's page: times and sizes of files, and whether it is running."""
    found: list[Any] = [held_by(run)]
    for name in SIGNS:
        try:
            facts = os.stat(run / name)
            found.append((facts.st_mtime_ns, facts.st_size))
        except OSError:
            found.append(None)
    return tuple(found)


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


def _line(name: str, row: RunRow) -> tuple[str, ...]:
    link = Html(f'<a href="run/{quote(name)}/">{escape(name)}</a>')
    return link, badge(row.state, row.hint), *row.cells


def age(updated_s: float) -> str:
    """Return the time since something happened as text: seconds and minutes, then the date."""
    if not updated_s:
        return "-"
    passed_s = time.time() - updated_s
    if passed_s < 3600:
        return f"{clock(max(passed_s, 0.0))} ago"
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(updated_s))
