"""Sinks and hooks in threads of their own: their failures, blocking and slowness never stop or delay the run."""

from __future__ import annotations

import contextlib
import functools
import queue
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from jsrl.services.metrics.sinks import Line

MOST_WAITING = 1000


class CallThread:
    """Makes calls one after another in its own thread, which starts with the first call.

    Calls must not raise. The thread is a daemon: a call that never returns ends with the process.

    Attributes:
      dropped: calls that were refused because MOST_WAITING others waited.
    """

    def __init__(self, name: str) -> None:
        self._waiting: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._closed, self.dropped = False, 0

    def put(self, call: Callable[[], object], *, may_drop: bool = False) -> None:
        """Queue a call; never blocks."""
        if may_drop and self._waiting.qsize() >= MOST_WAITING:
            self.dropped += 1
        elif not self._closed:
            self._waiting.put(call)
            if not self._thread.ident:
                self._thread.start()

    def finish(self, until_s: float) -> int:
        """Wait for all calls until a time of the monotonic clock or Ctrl-C; make no calls afterwards.

        Returns:
          The number of unfinished calls.
        """
        self._closed = True
        if not self._thread.ident:
            return 0
        self._waiting.put(None)
        with contextlib.suppress(KeyboardInterrupt):
            self._thread.join(max(until_s - time.monotonic(), 0.0))
        if not self._thread.is_alive():
            return 0
        left = self._waiting.qsize()  # the present one, and those before the last, which is None
        with contextlib.suppress(queue.Empty):
            while True:
                self._waiting.get_nowait()
        self._waiting.put(None)
        return left

    def _run(self) -> None:
        while (call := self._waiting.get()) is not None:
            call()


class SinkThread:
    """Passes lines of metrics, videos and the end of a run to sinks (jsrl.services.metrics.sinks.Sink), one after another.

    Lines are dropped while too many wait; videos, start and end never are. A call that never returns keeps the others waiting.
    """

    def __init__(self, sinks: Iterable[Any]) -> None:
        self._sinks = list(sinks)
        self._thread = CallThread("jsrl-sinks")
        self._messages: deque[tuple[str, str]] = deque()
        self._complained: set[tuple[str, str]] = set()
        self._present: Any = None
        self._left = list(self._sinks)  # those that were not switched off and have not ended

    def start(self, config: dict[str, Any]) -> None:
        """Begin; a sink that cannot is switched off."""
        self._put("start", config)

    def write(self, line: Line) -> None:
        """Pass a line on, unless too many wait."""
        self._put("write", line, may_drop=True)
        if self._thread.dropped:
            slow = self._present
            which = ", ".join(map(name_of, self._sinks if slow is None else [slow]))
            self._complain("slow", "", f"too slow for this run: {which}; lines of metrics are dropped for sinks")

    def video(self, path: Path) -> None:
        self._put("video", path)

    def end(self, summary: dict[str, Any], limit_s: float) -> None:
        """Pass the outcome of the run on, wait for all sinks together no longer than `limit_s`, and report losses."""
        self._put("end", summary)
        if self._thread.finish(time.monotonic() + limit_s):
            for sink in list(self._left):
                abandon = getattr(sink, "abandon", None)
                advice = abandon() if abandon is not None else None
                text = f"{name_of(sink)} did not end within {limit_s:g} s (deadlines.sinks_s)"
                self._messages.append((f"{text}; {advice or 'the rest is lost for it'}", "warning"))
        if self._thread.dropped:
            self._messages.append((f"{self._thread.dropped} lines of metrics were dropped for sinks", "warning"))

    def messages(self) -> list[tuple[str, str]]:
        """Return new messages for the user, as (text, level)."""
        return [self._messages.popleft() for _ in range(len(self._messages))]

    def _put(self, method: str, value: Any, *, may_drop: bool = False) -> None:
        if self._sinks:
            self._thread.put(functools.partial(self._call_all, method, value), may_drop=may_drop)

    def _call_all(self, method: str, value: Any) -> None:
        for sink in list(self._left):
            self._present = sink
            if hasattr(sink, method):
                self._call(sink, method, value)
            if method == "end":
                self._left.remove(sink)
        self._present = None

    def _call(self, sink: Any, method: str, value: Any) -> None:
        name = name_of(sink)
        try:
            answer = getattr(sink, method)(value)
        except (Exception, SystemExit) as error:
            why = failure(error)
            if method == "start":
                self._left.remove(sink)
                self._complain(method, name, f"{name} could not be started ({why}); the run continues without it.")
            elif method == "write":
                text = f"metrics could not be written to {name} ({why}); lines are lost until it works again."
                self._complain(method, name, text)
            else:
                what = "a video could not be handed to" if method == "video" else "the end could not be written to"
                self._complain(method, name, f"{what} {name} ({why}).")
        else:
            if isinstance(answer, str):
                self._messages.append((answer, "info" if method == "start" else "warning"))

    def _complain(self, what: str, name: str, text: str) -> None:
        if (what, name) not in self._complained:
            self._complained.add((what, name))
            self._messages.append((text, "warning"))


def name_of(sink: Any) -> str:
    """Return the name of a sink for messages: its `path` or `name`, or its class."""
    return str(getattr(sink, "path", None) or getattr(sink, "name", None) or type(sink).__name__)


def failure(error: BaseException) -> str:
    """Return an error as short text, with the line that raised it unless it comes from the operating system."""
    if isinstance(error, OSError):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    where = f" in {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}: {error}{where}"
