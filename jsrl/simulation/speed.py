"""The speed of a machine's cores, as seconds of one fixed computation, to compare machines and times of the day."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from jsrl.errors import ConfigError
from jsrl.simulation.times import ServiceTimes

REPEATS = 20
LOOP = "loop_s"  # its entry in ServiceTimes.machine
T = TypeVar("T")


def loop_s(repeats: int = REPEATS) -> float:
    """Return the median CPU seconds of a loop of Python and small NumPy calls, as in an actor's step; takes 0.2 s."""
    left, found = np.ones((32, 32), np.float32), list[float]()
    for _ in range(repeats):
        begin_s, total = time.thread_time(), 0.0
        for number in range(2_000):
            total += float((left @ left)[number % 32, 0]) + len(str(number))
        found.append(time.thread_time() - begin_s)
    return float(np.median(found))


def beside_loop(run: Callable[[], T]) -> tuple[T, float]:
    """Return a call's result, and the mean of `loop_s` before and after it."""
    before_s = loop_s()
    found = run()
    return found, (before_s + loop_s()) / 2


def core_speed(times: ServiceTimes) -> float:
    """Return the speed of this machine's cores over that of the calibrated ones.

    Raises:
      ConfigError: the times were measured without it.
    """
    calibrated_s = times.machine.get(LOOP)
    if not calibrated_s:
        raise ConfigError("these service times have no speed of the calibrated cores; calibrate again.")
    return calibrated_s / loop_s()
