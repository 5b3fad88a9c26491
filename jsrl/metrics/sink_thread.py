"""A sink in its own thread: failures, blocking and slowness never stop or delay the run."""

from __future__ import annotations

import functools
import time
import traceback
from collections import deque
from pathlib import Path
from typing import Any

from jsrl.metrics.call_thread import CallThread
from jsrl.metrics.sinks import Line


class SinkThread:
    """Passes lines of metrics, videos and the end of a run to a sink.

    Lines are dropped while too many wait; videos, start and end never are.
    """

    def __init__(self, sink: Any) -> None:
        """Take a sink (jsrl.metrics.sinks.Sink); methods may be missing."""
        self._sink = sink
        self._thread = CallThread(f"jsrl-sink-{type(sink).__name__}")
        self._messages: deque[tuple[str, str]] = deque()
        self._complained: set[str] = set()
        self._off = False

    @property
    def name(self) -> str:
        """Return the name of the sink for messages: its `path` or `name`, or its class."""
        return str(getattr(self._sink, "path", None) or getattr(self._sink, "name", None) or type(self._sink).__name__)

    def start(self, config: dict[str, Any]) -> None:
        """Begin; a sink that cannot is switched off."""
        self._put("start", config)

    def write(self, line: Line) -> None:
        """Pass a line on, unless too many wait."""
        self._put("write", line, may_drop=True)
        if self._thread.dropped:
            self._complain("slow", f"{self.name} is slower than the run: lines of metrics are dropped for it")

    def video(self, path: Path) -> None:
        """Pass a video's path on."""
        self._put("video", path)

    def settle(self, limit_s: float) -> bool:
        """Wait until nothing is queued; return whether that happened in time."""
        return self._thread.wait(limit_s)

    def end(self, summary: dict[str, Any]) -> None:
        """Pass the outcome of the run on; `finish` waits for it."""
        self._put("end", summary)

    def finish(self, until_s: float, limit_s: float) -> None:
        """Wait for all calls until a time of the monotonic clock, and report losses; `limit_s`: for the message."""
        if self._thread.finish(until_s):
            abandon = getattr(self._sink, "abandon", None)
            advice = abandon() if abandon is not None else None
            text = f"{self.name} did not end within {limit_s:g} s (deadlines.sinks_s); {advice or 'the rest is lost for it'}"
            self._messages.append((text, "warning"))
        if self._thread.dropped:
            self._messages.append((f"{self._thread.dropped} lines of metrics were dropped for {self.name}", "warning"))

    def messages(self) -> list[tuple[str, str]]:
        """Return new messages for the user, as (text, level)."""
        return [self._messages.popleft() for _ in range(len(self._messages))]

    def _put(self, method: str, value: Any, *, may_drop: bool = False) -> None:
        call = getattr(self._sink, method, None)
        if call is not None and not self._off:
            self._thread.put(functools.partial(self._call, method, call, value), may_drop=may_drop)

    def _call(self, method: str, call: Any, value: Any) -> None:
        """Make a call, and report its first failure."""
        if self._off:
            return
        try:
            answer = call(value)
        except (Exception, SystemExit) as error:
            why = failure(error)
            if method == "start":
                self._off = True
                self._complain(method, f"{self.name} could not be started ({why}); the run continues without it.")
            elif method == "write":
                self._complain(
                    method, f"metrics could not be written to {self.name} ({why}); lines are lost until it works again."
                )
            else:
                what = "a video could not be handed to" if method == "video" else "the end could not be written to"
                self._complain(method, f"{what} {self.name} ({why}).")
        else:
            if isinstance(answer, str):
                self._messages.append((answer, "info" if method == "start" else "warning"))

    def _complain(self, key: str, text: str) -> None:
        if key not in self._complained:
            self._complained.add(key)
            self._messages.append((text, "warning"))


def failure(error: BaseException) -> str:
    """Return an error as short text, with the line that raised it unless it comes from the operating system."""
    if isinstance(error, OSError):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    where = f" in {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}: {error}{where}"


def finish_all(sinks: list[SinkThread], summary: dict[str, Any], limit_s: float) -> None:
    """End sinks in parallel, and wait for all of them together no longer than `limit_s`."""
    until_s = time.monotonic() + limit_s
    for sink in sinks:
        sink.end(summary)
    for sink in sinks:
        sink.finish(until_s, limit_s)
