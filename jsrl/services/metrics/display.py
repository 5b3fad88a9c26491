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

import sys
import time
from collections import deque
from collections.abc import Callable
from typing import IO, Protocol

from rich.console import Console

from jsrl.errors import ConfigError
from jsrl.references.importing import import_target
from jsrl.services.metrics.display_state import (
    LONG_S,
    DisplayState,
    Waiting,
    clock,
    names,
    percent,
    short,
)
from jsrl.services.runs.message_limits import printable

LIVE = "jsrl.services.metrics.live_display:LiveDisplay"  # imported on a terminal
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
GAP = "  "


class Display(Protocol):
    """Something that shows a run; calls never block for long and never raise because of the terminal."""

    def update(self, state: DisplayState, *, now: bool = False) -> None:
        """Show the current state (may be called at any rate: drawing is throttled, unless `now`)."""
        ...

    def message(self, text: str, level: str = "info") -> None:
        """Show a line of text; `level` is `info`, `warning`, `error` or `log`, which goes to the log file alone."""
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
        return import_target(LIVE)(console or Console(file=stream), log, interval_s=interval_s or 0.25)
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
        line = printable(text if level in ("info", "log") else f"{level}: {text}")
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


def plain_line(state: DisplayState, env_steps_per_s: float | None) -> str:
    """Return the state as one line: time, steps (share), steps/s, updates, returns, loss, entropy, lag, time to go.

    Before the first update it shows the waits of the start instead.
    """
    parts = [f"{clock(state.elapsed_s):>7}", steps_text("steps", state)]
    if state.time_share is not None:
        parts.append(time_text(state))
    if env_steps_per_s is not None:
        parts.append(f"{short(env_steps_per_s)} steps/s")
    if state.updates:
        parts.append(f"{state.prefix}updates {short(state.updates)}")
    parts += state.scores
    parts += [f"{title} {short(value)}" for title, value in learning_of(state)[:2]]
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
    return GAP.join(parts)


def steps_text(noun: str, state: DisplayState) -> str:
    """Return the env steps so far, with the total and its share, and game frames if a step has several."""
    of = f" / {short(state.total_env_steps)}" if state.total_env_steps else ""
    frames = f" [{short(state.env_steps * state.action_repeat)} frames]" if state.action_repeat != 1 else ""
    share = "" if state.steps_share is None else f" ({percent(state.steps_share)})"
    before = f"{short(state.env_steps)}{of}"
    return f"{noun} {before}{frames}{share}" if noun == "steps" else f"{before} {noun}{frames}{share}"


def time_text(state: DisplayState) -> str:
    minutes = (state.total_s or 0.0) / 60
    return f"{percent(state.time_share)} of {short(minutes)} minute{'' if minutes == 1 else 's'}"


def learning_of(state: DisplayState) -> list[tuple[str, float]]:
    values = [(title, state.metric(name)) for title, name in LEARNING]
    return [(title, value) for title, value in values if value is not None]


def _stage_text(stage: str, workers: list[Waiting]) -> str:
    longest_s = max(worker.for_s for worker in workers)
    return f"{names(workers, 2)}: {stage}" + (f" for {clock(longest_s)}" if longest_s >= LONG_S else "")
