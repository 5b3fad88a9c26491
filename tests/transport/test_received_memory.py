"""Memory of received trajectories: freed by its last user, then reused without asking the kernel."""

from __future__ import annotations

import ctypes
import gc
import resource
import weakref
from pathlib import Path

import numpy as np
import pytest

from jsrl.transport.base import ProducerId, SampleConsumer, SampleProducer
from jsrl.transport.network.sockets import reuse_freed_memory
from jsrl.transport.table import bind_samples, connect_samples
from jsrl.types import leaves, unflatten, zeros
from tests.contracts.sample_producer import make_schema

TIMEOUT_S = 20.0
LARGE = make_schema(300_000)


def test_a_rebuilt_tree_frees_its_leaves_at_once() -> None:
    array = np.zeros(8)
    watched = weakref.ref(array)
    gc.disable()
    try:
        tree = unflatten({"a": None, "b": (0, [0])}, [1, array])
        del array
        assert watched() is not None and leaves(tree)[1] is watched()
        del tree
        assert watched() is None
    finally:
        gc.enable()


def pass_one(producer: SampleProducer, consumer: SampleConsumer, number: int) -> int:
    """Send and take one trajectory; return the address at which it arrived."""
    block = producer.reserve(TIMEOUT_S)
    leaves(block.trajectory)[0].fill(number)
    block.commit(0)
    lease = consumer.get(TIMEOUT_S)
    first = leaves(lease.trajectory)[0]
    assert first.flat[0] == first.flat[-1] == number
    consumer.release(lease)
    return int(first.ctypes.data)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="the C library is not glibc")
def test_large_trajectories_reuse_memory(tmp_path: Path) -> None:
    assert reuse_freed_memory()
    consumer = bind_samples(f"ipc://{tmp_path}/s", LARGE)
    producer = connect_samples(consumer.address, LARGE, ProducerId("actor-0", 0), 1, TIMEOUT_S)
    pages = sum(array.nbytes for array in leaves(zeros(LARGE))) // resource.getpagesize()
    gc.disable()
    try:
        for number in range(8):
            pass_one(producer, consumer, number)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        addresses = {pass_one(producer, consumer, number) for number in range(30)}
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    finally:
        gc.enable()
    assert len(addresses) <= 8
    assert faults < 30 * pages / 4, f"{faults} page faults for 30 trajectories of {pages} pages"
    producer.close()
    consumer.close()
