"""What the worker processes take of the machine: resident memory and CPU time, by kind; and what other programs take."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

from jsrl.launch.local.processes import Process
from jsrl.workers.kinds import find_kind


class Usage:
    """Samples processes; between two samples lies the time that CPU shares refer to."""

    def __init__(self) -> None:
        self._known: dict[int, psutil.Process] = {}
        self._cpu_s: dict[int, float] = {}
        self._sampled_s = time.monotonic()
        self._machine_s = machine_cpu_s()
        self._whole = owns_machine()
        self._own = psutil.Process()
        self._own_s = sum(self._own.cpu_times()[:2])

    def sample(self, processes: Iterable[Process]) -> dict[str, float]:
        """Return `system/KIND_rss_mb` and `system/KIND_cpu_share` (in cores) since the last sample.

        `system/others_cpu_share` is what neither a worker nor this process used; absent where this process may use only a
        part of the machine, because what others do on the rest does not matter here.
        """
        now = time.monotonic()
        passed_s, self._sampled_s = max(now - self._sampled_s, 1e-6), now
        metrics: dict[str, float] = {}
        cpu_s: dict[int, float] = {}
        for process in processes:
            pid = process.popen.pid
            if pid is None:  # forked by the actor host, and not told yet
                continue
            try:
                known = self._known.setdefault(pid, psutil.Process(pid))
                times = known.cpu_times()
                resident = known.memory_info().rss
            except psutil.Error:  # it has just ended: whoever watches it says so
                continue
            ended = getattr(times, "children_user", 0.0) + getattr(
                times, "children_system", 0.0
            )  # a recorder's encoders
            cpu_s[pid] = times.user + times.system + ended
            kind = f"system/{find_kind(process.job.kind).prefix}"
            share = (cpu_s[pid] - self._cpu_s.get(pid, cpu_s[pid])) / passed_s
            metrics[f"{kind}_rss_mb"] = metrics.get(f"{kind}_rss_mb", 0.0) + resident / 1e6
            metrics[f"{kind}_cpu_share"] = metrics.get(f"{kind}_cpu_share", 0.0) + share
        machine_s, own_s = machine_cpu_s(), sum(self._own.cpu_times()[:2])
        ours_s = own_s - self._own_s + sum(spent - self._cpu_s.get(pid, spent) for pid, spent in cpu_s.items())
        if self._whole:
            metrics["system/others_cpu_share"] = max(0.0, machine_s - self._machine_s - ours_s) / passed_s
        self._cpu_s, self._machine_s, self._own_s = cpu_s, machine_s, own_s
        return metrics


def owns_machine() -> bool:
    """Return whether this process may use every core (neither its affinity nor a container's quota says otherwise)."""
    try:
        quota = Path("/sys/fs/cgroup/cpu.max").read_text().split()[0]
    except (OSError, IndexError):
        quota = "max"
    return quota == "max" and len(os.sched_getaffinity(0)) == os.cpu_count()


def machine_cpu_s() -> float:
    """Return the CPU time that everything on this machine has used so far."""
    times = psutil.cpu_times()
    return times.user + times.system + getattr(times, "nice", 0.0)
