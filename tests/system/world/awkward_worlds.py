"""An environment whose module cannot be forked, or not imported by a worker, depending on an environment variable."""

from __future__ import annotations

import os
import threading
import time

from worlds import World, in_worker

if in_worker() and os.environ.get("AWKWARD") == "starts a thread":
    threading.Thread(target=time.sleep, args=(3600.0,), daemon=True).start()
if in_worker() and os.environ.get("AWKWARD") == "raises":
    raise ZeroDivisionError("the import gave up on purpose")


class Awkward(World):
    def __init__(self) -> None:
        super().__init__(count=-1)
