"""Contract of every params transport; import the tests from a module that provides a `transport` fixture."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest

from jsrl.errors import SpecMismatch, StreamClosed, StreamTimeout
from jsrl.transport.base import ParamsSubscriber
from jsrl.transport.table import bind_params, connect_params
from jsrl.types import make_version

TIMEOUT_S = 20.0


class Transport(NamedTuple):
    """One transport: `new_address()` returns an unused address."""

    new_address: Callable[[], str]


def make_values(fill: float) -> list[np.ndarray]:
    return [
        np.full((7, 3), fill, np.float32),
        np.full((5,), int(fill), np.int64),
        np.array(fill, np.float64),
        np.zeros((0, 4), np.float32),
        np.full((3,), int(fill) % 2, bool),
    ]


def check_values(values: list[np.ndarray], fill: float) -> None:
    expected = make_values(fill)
    assert len(values) == len(expected)
    for got, wanted in zip(values, expected, strict=True):
        assert got.dtype == wanted.dtype and got.shape == wanted.shape
        np.testing.assert_array_equal(got, wanted)


def poll_until(subscriber: ParamsSubscriber, version: int, policy: int = 0) -> list[np.ndarray]:
    """Poll until `version` arrives."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        found = subscriber.poll(policy)
        if found is not None and found[0] == version:
            return found[1]
        time.sleep(0.001)
    raise AssertionError(f"version {version} never came")


def test_published_params_arrive(transport: Transport) -> None:
    publisher = bind_params(transport.new_address())
    subscriber = connect_params(publisher.address)
    assert subscriber.poll() is None
    for updates in range(1, 6):
        publisher.publish(0, make_version(1, updates), make_values(updates))
        subscriber.wait(0, updates, TIMEOUT_S)
        found = subscriber.poll()
        assert found is not None and found[0] == make_version(1, updates) and type(found[0]) is int
        check_values(found[1], updates)
        assert subscriber.poll() is None
    subscriber.close()
    publisher.close()


def test_values_are_copied_both_ways(transport: Transport) -> None:
    publisher = bind_params(transport.new_address())
    first, second = connect_params(publisher.address), connect_params(publisher.address)
    values = make_values(3)
    publisher.publish(0, 3, values)
    for value in values:
        value[...] = 0
    got = poll_until(first, 3)
    check_values(got, 3)
    for value in got:
        value[...] = 1  # a reader may write into the arrays it received
    check_values(poll_until(second, 3), 3)
    third = connect_params(publisher.address)
    check_values(poll_until(third, 3), 3)
    publisher.publish(0, 4, make_values(4))
    kept = poll_until(first, 4)
    for updates in range(5, 12):
        publisher.publish(0, updates, make_values(updates))
    check_values(kept, 4)
    for end in (first, second, third, publisher):
        end.close()


def test_latest_wins(transport: Transport) -> None:
    publisher = bind_params(transport.new_address())
    subscriber = connect_params(publisher.address)
    for updates in range(1, 101):
        publisher.publish(0, updates, make_values(updates))
    subscriber.wait(0, 100, TIMEOUT_S)
    found = subscriber.poll()
    assert found is not None and found[0] == 100
    check_values(found[1], 100)
    assert subscriber.poll() is None
    subscriber.close()
    publisher.close()


def test_late_subscriber_gets_the_params(transport: Transport) -> None:
    publisher = bind_params(transport.new_address())
    publisher.publish(0, 9, make_values(9))
    subscriber = connect_params(publisher.address)
    subscriber.wait(0, 9, TIMEOUT_S)
    found = subscriber.poll()
    assert found is not None and found[0] == 9
    check_values(found[1], 9)
    subscriber.close()
    publisher.close()


def test_policies_are_separate(transport: Transport) -> None:
    publisher = bind_params(transport.new_address())
    subscriber = connect_params(publisher.address)
    publisher.publish(0, 1, make_values(1))
    publisher.publish(4, 2, [np.full((2,), 2.0)])
    check_values(poll_until(subscriber, 1, 0), 1)
    np.testing.assert_array_equal(poll_until(subscriber, 2, 4)[0], [2.0, 2.0])
    assert subscriber.poll(5) is None
    publisher.publish(4, 3, [np.full((2,), 3.0)])
    subscriber.wait(4, 3, TIMEOUT_S)
    assert subscriber.poll(0) is None
    assert subscriber.poll(4) is not None
    subscriber.close()
    publisher.close()


