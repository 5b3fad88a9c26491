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
from rich.live import Live

from jsrl.errors import ConfigError
from jsrl.metrics.display_state import DisplayState
from jsrl.metrics.picture import picture, plain_line
from jsrl.runs.door import printable

MODES = ("auto", "live", "plain", "quiet", "log-only")
RATE_WINDOW_S = 30.0
LEVELS = ("info", "warning", "error")


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

    Raises:
      ConfigError: the mode is unknown.
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
        """Write a message at once."""
        line = printable(text if level == "info" else f"{level}: {text}")
        if level in self._shown:
            self._write(line)
        if self._log is not None:
            self._log(line)

    def close(self) -> None:
        """Write the last line if it was not shown yet."""
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
        """Add a line to the last messages and redraw."""
        self._behind.message(text, level)
        self._messages.append((level, printable(text)))
        self._next_s = 0.0
        self._draw()

    def close(self) -> None:
        """Draw the last state and restore the terminal."""
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
