"""The controller's log file, and that of a run in the background, which shows its output until it has begun."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jsrl.control.hooks import LiveRun

LOG, OUTPUT = "controller.log", "output.log"


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


class OutputToFolder:
    """A hook that redirects this process's output to the folder of its run once it begins."""

    name = "output"

    def on_start(self, run: LiveRun) -> None:
        """Redirect standard output and standard error."""
        redirect(run.folder / "logs" / OUTPUT)


def redirect(path: Path) -> None:
    """Redirect the output of this process and its children to a file."""
    sys.stdout.flush()
    sys.stderr.flush()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
