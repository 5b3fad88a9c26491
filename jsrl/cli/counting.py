"""Progress of long work: one updated line on a terminal; elsewhere a line now and then."""

from __future__ import annotations

import time
from typing import TextIO

LIVE_S, LINES_S = 0.2, 30.0  # intervals on a terminal, and elsewhere


class Counting:
    """Shows progress, after a short delay, so that short work shows nothing."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._live = stream, stream.isatty()
        self._next_s = time.monotonic() + (LIVE_S if self._live else LINES_S)
        self._shown = False
        self.counted = ""  # the newest count

    def show(self, what: str, number: int, of: int) -> None:
        """Show that `number` of `of` are finished."""
        self.counted = f"{what}: {number:,} of {of:,}"
        if time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + (LIVE_S if self._live else LINES_S)
        self._stream.write(f"\r\x1b[K{self.counted[:118]}" if self._live else f"{self.counted}\n")
        self._stream.flush()
        self._shown = True

    def close(self) -> None:
        if self._live and self._shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
        self._shown = False
