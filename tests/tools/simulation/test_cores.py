"""The cores of the model: short jobs take turns, long ones share, and both have their part."""

from __future__ import annotations

import math
import random

import pytest

from jsrl.tools.simulation.events import Clock, Pause
from jsrl.tools.simulation.resources import Cores


def test_short_jobs_take_turns_and_wait_as_pollaczek_and_khinchine_say():
    """M/D/1: mean wait = rho s / (2 (1 - rho))."""
    clock, draw, service_s, load, waits = Clock(), random.Random(1), 0.001, 0.7, list[float]()
    core = Cores(clock, 1.0, 1.0)

    def job():
        came = clock.now
        yield core.use(service_s)
        waits.append(clock.now - came - service_s)

    def arrivals():
        while True:
            yield Pause(draw.expovariate(load / service_s))
            clock.start(job())

    clock.start(arrivals())
    clock.run(20.0)
    assert sum(waits) / len(waits) == pytest.approx(load * service_s / (2 * (1 - load)), rel=0.05)
    assert core.used_at(20.0) == pytest.approx(20.0 * load, rel=0.02)


def test_the_first_of_some_short_jobs_is_not_slowed_down_by_the_others():
    clock, ends = Clock(), list[float]()
    cores = Cores(clock, 2.0, 1.0)

    def job():
        yield cores.use(0.001)
        ends.append(clock.now)

    for _ in range(6):
        clock.start(job())
    clock.run(1.0)
    assert ends == pytest.approx([0.001, 0.001, 0.002, 0.002, 0.003, 0.003]) and cores.used == pytest.approx(0.006)


def endless(cores: Cores, seconds: float, width: float, served: list[float]):
    """Do jobs one after another, and add up the CPU seconds of those that are over."""
    while True:
        yield cores.use(seconds, width)
        served[0] += seconds


@pytest.mark.parametrize("others", [0.0, 2.0])
def test_long_and_short_jobs_have_shares_by_their_number(others: float):
    clock, short, long = Clock(), [0.0], [0.0]
    cores = Cores(clock, 2.0, 1.0, others)
    for _ in range(6):
        clock.start(endless(cores, 0.001, 1.0, short))
    clock.start(endless(cores, 0.2, 2.0, long))
    clock.run(20.0)
    assert short[0] == pytest.approx(40.0 * 6 / (8 + others), rel=0.01)
    assert long[0] == pytest.approx(40.0 * 2 / (8 + others), rel=0.01)
    assert cores.used_by_others_at(20.0) == pytest.approx(40.0 * others / (8 + others), rel=0.01)


def test_what_short_jobs_leave_goes_to_long_ones():
    clock, served = Clock(), [0.0]
    cores = Cores(clock, 2.0, 1.0)

    def sleeper():
        while True:
            yield cores.use(0.001)
            yield Pause(0.009)

    clock.start(sleeper())
    clock.start(endless(cores, 0.1, 2.0, served))
    clock.run(50.0)
    assert cores.used_at(50.0) == pytest.approx(100.0, rel=1e-6)
    assert 93.0 < served[0] < 96.0 and math.isclose(cores.used_by_others, 0.0)
