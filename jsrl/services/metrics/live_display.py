"""The display on a terminal: a picture of the run, redrawn in place."""

from __future__ import annotations

import math
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from jsrl.services.metrics.display import GAP, LineDisplay, Rate, learning_of, steps_text, time_text
from jsrl.services.metrics.display_state import (
    DisplayState,
    WorkerRow,
    clock,
    games_text,
    names,
    percent,
    short,
    sparkline,
)
from jsrl.services.runs.message_limits import printable

_STYLES = {"info": "", "warning": "yellow", "error": "bold red"}
_BAR_WIDTH = 48


class LiveDisplay:
    """A picture redrawn in place."""

    def __init__(self, console: Console, log: Callable[[str], None] | None, *, interval_s: float = 0.25):
        """Draw on `console`, at most every `interval_s`; lines go to `log` every 5 s as in log-only mode."""
        self._live = Live(console=console, auto_refresh=False, transient=False, redirect_stdout=False)
        self._messages: deque[tuple[str, str]] = deque(maxlen=6)
        self._behind = LineDisplay(sys.stderr, log, shown=(), lines=False, interval_s=5.0)
        self._interval_s = interval_s
        self._next_s = 0.0
        self._rate = Rate()
        self._state = DisplayState(run="")
        self._closed = False
        self._live.start()

    def update(self, state: DisplayState, *, now: bool = False) -> None:
        """Redraw when the last picture is old enough, `now`, or at once when a worker's stage changes."""
        if now or state.stages.keys() != self._state.stages.keys():
            self._next_s = 0.0
        self._state = state
        self._behind.update(state, now=now)
        self._draw()

    def message(self, text: str, level: str = "info") -> None:
        self._behind.message(text, level)
        if level == "log":
            return
        self._messages.append((level, printable(text)))
        self._next_s = 0.0
        self._draw()

    def close(self) -> None:
        if self._closed:
            return
        self._next_s = 0.0
        self._draw()
        self._closed = True
        self._behind.close()
        try:
            self._live.stop()
        except OSError:  # the terminal is gone
            pass

    def _draw(self) -> None:
        now_s = time.monotonic()
        if self._closed or now_s < self._next_s:
            return
        self._next_s = now_s + self._interval_s
        try:
            self._live.update(picture(self._state, self._rate(self._state), list(self._messages)), refresh=True)
        except OSError:  # the terminal is gone: the run continues without a picture
            self._closed = True


def picture(state: DisplayState, env_steps_per_s: float | None, messages: Sequence[tuple[str, str]]) -> RenderableType:
    """Return the whole picture for rich to print. messages: (level, text) of the newest messages."""
    parts: list[RenderableType] = [_header(state, env_steps_per_s)]
    parts += [Text(str(other)) for other in state.others]
    if state.waiting:
        parts.append(_waiting_list(state))
    elif state.start_s is None and state.workers:
        parts.append(Text("all workers are ready; waiting for the first update", style="italic"))
    if state.workers and (state.start_s is not None or not state.waiting):
        parts.append(_worker_table(state))
    parts += [Text(str(call)) for call in state.long_calls]
    if learning := [f"{title} {short(value)}" for title, value in learning_of(state)]:
        lags = [state.metric(f"learner/policy_lag_{what}") for what in ("mean", "p95", "max")]
        if any(value is not None for value in lags):
            learning.append("lag mean/p95/max " + "/".join(map(short, lags)))
        if (value := state.metric("actor/return_mean")) is not None:
            learning.append(f"training return {short(value)}")
        if (value := state.metric(f"actor/episode_{state.episode_metric}_mean")) is not None:
            learning.append(f"{state.episode_metric} {short(value)}")
        parts.append(_Facts(["learning:", *learning]))
    if state.evaluations:
        parts.append(_evaluations(state))
    if games := games_text(state.metric):
        parts.append(Text(games))
    if state.players:
        parts.append(_players(state))
    parts += [_Message(level, text) for level, text in messages]
    return Group(*parts)


