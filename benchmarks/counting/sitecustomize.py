"""Write which files of jsrl a process imports and runs; one JSON file per process in the folder JSRL_COUNT_INTO.

Python imports this file at its start if the folder is on PYTHONPATH; only benchmarks/size.py puts it there. JSRL_COUNT says
what is counted: `imports` (files, when the process ends), `rows` (calls of each function while the file `go` exists), or
`option=TEXT` (files with a function that had a value of this text in its arguments, variables or result).
"""

from __future__ import annotations

import atexit
import collections
import json
import os
import sys
import threading
import time
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

WHAT, INTO = os.environ["JSRL_COUNT"], Path(os.environ["JSRL_COUNT_INTO"])
PACKAGE = os.path.join(os.environ["JSRL_COUNT_OF"], "jsrl") + os.sep
calls: collections.Counter[CodeType] = collections.Counter()
traced: set[str] = set()  # agents and networks run while jax traces them, before any row is counted
holders: set[str] = set()


def save() -> None:
    """Write what was counted. Later calls replace the file; the name of a forked process differs."""
    imported = [getattr(module, "__file__", None) or "" for module in list(sys.modules.values())]
    found: dict[str, Any] = {
        "words": sys.orig_argv,
        "imported": sorted({path for path in imported if path.startswith(PACKAGE)}),
        "calls": [[code.co_filename, code.co_qualname, number] for code, number in calls.items()],
        "traced": sorted(traced),
        "holders": sorted(holders),
    }
    (INTO / f"{os.getpid()}.json").write_text(json.dumps(found))


def count_rows(frame: FrameType, event: str, _: Any) -> None:
    """Count the calls of each function while rows are counted, and note agents and networks before."""
    if event != "call" or not frame.f_code.co_filename.startswith(PACKAGE):
        return
    if active[0]:
        calls[frame.f_code] += 1
    else:
        traced.add(frame.f_code.co_filename)


def holds(value: Any, text: str) -> bool:
    """Return whether a value is the option's, contains its text, or has it as an element or field."""
    if isinstance(value, float | int):
        return str(value) == text
    if isinstance(value, str):
        return text in value
    if isinstance(value, bytes):
        return text.encode() in value
    if isinstance(value, dict):
        return any(type(one) in (float, int, str) and holds(one, text) for one in list(value.values()))
    if isinstance(value, list | tuple | set):
        return any(type(one) in (float, int, str) and holds(one, text) for one in list(value))
    if hasattr(type(value), "__dataclass_fields__"):
        return any(type(one) in (float, int, str) and holds(one, text) for one in vars(value).values())
    return False


def find_holders(frame: FrameType, event: str, result: Any) -> None:
    """Note the file of a function that ends and has had the option's value."""
    path = frame.f_code.co_filename
    if event != "return" or path in holders or not path.startswith(PACKAGE):
        return
    sys.setprofile(None)
    try:
        if any(holds(value, WHAT.partition("=")[2]) for value in (*frame.f_locals.values(), result)):
            holders.add(path)
    finally:
        sys.setprofile(find_holders)


def follow() -> None:
    """Count while the file `go` exists."""
    while True:
        active[0] = (INTO / "go").exists()
        time.sleep(0.01)


def begin_thread() -> None:
    """Start the thread that looks for `go`; a fork has no threads."""
    calls.clear()
    threading.Thread(target=follow, daemon=True).start()


active = [False]
end_now = os._exit


def end(status: int) -> None:
    """Save before an end that calls no exit functions, as of a forked actor."""
    save()
    end_now(status)


os._exit = end  # type: ignore[assignment]
atexit.register(save)
if WHAT == "rows":
    if "actor-host" not in sys.orig_argv:
        begin_thread()
    os.register_at_fork(after_in_child=begin_thread)
    sys.setprofile(count_rows)
    threading.setprofile(count_rows)
elif WHAT.startswith("option="):
    sys.setprofile(find_holders)
    threading.setprofile(find_holders)
