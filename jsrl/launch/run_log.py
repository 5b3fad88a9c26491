"""The controller's log file, and that of a run in the background, which shows its output until it has begun."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from jsrl.launch.hooks import LiveRun

LOG, OUTPUT = "controller.log", "output.log"
LOOK_S = 0.1  # between looks at a run that is starting


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


def await_begin(child: subprocess.Popen[bytes], has_begun: Callable[[], bool], output: IO[bytes]) -> bool:
    """Return whether a run has begun; False: its process has ended. Shows its output meanwhile."""
    shown = 0
    while True:
        ended, begun = child.poll() is not None, has_begun()
        text = os.pread(output.fileno(), 1 << 20, shown)
        shown += len(text)
        sys.stderr.write(text.decode(errors="replace"))
        sys.stderr.flush()
        if begun or ended:
            return begun
        time.sleep(LOOK_S)
