"""The controller's log file."""

from __future__ import annotations

import time
from pathlib import Path

LOG = "controller.log"


class RunLog:
    """The controller's log: every line for the display, shown or not, with the time."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, line: str) -> None:
        """Append a line; the run continues without its log if the disk fails."""
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}\n")
        except OSError:
            return
