"""A thread that makes calls for others, so that slow calls do not delay them."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable

MOST_WAITING = 1000


class CallThread:
    """Makes calls one after another in its own thread, which starts with the first call.

    Calls must not raise. The thread is a daemon: a call that never returns ends with the process.

    Attributes:
      dropped: calls that were refused because too many waited.
    """

    def __init__(self, name: str) -> None:
        """Name the thread; droppable calls are refused while MOST_WAITING calls wait."""
        self._name = name
        self._changed = threading.Condition()
        self._waiting: deque[Callable[[], object]] = deque()
        self._thread: threading.Thread | None = None
        self._busy = self._closed = False
        self.dropped = 0

    def put(self, call: Callable[[], object], *, may_drop: bool = False) -> bool:
        """Queue a call; return whether it was accepted (never blocks)."""
        with self._changed:
            if self._closed:
                return False
            if may_drop and len(self._waiting) >= MOST_WAITING:
                self.dropped += 1
                return False
            self._waiting.append(call)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            self._changed.notify_all()
        return True

    def wait(self, limit_s: float) -> bool:
        """Wait until all calls are finished; return whether that happened in time."""
        with self._changed:
            return self._changed.wait_for(lambda: not (self._waiting or self._busy), limit_s)

    def finish(self, until_s: float) -> int:
        """Wait for all calls until a time of the monotonic clock or Ctrl-C; make no calls afterwards.

        Returns:
          The number of unfinished calls.
        """
        with self._changed:
            with contextlib.suppress(KeyboardInterrupt):
                self._changed.wait_for(lambda: not (self._waiting or self._busy), max(until_s - time.monotonic(), 0.0))
            left = len(self._waiting) + self._busy
            self._waiting.clear()
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None and not left:
            self._thread.join()  # it ends at once
        return left

    def _run(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
                call, self._busy = self._waiting.popleft(), True
            call()
