"""The event loop and its cores against exact formulas of queueing theory."""

from __future__ import annotations

import math
import random

import pytest

from jsrl.tools.simulation.events import Clock, Mailbox, Pause, Shared
from jsrl.tools.simulation.resources import Cores


def test_a_queue_with_random_arrivals_and_fixed_service_waits_as_pollaczek_and_khinchine_say():
    """M/D/1: mean wait = rho s / (2 (1 - rho))."""
    clock, inbox, service_s, load, waits = Clock(), Mailbox(), 1.0, 0.7, []
    draw = random.Random(1)

    def arrivals():
        while True:
            yield Pause(draw.expovariate(load / service_s))
            inbox.put(clock.now)

    def server():
        while True:
            came = yield inbox
            waits.append(clock.now - came)
            yield Pause(service_s)

    clock.start(arrivals())
    clock.start(server())
    clock.run(60_000.0)
    assert sum(waits) / len(waits) == pytest.approx(load * service_s / (2 * (1 - load)), rel=0.03)


@pytest.mark.parametrize("users", [1, 3, 10])
def test_a_closed_network_of_thinkers_and_one_shared_core_has_the_throughput_of_mean_value_analysis(users: int):
    """Thinking Z (exponential), service S with processor sharing: X(n) = n / (Z + S (1 + Q(n - 1)))."""
    think_s, service_s, queue, rate = 4.0, 1.0, 0.0, 0.0
    for n in range(1, users + 1):
        rate = n / (think_s + service_s * (1 + queue))
        queue = rate * service_s * (1 + queue)
    clock, draw, made = Clock(), random.Random(2), [0]
    core = Shared(clock, 1.0)

    def user():
        while True:
            yield Pause(draw.expovariate(1 / think_s))
            yield core.use(draw.expovariate(1 / service_s))
            made[0] += 1

    for _ in range(users):
        clock.start(user())
    clock.run(15_000.0)
    assert made[0] / clock.now == pytest.approx(rate, rel=0.02)
    assert core.used_at(clock.now) / clock.now == pytest.approx(rate * service_s, rel=0.02)


def test_cores_that_are_too_few_are_shared_and_one_user_has_at_most_one():
    clock, ends = Clock(), {}
    cores = Cores(clock, 2.0, 1.0)

    def user(name, amount, width=1.0):
        yield cores.use(amount, width)
        ends[name] = clock.now

    clock.start(user("alone", 1.0))
    clock.run(10.0)
    assert ends == {"alone": 1.0}
    for name in "abcd":
        clock.start(user(name, 1.0))
    clock.run(20.0)
    assert all(ends[name] == pytest.approx(12.0) for name in "abcd")  # four units of work on two cores
    clock.start(user("wide", 4.0, 2.0))
    clock.run(30.0)
    assert ends["wide"] == pytest.approx(22.0) and cores.used_at(30.0) == pytest.approx(9.0)


def test_other_programs_take_their_share_of_cores_that_are_too_few_and_none_of_idle_ones():
    clock, ends = Clock(), {}
    cores = Cores(clock, 2.0, 1.0, others=1.0)

    def user(name):
        yield cores.use(1.0)
        ends[name] = clock.now

    clock.start(user("alone"))
    clock.run(10.0)
    assert ends == {"alone": 1.0} and cores.used_by_others_at(10.0) == pytest.approx(10.0)
    for name in "abc":
        clock.start(user(name))
    clock.run(20.0)
    assert all(ends[name] == pytest.approx(12.0) for name in "abc")  # half a core for each of four
    assert cores.used_at(20.0) == pytest.approx(4.0) and cores.used_by_others_at(20.0) == pytest.approx(19.0)


def test_a_link_is_full_when_more_is_asked_than_it_carries():
    clock, sent = Clock(), [0]
    link = Shared(clock, 1000.0)

    def sender(size):
        while True:
            yield link.use(size)
            sent[0] += size
            yield Pause(0.01)

    for size in (10, 300, 50):
        clock.start(sender(size))
    clock.run(100.0)
    assert link.used_at(clock.now) == pytest.approx(1000.0 * clock.now, rel=0.01)
    assert sent[0] == pytest.approx(1000.0 * clock.now, rel=0.01)


def test_mailbox_keeps_the_order_and_zero_work_takes_no_time():
    clock, inbox, got = Clock(), Mailbox(), []
    core = Shared(clock, 1.0)

    def reader():
        while True:
            got.append((yield inbox))
            yield core.use(0.0)

    for number in range(3):
        inbox.put(number)
    clock.start(reader())
    clock.run(1.0)
    assert got == [0, 1, 2] and not math.isnan(clock.now)


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
