"""CPU seconds and memory of a process and its descendants. Linux, standard library only.

The drivers of other libraries also use this file to measure themselves, in their own virtual environments.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PR_SET_CHILD_SUBREAPER = 36


class Stat(NamedTuple):
    """The relevant part of /proc/PID/stat: CPU seconds of the process and of children that it waited for."""

    parent: int
    state: str
    own_cpu_s: float
    waited_cpu_s: float


class Usage(NamedTuple):
    """CPU seconds of a tree so far (children that ended included), and its proportional set size."""

    cpu_s: float
    pss_mb: float
    processes: int


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends, so that daemons stay in this process's tree."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def parse_stat(text: str) -> Stat:
    """Return the parsed line of /proc/PID/stat; the command's name may contain spaces and brackets."""
    fields = text[text.rindex(")") + 2 :].split()
    user, system, waited_user, waited_system = (int(field) / TICKS_PER_S for field in fields[11:15])
    return Stat(int(fields[1]), fields[0], user + system, waited_user + waited_system)


def parse_rollup_mb(text: str) -> dict[str, float]:
    """Return megabytes (10^6 bytes) by their names in a smaps_rollup."""
    found = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if len(words) == 2 and words[1] == "kB":
            found[name] = int(words[0]) * 1024 / 1e6
    return found


def parse_pss_mb(text: str) -> float:
    """Return megabytes of the line `Pss:` of a smaps_rollup; 0 if it has none."""
    return parse_rollup_mb(text).get("Pss", 0.0)


def all_stats(proc: Path = PROC) -> dict[int, Stat]:
    """Return every process's Stat by its id."""
    stats = {}
    for entry in os.listdir(proc):
        if entry.isdigit():
            try:
                stats[int(entry)] = parse_stat((proc / entry / "stat").read_text())
            except (OSError, ValueError):  # it has just ended
                continue
    return stats


def tree(root: int, stats: dict[int, Stat]) -> list[int]:
    """Return the ids of a process and all its descendants."""
    children: dict[int, list[int]] = {}
    for pid, stat in stats.items():
        children.setdefault(stat.parent, []).append(pid)
    found, ahead = [], [root] if root in stats else []
    while ahead:
        pid = ahead.pop()
        found.append(pid)
        ahead += children.get(pid, [])
    return found


def cpu_seconds(root: int, proc: Path = PROC) -> float:
    """Return the CPU seconds of a process, its descendants, and those of them that ended and were waited for."""
    stats = all_stats(proc)
    return sum(stats[pid].own_cpu_s + stats[pid].waited_cpu_s for pid in tree(root, stats))


def pss_mb(pids: Iterable[int], proc: Path = PROC) -> float:
    """Return the proportional set size of processes: shared pages count once, split between the processes that map them."""
    total = 0.0
    for pid in pids:
        try:
            total += parse_pss_mb((proc / str(pid) / "smaps_rollup").read_text())
        except OSError:  # it has just ended, or is a zombie
            continue
    return total


def usage(root: int, proc: Path = PROC) -> Usage:
    """Return CPU seconds and memory of a tree; reading the memory costs some milliseconds per process."""
    stats = all_stats(proc)
    pids = tree(root, stats)
    cpu_s = sum(stats[pid].own_cpu_s + stats[pid].waited_cpu_s for pid in pids)
    return Usage(cpu_s, pss_mb(pids, proc), len(pids))


def start_time_s(pid: int, proc: Path = PROC) -> float:
    """Return the start time of a process, in seconds since the epoch (to a hundredth)."""
    text = (proc / str(pid) / "stat").read_text()
    ticks = int(text[text.rindex(")") + 2 :].split()[19])
    return time.time() - (float((proc / "uptime").read_text().split()[0]) - ticks / TICKS_PER_S)


def descendants() -> set[int]:
    """Return the ids of this process's descendants."""
    return set(tree(os.getpid(), all_stats())) - {os.getpid()}


def end_all(pids: Iterable[int]) -> None:
    """Kill processes, and wait for those that are children of this process."""
    pids = list(pids)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)


def end_tree(root: int) -> None:
    """Kill a process and all its descendants; the caller waits for it."""
    for pid in tree(root, all_stats()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
