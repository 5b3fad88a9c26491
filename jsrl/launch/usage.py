"""What the worker processes take of the machine: resident memory and CPU time, by kind."""

from __future__ import annotations

import time
from collections.abc import Iterable

import psutil

from jsrl.launch.processes import Process


class Usage:
    """Samples processes; between two samples lies the time that CPU shares refer to."""

    def __init__(self) -> None:
        self._known: dict[int, psutil.Process] = {}
        self._cpu_s: dict[int, float] = {}
        self._sampled_s = time.monotonic()

    def sample(self, processes: Iterable[Process]) -> dict[str, float]:
        """Return `system/KIND_rss_mb` and `system/KIND_cpu_share` (in cores) since the last sample."""
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
            cpu_s[pid] = times.user + times.system
            kind = f"system/{process.job.kind.replace('-', '_')}"
            share = (cpu_s[pid] - self._cpu_s.get(pid, cpu_s[pid])) / passed_s
            metrics[f"{kind}_rss_mb"] = metrics.get(f"{kind}_rss_mb", 0.0) + resident / 1e6
            metrics[f"{kind}_cpu_share"] = metrics.get(f"{kind}_cpu_share", 0.0) + share
        self._cpu_s = cpu_s
        return metrics
