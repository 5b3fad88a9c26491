"""Cases of test_parallel.py, run as `python process_cases.py UPDATES NUMBER HOST:PORT`: two processes with 2 devices each."""

import os
import signal
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jsrl.parallel import data_parallel, join_processes, leave_processes, split_devices
from tests import parallel_cases
from tests.parallel_cases import replicas

COUNT, DEVICES = 2, 2


def mine(batch: Any, number: int) -> Any:
    return jax.tree.map(lambda x: x[DEVICES * number : DEVICES * (number + 1)], batch)


def equal(number: int, updates: int) -> None:
    """Two processes with two devices each train as one device does on the whole batch."""
    key, alone = jax.random.key(0), jax.jit(parallel_cases.update)
    parallel = data_parallel(parallel_cases.update)
    state, expected = parallel.place(parallel_cases.init()), parallel_cases.init()
    for seed in range(updates):
        batch = parallel_cases.make_batch(seed)
        state, output = parallel(state, mine(split_devices(batch, COUNT * DEVICES), number), key)
        expected, expected_output = alone(expected, batch, key)
        found = parallel.fetch(output.metrics["grad_norm"])  # before it is clipped
        np.testing.assert_allclose(found, expected_output.metrics["grad_norm"], rtol=1e-5)
    assert len(replicas(state)) == DEVICES
    for replica in replicas(state):
        parallel_cases.assert_trees_close(replica, jax.device_get(expected), rtol=0, atol=1e-6)
    assert parallel.fetch(state).updates == updates


def first(number: int) -> None:
    """All get the bits of process 0, whatever they pass."""
    values = np.array([-0.0, np.nan, 1.5], np.float32), np.array([True, False]), np.int8([-3]), np.array(7, np.uint32)
    parallel = data_parallel(parallel_cases.update)
    placed = parallel.place(values if number == 0 else jax.tree.map(np.zeros_like, values))
    half = parallel.place(jnp.full(3, 1.25 if number == 0 else 0.0, jnp.bfloat16))
    for replica in replicas(placed):
        for found, expected in zip(replica, values, strict=True):
            assert found.dtype == expected.dtype and found.tobytes() == expected.tobytes()
    assert all(replica.tolist() == [1.25] * 3 for replica in replicas(half))


def leave() -> None:
    """Python's handler of SIGTERM is called, and the state can be fetched once the others have left."""
    parallel = data_parallel(parallel_cases.update)
    state = parallel.place(parallel_cases.init())
    os.kill(os.getpid(), signal.SIGTERM)
    assert heard == [signal.SIGTERM]
    leave_processes()
    assert parallel.fetch(state).updates == 0


if __name__ == "__main__":
    heard: list[int] = []
    signal.signal(signal.SIGTERM, lambda signum, _: heard.append(signum))
    updates, number, place = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    join_processes(place, number, COUNT, DEVICES)
    assert len(jax.devices()) == COUNT * DEVICES
    equal(number, updates)
    first(number)
    leave()
    sys.stdout.write("passed\n")
