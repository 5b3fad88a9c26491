"""Stacks of this process's threads, as text."""

from __future__ import annotations

import sys
import threading
import traceback

MAX_FRAMES, MAX_STACKS_CHARS = 60, 1 << 16  # of one thread, of all


def main_stack() -> str:
    """Return the main thread's stack, as text."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return "".join(traceback.format_stack(frame)) if frame is not None else ""


def all_stacks() -> str:
    """Return the Python stack of every thread, the main thread first, as text of bounded length."""
    names, main = {thread.ident: thread.name for thread in threading.enumerate()}, threading.main_thread().ident
    frames = sorted(sys._current_frames().items(), key=lambda entry: entry[0] != main)
    parts = [
        f"thread {names.get(number, 'of C code')}:\n" + "".join(traceback.format_stack(frame, MAX_FRAMES))
        for number, frame in frames
    ]
    return "".join(parts)[:MAX_STACKS_CHARS]
