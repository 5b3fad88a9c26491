"""The speed of a machine's cores, as seconds of one fixed computation, to compare machines and times of the day."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from jsrl.control.processes.launcher import machine_cpu_s
from jsrl.errors import ConfigError
from jsrl.tools.simulation.times import ServiceTimes

REPEATS = 20
ERROR = 0.2  # of the model, within which most layouts on quiet machines were; see docs/capacity.md
BUSY = 0.25  # of the cores, or difference between speeds, from which a calibration was disturbed
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


def busy_cores(seconds: float = 1.0) -> float:
    """Return how many cores all programs kept busy on average, while this one sleeps for some seconds."""
    before_s = machine_cpu_s()
    time.sleep(seconds)
    return round((machine_cpu_s() - before_s) / seconds, 2)


def spread(times: ServiceTimes) -> float:
    """Return how much slower the cores were in the slowest trial of a calibration than in the fastest; 0: equal."""
    found = [one[LOOP] for one in times.measured if one.get(LOOP)]
    return max(found) / min(found) - 1.0 if found else 0.0


def disturbed(times: ServiceTimes) -> str:
    """Return why the times of a calibration cannot be trusted, as text; empty: nothing is known against them."""
    busy, cores, slower = times.machine.get("busy_cores", 0.0), times.machine.get("cores", 1), spread(times)
    if busy > BUSY * cores:
        why = f"other programs kept {busy:g} of {cores} cores busy before it began"
    elif slower > BUSY:
        why = f"its cores were {slower:.0%} slower in one trial than in another"
    else:
        return ""
    return f"the machine was busy during the calibration: {why}. Calibrate again while nothing else runs"


def interval(env_steps_per_s: float, times: ServiceTimes) -> tuple[float, float]:
    """Return the speeds between which a real run is expected, from the model's error and the calibration's spread."""
    factor = 1.0 + ERROR + spread(times)
    return env_steps_per_s / factor, env_steps_per_s * factor


def core_speed(times: ServiceTimes) -> float:
    """Return the speed of this machine's cores over that of the calibrated ones."""
    calibrated_s = times.machine.get(LOOP)
    if not calibrated_s:
        raise ConfigError("these service times have no speed of the calibrated cores; calibrate again.")
    return calibrated_s / loop_s()
