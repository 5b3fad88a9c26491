"""Rows written into separate memory: the consumer gets the same trajectories, and the stream's memory is untouched before."""

from __future__ import annotations

import numpy as np
import pytest

from jsrl.errors import StreamError
from jsrl.transport.base import ProducerId
from jsrl.transport.samples.copying import CopyingProducer
from jsrl.transport.samples.transports import bind_samples, connect_samples
from jsrl.types import leaves
from tests.contracts.sample_producer import checksum, fill, make_schema

SCHEMA = make_schema()


@pytest.fixture(params=["local", "shm"])
def ends(request, tmp_path):
    """A consumer, the real producer's end, and the copying one around it."""
    consumer = bind_samples(f"local:{tmp_path.name}" if request.param == "local" else f"shm:{tmp_path}/s", SCHEMA)
    producer = connect_samples(consumer.address, SCHEMA, ProducerId("actor-0", 0), 2, 10.0)
    yield consumer, producer, CopyingProducer(producer, SCHEMA)
    producer.close()
    consumer.close()


def test_trajectories_arrive_as_they_were_written(ends):
    consumer, _, copying = ends
    for number in range(6):  # more than there are blocks: memory is reused
        block = copying.reserve(1.0)
        fill(block.trajectory, number)
        expected = checksum(block.trajectory)
        assert block.commit(number % 2).group == number % 2
        lease = consumer.get(1.0)
        assert checksum(lease.trajectory) == expected
        consumer.release(lease)
    assert consumer.ledger.balanced
    assert consumer.ledger.consumed == 6


def test_nothing_is_written_before_the_commit(ends):
    _, producer, copying = ends
    inner = producer.reserve(1.0)
    before = [np.array(leaf) for leaf in leaves(inner.trajectory)]
    inner.abandon()
    block = copying.reserve(1.0)
    for leaf in leaves(block.trajectory):
        assert not any(np.shares_memory(leaf, theirs) for theirs in leaves(inner.trajectory))
    fill(block.trajectory, 3)
    block.abandon()
    again = producer.reserve(1.0)
    for leaf, was in zip(leaves(again.trajectory), before, strict=True):
        np.testing.assert_array_equal(leaf, was)
    again.abandon()


def test_a_block_is_handed_over_once(ends):
    consumer, _, copying = ends
    block = copying.reserve(1.0)
    fill(block.trajectory, 1)
    block.commit(0)
    lease = consumer.get(1.0)
    expected = checksum(lease.trajectory)
    with pytest.raises(StreamError):
        block.commit(0)
    assert checksum(lease.trajectory) == expected
    consumer.release(lease)


def test_open_blocks_have_memory_of_their_own(ends):
    _, _, copying = ends
    first, second = copying.reserve(1.0), copying.reserve(1.0)
    assert not np.shares_memory(first.trajectory.reward, second.trajectory.reward)
    first.abandon()
    second.abandon()
    third = copying.reserve(1.0)
    assert np.shares_memory(third.trajectory.reward, second.trajectory.reward)  # reused
    third.abandon()