def test_wait_timeout_names_the_current_version(transport: Transport) -> None:
    publisher = bind_params(transport.new_address())
    subscriber = connect_params(publisher.address)
    with pytest.raises(StreamTimeout, match="none was published"):
        subscriber.wait(0, 1, 0.05)
    publisher.publish(0, make_version(2, 4), make_values(4))
    subscriber.wait(0, 4, TIMEOUT_S)
    started = time.monotonic()
    with pytest.raises(StreamTimeout, match=r"at least 5 updates.*has 4 updates"):
        subscriber.wait(0, 5, 0.05)
    assert time.monotonic() - started < 5
    assert subscriber.poll() is not None  # waiting did not consume the update
    subscriber.close()
    publisher.close()


def test_wait_wakes_at_a_publish(transport: Transport) -> None:
    publisher = bind_params(transport.new_address())
    subscriber = connect_params(publisher.address)
    publisher.publish(0, 1, make_values(1))
    subscriber.wait(0, 1, TIMEOUT_S)
    woken = []

    def wait() -> None:
        subscriber.wait(0, 3, TIMEOUT_S)
        woken.append(time.monotonic())

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    time.sleep(0.1)
    publisher.publish(0, 2, make_values(2))
    time.sleep(0.1)
    assert not woken
    publisher.publish(0, 3, make_values(3))
    published = time.monotonic()
    thread.join(TIMEOUT_S)
    assert woken and woken[0] - published < 1.0
    check_values(poll_until(subscriber, 3), 3)
    subscriber.close()
    publisher.close()


def test_subscriber_follows_a_restarted_publisher(transport: Transport) -> None:
    publisher = bind_params(transport.new_address())
    address = publisher.address
    subscriber = connect_params(address)
    publisher.publish(0, make_version(1, 50), make_values(50))
    check_values(poll_until(subscriber, make_version(1, 50)), 50)
    publisher.close()
    newer = bind_params(address)
    assert subscriber.poll() is None
    newer.publish(0, make_version(2, 40), make_values(40))
    check_values(poll_until(subscriber, make_version(2, 40)), 40)
    newer.publish(0, make_version(2, 41), make_values(41))
    subscriber.wait(0, 41, TIMEOUT_S)
    check_values(poll_until(subscriber, make_version(2, 41)), 41)
    subscriber.close()
    newer.close()


def test_other_leaves_are_refused(transport: Transport) -> None:
    publisher = bind_params(transport.new_address())
    publisher.publish(0, 1, make_values(1))
    with pytest.raises(SpecMismatch, match="leaf 1"):
        publisher.publish(0, 2, [make_values(2)[0], np.zeros((6,), np.int64), *make_values(2)[2:]])
    with pytest.raises(SpecMismatch, match="leaf 0"):
        publisher.publish(0, 2, [np.zeros((7, 3), np.float64), *make_values(2)[1:]])
    with pytest.raises(SpecMismatch, match="leaf 4"):
        publisher.publish(0, 2, make_values(2)[:4])
    publisher.publish(0, 2, make_values(2))
    subscriber = connect_params(publisher.address)
    check_values(poll_until(subscriber, 2), 2)
    subscriber.close()
    publisher.close()


def test_closed_ends_raise_stream_closed(transport: Transport) -> None:
    publisher = bind_params(transport.new_address())
    subscriber = connect_params(publisher.address)
    publisher.publish(0, 1, make_values(1))
    check_values(poll_until(subscriber, 1), 1)
    for end in (publisher, subscriber):
        end.close()
        end.close()
    with pytest.raises(StreamClosed):
        publisher.publish(0, 2, make_values(2))
    with pytest.raises(StreamClosed):
        subscriber.poll()
    with pytest.raises(StreamClosed):
        subscriber.wait(0, 1, 1.0)


def test_publish_does_not_wait_for_readers(transport: Transport) -> None:
    publisher = bind_params(transport.new_address())
    subscribers = [connect_params(publisher.address) for _ in range(3)]  # none of them ever polls
    large = [np.zeros(1 << 20, np.float32)]
    started = time.monotonic()
    for updates in range(1, 51):
        large[0][...] = updates
        publisher.publish(0, updates, large)
    assert time.monotonic() - started < 10
    for subscriber in subscribers:
        subscriber.wait(0, 50, TIMEOUT_S)
        values = poll_until(subscriber, 50)
        assert (values[0] == 50).all()
        subscriber.close()
    publisher.close()
