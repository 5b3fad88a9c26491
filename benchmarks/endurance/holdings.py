"""Resources of processes: memory, descriptors, threads, mapped segments. Linux, standard library only."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from benchmarks.process_tree import PROC, all_stats, parse_rollup_mb, tree

SHARED = "/dev/shm/"


class Holdings(NamedTuple):
    """Resources of one process: megabytes (10^6 bytes) resident, proportional and private; counts of the rest."""

    rss_mb: float
    pss_mb: float
    uss_mb: float
    descriptors: int
    threads: int
    segments: int


def parse_rollup(text: str) -> tuple[float, float, float]:
    """Return (RSS, PSS, USS) in megabytes of a smaps_rollup."""
    found = parse_rollup_mb(text)
    private = found.get("Private_Clean", 0.0) + found.get("Private_Dirty", 0.0) + found.get("Private_Hugetlb", 0.0)
    return found.get("Rss", 0.0), found.get("Pss", 0.0), private


def parse_segments(text: str) -> int:
    """Return the number of shared-memory files in a /proc/PID/maps, including those already removed."""
    files = set()
    for line in text.splitlines():
        words = line.split(maxsplit=5)
        if len(words) == 6 and words[5].startswith(SHARED):
            files.add((words[3], words[4]))  # device and inode
    return len(files)


def holdings(pid: int, proc: Path = PROC) -> Holdings | None:
    """Return the resources of a process; None if it has just ended, or is a zombie."""
    folder = proc / str(pid)
    try:
        rss_mb, pss_mb, uss_mb = parse_rollup((folder / "smaps_rollup").read_text())
        descriptors, threads = len(os.listdir(folder / "fd")), len(os.listdir(folder / "task"))
        segments = parse_segments((folder / "maps").read_text(errors="replace"))
    except (OSError, ValueError):
        return None
    return Holdings(rss_mb, pss_mb, uss_mb, descriptors, threads, segments) if rss_mb else None


def named_tree(root: int, root_name: str, proc: Path = PROC) -> dict[str, int]:
    """Return name -> process id of a run's processes: workers by their names, other processes by their command."""
    found = {root_name: root}
    for pid in tree(root, all_stats(proc)):
        if pid == root:
            continue
        try:
            words = (proc / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
            shown = (proc / str(pid) / "comm").read_text().strip()
        except OSError:
            continue
        name = words[words.index("--name") + 1] if "--name" in words[:-1] else shown
        found[name if name not in found else f"{name} ({pid})"] = pid
    return found


def folder_usage(folder: Path) -> tuple[int, float]:
    """Return (files, megabytes on disk) of a folder and its subfolders."""
    files, size_bytes = 0, 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                stat = os.lstat(os.path.join(path, name))
            except OSError:
                continue
            files, size_bytes = files + 1, size_bytes + 512 * stat.st_blocks
    return files, size_bytes / 1e6