class _Message:
    """A message; unless it is a warning, at most two lines are shown."""

    def __init__(self, level: str, text: str) -> None:
        self._level = level
        self._text = Text(text if level == "info" else f"{level}: {text}", style=_STYLES.get(level, ""))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        lines = list(self._text.wrap(console, options.max_width))
        if self._level == "info" and len(lines) > 2:
            lines[1:] = [Text(f"{lines[1].plain[: options.max_width - 1].rstrip()}…")]
        yield from lines


class _Facts:
    """Short texts side by side, in as many lines as the terminal needs; none of them is broken."""

    def __init__(self, texts: Sequence[str], style: str = "") -> None:
        self._texts, self._style = texts, style

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        line = Text(self._texts[0], style="")
        line.stylize(self._style)
        for text in self._texts[1:]:
            if line.cell_len + len(GAP) + len(text) > options.max_width:
                yield line
                line = Text(text)
            else:
                line.append(GAP + text)
        yield line


def _header(state: DisplayState, env_steps_per_s: float | None) -> RenderableType:
    share, to_go_s = state.share, state.to_go_s(env_steps_per_s)
    facts = [
        state.run,
        clock(state.elapsed_s),
        steps_text("env steps", state),
        "" if state.time_share is None else time_text(state),
        "" if env_steps_per_s is None else f"{short(env_steps_per_s)} steps/s",
        f"{state.prefix}{short(state.updates)} updates",
        "" if to_go_s is None else f"{clock(to_go_s)} to go",
    ]
    parts: list[RenderableType] = [_Facts([fact for fact in facts if fact], "bold")]
    if share is not None:
        filled = round(share * _BAR_WIDTH)
        parts.append(Text.assemble(("━" * filled, "green"), ("─" * (_BAR_WIDTH - filled), "dim")))
    return Group(*parts)


def _waiting_list(state: DisplayState) -> RenderableType:
    """Return the workers that are not ready, one line per stage, with the longest duration in seconds."""
    ready = sum(state.workers.values()) - len(state.waiting)
    starts = (
        "" if state.start_s is not None else f"starting: {ready} of {sum(state.workers.values())} workers are ready, "
    )
    table = Table(box=None, padding=(0, 2, 0, 2), show_header=False)
    for stage, workers in state.stages.items():
        table.add_row(names(workers), stage, clock(max(one.for_s for one in workers)))
    return Group(Text(f"{starts}waiting for", style="italic"), table)


def _worker_table(state: DisplayState) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for title, justify in (("worker", "left"), ("count", "right"), ("rate", "right"), ("queue", "right")):
        table.add_column(title, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    table.add_column("waits for")
    for kind, count in state.workers.items():
        row = state.rows.get(kind, WorkerRow())
        value = state.metric(row.rate)
        waits = [(what, state.metric(name)) for what, name in row.waits]
        table.add_row(
            kind,
            str(count),
            "" if value is None else f"{short(value)} {row.unit}",
            short(state.metric(row.queue)) if row.queue else "",
            ", ".join(f"{what} {percent(share)}" for what, share in waits if share is not None and share >= 0.005),
        )
    return table


def _players(state: DisplayState) -> Table:
    """Return the ratings, and the share of points that each row won against each column."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for title in ("", "player", "Elo", *(str(place + 1) for place in range(len(state.players)))):
        table.add_column(title, justify="left" if title == "player" else "right", no_wrap=True)
    for place, player in enumerate(state.players):
        spread = "" if math.isnan(player.half) else f" ± {player.half:.0f}"
        cells = ["-" if share is None else percent(share) for share in player.shares]
        table.add_row(str(place + 1), player.name, f"{player.elo:+.0f}{spread}", *cells)
    return table


def _evaluations(state: DisplayState) -> RenderableType:
    values = [value for _, value in state.evaluations]
    at, newest = state.evaluations[-1]
    spread = None if state.score_title != "return" else state.metric("evaluator/return_ci95")
    text = f"{short(newest)}" + (f" ± {short(spread)}" if spread else "")
    facts = [
        f"evaluation: {state.score_title} {text} at {short(at)} env steps",
        f"best {short(max(values))}",
        sparkline(values, 24),
    ]
    return _Facts(facts, "bold")
