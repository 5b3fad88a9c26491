"""The display of a run: a live picture on a terminal, elsewhere one compact line now and then.

| mode | shows |
|---|---|
| auto | live on a terminal, else plain |
| live | the waits of the start; then rates, losses, a table of worker kinds, evaluations, messages; redrawn in place |
| plain | one line every few seconds, messages at once |
| quiet | warnings and errors only |
| log-only | nothing; lines and messages go to the log |
"""

from __future__ import annotations

import math
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Protocol

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from jsrl.errors import ConfigError
from jsrl.metrics.display_state import (
    LONG_S,
    DisplayState,
    Waiting,
    WorkerRow,
    clock,
    games_text,
    names,
    percent,
    short,
    sparkline,
)
from jsrl.runs.door import printable

MODES = ("auto", "live", "plain", "quiet", "log-only")
RATE_WINDOW_S = 30.0
LEVELS = ("info", "warning", "error")
LEARNING = (  # the algorithm's metrics in the line about learning
    ("loss", "learner/loss"),
    ("entropy", "learner/entropy"),
    ("KL", "learner/approx_kl"),
    ("explained variance", "learner/explained_variance"),
    ("temperature", "learner/temperature"),
    ("epsilon", "learner/epsilon"),
)
_STYLES = {"info": "", "warning": "yellow", "error": "bold red"}
_BAR_WIDTH = 48
_GAP = "  "


class Display(Protocol):
    """Something that shows a run; calls never block for long and never raise because of the terminal."""

    def update(self, state: DisplayState, *, now: bool = False) -> None:
        """Show the current state (may be called at any rate: drawing is throttled, unless `now`)."""
        ...

    def message(self, text: str, level: str = "info") -> None:
        """Show a line of text; `level` is `info`, `warning` or `error`."""
        ...

    def close(self) -> None:
        """Show the last state and restore the terminal; may be called twice."""
        ...


def make_display(
    mode: str = "auto",
    *,
    log: Callable[[str], None] | None = None,
    stream: IO[str] | None = None,
    console: Console | None = None,
    interval_s: float | None = None,
) -> Display:
    """Return the display for a mode.

    Args:
      mode: one of MODES. log: takes every line and message too, in every mode (the controller's log file).
      stream: where to write (default: standard error, so that standard output stays free for results).
      console: a rich console instead of `stream`. interval_s: between pictures (0.25) or lines (5).
    """
    if mode not in MODES:
        raise ConfigError(f"display mode {mode!r} is unknown; choose one of {', '.join(MODES)}.")
    stream = stream or sys.stderr
    if mode == "auto":
        screen = console or Console(file=stream)
        mode = "live" if screen.is_terminal and not screen.is_dumb_terminal else "plain"
    if mode == "live":
        return LiveDisplay(console or Console(file=stream), log, interval_s=interval_s or 0.25)
    shown = {"plain": LEVELS, "quiet": ("warning", "error"), "log-only": ()}[mode]
    file = console.file if console is not None else stream
    return LineDisplay(file, log, shown=shown, lines=mode == "plain", interval_s=interval_s or 5.0)


