"""What this process may use of its machine: CPU cores and memory, by its affinity, its control groups and its Slurm job.

The limit of a job is in its own control group or in one above it. A container shows only its own, as the root.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

GROUPS, OWN_GROUPS, COUNTERS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup"), Path("/proc/vmstat")
MEMORY = Path("/proc/meminfo")
_MEMORY = (  # of versions 2 and 1: limit, use, and of that caches of files
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def usable_cores() -> int:
    """Return the CPU cores that this process may use."""
    cores = [len(os.sched_getaffinity(0)), *_quotas()]
    if _is_in_slurm() and (given := os.environ.get("SLURM_CPUS_ON_NODE", "")).isdigit():
        cores.append(int(given) // _slurm_tasks_here())
    return max(1, min(cores))


def owns_machine() -> bool:
    """Return whether this process may use every core."""
    return usable_cores() == os.cpu_count()


def machine_memory_bytes() -> int:
    """Return the memory of the machine, for all its jobs and containers."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def usable_memory_bytes() -> int:
    """Return the memory that this process and others of its job may use, whether it is free now or not."""
    found = [machine_memory_bytes(), *(limit for limit, _ in _memory_limits())]
    for name, times in (("SLURM_MEM_PER_NODE", "1"), ("SLURM_MEM_PER_CPU", os.environ.get("SLURM_CPUS_ON_NODE", "0"))):
        given_mb = int(os.environ.get(name, "").rstrip("M") or 0) * int(times) if _is_in_slurm() else 0
        found += [(given_mb << 20) // _slurm_tasks_here()] if given_mb else []  # 0: all of the node
    return min(found)


def free_memory_bytes() -> int:
    """Return the memory that this process could use now; caches of files count as free."""
    return min(_available_bytes(), usable_memory_bytes(), *(limit - used for limit, used in _memory_limits()))


def _available_bytes() -> int:
    found = (int(line.split()[1]) << 10 for line in _lines(MEMORY) if line.startswith("MemAvailable:"))
    return next(found, machine_memory_bytes())


def killed_for_memory() -> int:
    """Return how many processes of this process's control group the kernel has killed because memory ran out."""
    own = [group / name for group in _groups("memory")[:1] for name in ("memory.events", "memory.oom_control")]
    found = (_counts(path).get("oom_kill") for path in (*own, COUNTERS))  # the root has no counts of its own
    return next((count for count in found if count is not None), 0)


def _quotas() -> Iterator[int]:
    """Yield the cores that each of the control groups allows."""
    for group in _groups("cpu"):
        words = _words(group / "cpu.max") or _words(group / "cpu.cfs_quota_us") + _words(group / "cpu.cfs_period_us")
        if len(words) == 2 and words[0].isdigit():  # not `max` or -1
            yield round(int(words[0]) / int(words[1]))


def _memory_limits() -> Iterator[tuple[int, int]]:
    """Yield the memory that each of the control groups allows, and uses without caches of files, in bytes."""
    for group in _groups("memory"):
        for limit, used, caches in _MEMORY:
            if (words := _words(group / limit)) and words[0].isdigit():  # not `max`
                current = _words(group / used)
                cached = _counts(group / "memory.stat").get(caches, 0)
                yield int(words[0]), int(current[0]) - cached if current else 0


def _groups(controller: str) -> list[Path]:
    """Return the folders of this process's control group and of those above it, of both versions, its own first."""
    found = list[Path]()
    for line in _lines(OWN_GROUPS):
        _, controllers, name = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root, own = GROUPS / controllers, Path(name.lstrip("/"))
        found += [root / above for above in (own, *own.parents)]
    return [folder for folder in found if folder.is_dir()]


def _is_in_slurm() -> bool:
    """Return whether this process runs on a node of a Slurm job; a shell of salloc on another host has its variables, too."""
    return "SLURMD_NODENAME" in os.environ


def _slurm_tasks_here() -> int:
    """Return how many tasks of a Slurm step share this node; `2(x3),1` are those of nodes 0 to 3."""
    tasks = list[int]()
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", os.environ.get("SLURM_STEP_TASKS_PER_NODE", "")):
        tasks += [int(count)] * int(times or 1)
    node = int(os.environ.get("SLURM_NODEID", "0"))
    return max(1, tasks[node]) if node < len(tasks) else 1


def _counts(path: Path) -> dict[str, int]:
    """Return the lines `NAME COUNT` of a file of the kernel."""
    return {name: int(count) for name, count in (line.split() for line in _lines(path))}


def _words(path: Path) -> list[str]:
    return " ".join(_lines(path)).split()


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:  # there is no such group, or not Linux
        return []
