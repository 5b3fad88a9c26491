"""What this process may use of its machine: CPU cores and memory, by its affinity, its control groups and its Slurm job."""

from __future__ import annotations

import os
import re

from jsrl.linux import available_bytes, core_quotas, memory_limits

MIB = 1 << 20
RUNS_AT_ONCE = "JSRL_RUNS_AT_ONCE"  # variable of the runs that share what this process may use: their number


def usable_cores() -> int:
    """Return the CPU cores that this process may use."""
    cores = [allowed_cores(), *core_quotas()]
    if _is_in_slurm() and (given := os.environ.get("SLURM_CPUS_ON_NODE", "")).isdigit():
        cores.append(int(given) // _slurm_tasks_here())
    return max(1, min(cores))


def allowed_cores() -> int:
    """Return the CPU cores that this process is allowed to run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def owns_machine() -> bool:
    """Return whether this process may use every core."""
    return usable_cores() == os.cpu_count()


def machine_memory_bytes() -> int:
    """Return the memory of the machine, for all its jobs and containers."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def usable_memory_bytes() -> int:
    """Return the memory that this process and others of its job may use, whether it is free now or not."""
    found = [machine_memory_bytes(), *(limit for limit, _ in memory_limits())]
    for name, times in (("SLURM_MEM_PER_NODE", "1"), ("SLURM_MEM_PER_CPU", os.environ.get("SLURM_CPUS_ON_NODE", "0"))):
        given_mb = int(os.environ.get(name, "").rstrip("M") or 0) * int(times) if _is_in_slurm() else 0
        found += [(given_mb << 20) // _slurm_tasks_here()] if given_mb else []  # 0: all of the node
    return min(found)


def runs_at_once() -> int:
    """Return how many runs share the memory that this process may use."""
    return int(os.environ.get(RUNS_AT_ONCE, "1"))


def free_memory_bytes() -> int:
    """Return the memory that this process could use now; caches of files count as free."""
    return min(
        available_bytes() or machine_memory_bytes(),
        usable_memory_bytes(),
        *(limit - used for limit, used in memory_limits()),
    )


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