class Rate:
    """Env steps per second over about the last half minute, from the first update on; each reader has its own."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, int]] = deque()

    def __call__(self, state: DisplayState) -> float | None:
        """Take a moment and return the rate; None before a second has passed since the first update."""
        if state.start_s is None:
            return None
        if not self._points or state.env_steps < self._points[-1][1]:
            self._points = deque([(state.start_s, state.start_env_steps)])
        self._points.append((state.elapsed_s, state.env_steps))
        while len(self._points) > 2 and self._points[1][0] <= state.elapsed_s - RATE_WINDOW_S:
            self._points.popleft()
        (first_s, first), (last_s, last) = self._points[0], self._points[-1]
        return (last - first) / (last_s - first_s) if last_s - first_s >= 1 else None


class LineDisplay:
    """Plain, quiet and log-only modes: lines of text, no control characters."""

    def __init__(
        self,
        stream: IO[str],
        log: Callable[[str], None] | None,
        *,
        shown: tuple[str, ...],
        lines: bool,
        interval_s: float,
    ):
        """Write messages of the levels in `shown`, and a line every `interval_s` when `lines`, to `stream`."""
        self._stream = stream
        self._log = log
        self._shown = shown
        self._lines = lines
        self._interval_s = interval_s
        self._next_s = 0.0
        self._rate = Rate()
        self._unseen: DisplayState | None = None

    def update(self, state: DisplayState, *, now: bool = False) -> None:
        """Write a line when the last one is old enough, or `now`."""
        self._unseen = state
        now_s = time.monotonic()
        if now or now_s >= self._next_s:
            self._next_s = now_s + self._interval_s
            self._line()

    def message(self, text: str, level: str = "info") -> None:
        line = printable(text if level == "info" else f"{level}: {text}")
        if level in self._shown:
            self._write(line)
        if self._log is not None:
            self._log(line)

    def close(self) -> None:
        self._line()

    def _line(self) -> None:
        if self._unseen is None:
            return
        line = plain_line(self._unseen, self._rate(self._unseen))
        self._unseen = None
        if self._lines:
            self._write(line)
        if self._log is not None:
            self._log(line)

    def _write(self, line: str) -> None:
        try:
            self._stream.write(line + "\n")
            self._stream.flush()
        except (OSError, ValueError):  # the reader of a pipe has gone, or the stream is closed: the run continues
            self._shown, self._lines = (), False


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


def plain_line(state: DisplayState, env_steps_per_s: float | None) -> str:
    """Return the state as one line: time, steps (share), steps/s, updates, returns, loss, entropy, lag, time to go.

    Before the first update it shows the waits of the start instead.
    """
    parts = [f"{clock(state.elapsed_s):>7}", _steps("steps", state)]
    if state.time_share is not None:
        parts.append(_time(state))
    if env_steps_per_s is not None:
        parts.append(f"{short(env_steps_per_s)} steps/s")
    if state.updates:
        parts.append(f"{state.prefix}updates {short(state.updates)}")
    parts += state.scores
    parts += [f"{title} {short(value)}" for title, value in _learning(state)[:2]]
    parts += map(str, state.others)
    if (elo := state.metric("director/elo_latest")) is not None:
        parts.append(f"Elo {elo:+.0f}")
    if (lag := state.metric("learner/policy_lag_mean")) is not None:
        parts.append(f"lag {short(lag)}")
    if (to_go_s := state.to_go_s(env_steps_per_s)) is not None:
        parts.append(f"{clock(to_go_s)} to go")
    if state.waiting:
        parts.append("; ".join(_stage_text(stage, workers) for stage, workers in state.stages.items()))
    parts += map(str, state.long_calls)
    return _GAP.join(parts)


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
    if learning := [f"{title} {short(value)}" for title, value in _learning(state)]:
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
            if line.cell_len + len(_GAP) + len(text) > options.max_width:
                yield line
                line = Text(text)
            else:
                line.append(_GAP + text)
        yield line


def _steps(noun: str, state: DisplayState) -> str:
    """Return the env steps so far, with the total and its share, and game frames if a step has several."""
    of = f" / {short(state.total_env_steps)}" if state.total_env_steps else ""
    frames = f" [{short(state.env_steps * state.action_repeat)} frames]" if state.action_repeat != 1 else ""
    share = "" if state.steps_share is None else f" ({percent(state.steps_share)})"
    before = f"{short(state.env_steps)}{of}"
    return f"{noun} {before}{frames}{share}" if noun == "steps" else f"{before} {noun}{frames}{share}"


def _time(state: DisplayState) -> str:
    minutes = (state.total_s or 0.0) / 60
    return f"{percent(state.time_share)} of {short(minutes)} minute{'' if minutes == 1 else 's'}"


def _learning(state: DisplayState) -> list[tuple[str, float]]:
    values = [(title, state.metric(name)) for title, name in LEARNING]
    return [(title, value) for title, value in values if value is not None]


def _header(state: DisplayState, env_steps_per_s: float | None) -> RenderableType:
    share, to_go_s = state.share, state.to_go_s(env_steps_per_s)
    facts = [
        state.run,
        clock(state.elapsed_s),
        _steps("env steps", state),
        "" if state.time_share is None else _time(state),
        "" if env_steps_per_s is None else f"{short(env_steps_per_s)} steps/s",
        f"{state.prefix}{short(state.updates)} updates",
        "" if to_go_s is None else f"{clock(to_go_s)} to go",
    ]
    parts: list[RenderableType] = [_Facts([fact for fact in facts if fact], "bold")]
    if share is not None:
        filled = round(share * _BAR_WIDTH)
        parts.append(Text.assemble(("━" * filled, "green"), ("─" * (_BAR_WIDTH - filled), "dim")))
    return Group(*parts)


def _stage_text(stage: str, workers: list[Waiting]) -> str:
    longest_s = max(worker.for_s for worker in workers)
    return f"{names(workers, 2)}: {stage}" + (f" for {clock(longest_s)}" if longest_s >= LONG_S else "")


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
    text = f"{short(newest)}" + ("" if spread is None else f" ± {short(spread)}")
    facts = [
        f"evaluation: {state.score_title} {text} at {short(at)} env steps",
        f"best {short(max(values))}",
        sparkline(values, 24),
    ]
    return _Facts(facts, "bold")
