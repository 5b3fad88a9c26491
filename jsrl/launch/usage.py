"""Resources of the machine: resident memory and CPU time of workers, by kind, and CPU time of other programs."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Collection

from jsrl.launch.launcher import Handle
from jsrl.launch.supervised import SupervisedWorker
from jsrl.workers.kinds import find_kind


class Usage:
    """Samples workers; CPU shares refer to the time between two samples.

    Make it before the workers start. Samples must be much more than 10 ms apart, the kernel's resolution of CPU time.

    Args:
      busy_s: of a launcher: CPU seconds of all other programs so far, workers included; None: unknown.
    """

    def __init__(self, busy_s: Callable[[], float | None]) -> None:
        self._cpu_s: dict[Handle, float] = {}
        self._sampled_s = time.monotonic()
        self._ask_busy_s = busy_s
        self._busy_s = busy_s()

    def sample(self, workers: Collection[SupervisedWorker]) -> dict[str, float]:
        """Return `system/KIND_rss_mb` and `system/KIND_cpu_share` (in cores) since the last sample.

        `system/others_cpu_share` is the CPU time of neither workers nor this process, `system/load` the machine's; both are
        absent if the CPU time is unknown.
        """
        now = time.monotonic()
        passed_s, self._sampled_s = max(now - self._sampled_s, 1e-6), now
        metrics: defaultdict[str, float] = defaultdict(float)
        names = {kind: f"system/{find_kind(kind).prefix}" for kind in {worker.job.kind for worker in workers}}
        cpu_s: dict[Handle, float] = {}
        for worker in workers:
            used = worker.handle.usage()
            if used is None:
                if worker.handle in self._cpu_s:
                    cpu_s[worker.handle] = self._cpu_s[worker.handle]
                continue
            name = names[worker.job.kind]
            cpu_s[worker.handle] = used.cpu_s
            share = (
                max(0.0, used.cpu_s - self._cpu_s.get(worker.handle, 0.0)) / passed_s
            )  # a new one started after the last sample
            metrics[f"{name}_rss_mb"] += used.resident_bytes / 1e6
            metrics[f"{name}_cpu_share"] += share
        busy_s = self._ask_busy_s()
        if busy_s is not None and self._busy_s is not None:
            ours_s = sum(spent - self._cpu_s.get(handle, 0.0) for handle, spent in cpu_s.items())
            metrics["system/others_cpu_share"] = max(0.0, busy_s - self._busy_s - ours_s) / passed_s
            metrics["system/load"] = os.getloadavg()[0]
        self._cpu_s, self._busy_s = cpu_s, busy_s
        return metrics
