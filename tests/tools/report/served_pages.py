"""The server of `jsrl watch` in a thread of the test."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

from jsrl.tools.report.watch import Server


@contextlib.contextmanager
def serving(runs_dir: Path) -> Iterator[Server]:
    """Serve the pages of the runs in a folder meanwhile."""
    with Server(runs_dir) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
