"""One update on 1 and on 4 (fake) devices, and on those of two processes: XLA counts its devices once, so in others."""

import functools
import gc
import importlib
import os
import subprocess
import sys
import weakref
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jsrl import parallel
from jsrl.errors import ConfigError, SpecMismatch
from jsrl.parallel import data_parallel, small_calls, split_devices
from jsrl.types import Trajectory
from jsrl.workers.attached.ranks import held_port
from tests.fake_devices import STRICT, fake_devices
from tests.marks import nightly

SCRIPT = Path(__file__).parent / "parallel_cases.py"


CASES = ("equal", "place", "loop", "priorities", "compile")


@pytest.fixture(scope="module")
def four_devices() -> subprocess.CompletedProcess:
    """Run all cases in one process that has four devices."""
    environment = fake_devices(4, "--xla_cpu_collective_call_terminate_timeout_seconds=20")
    command = [sys.executable, *STRICT, str(SCRIPT), *CASES]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_four_devices(name, four_devices):
    assert four_devices.returncode == 0, four_devices.stdout + four_devices.stderr[-4000:]
    assert f"passed {name}\n" in four_devices.stdout, four_devices.stderr[-4000:]


def make_batch(num_envs: int) -> Trajectory:
    rows = np.arange(3 * num_envs, dtype=np.float32).reshape(3, num_envs)
    core, sampling = np.arange(num_envs * 2).reshape(num_envs, 2), np.linspace(0.1, 1, num_envs)
    return Trajectory(*[rows] * 9, core=core, sampling=sampling)


def test_split_keeps_environments_together():
    batch = make_batch(6)
    split = split_devices(batch, 3)
    for device in range(3):
        here = slice(2 * device, 2 * device + 2)
        np.testing.assert_array_equal(split.reward[device], batch.reward[:, here])
        np.testing.assert_array_equal(split.core[device], batch.core[here])
        np.testing.assert_array_equal(split.sampling[device], batch.sampling[here])


def test_split_refuses_uneven_batches():
    with pytest.raises(ConfigError, match=r"batch of 6 environments.*4 devices; use 4 or 8"):
        split_devices(make_batch(6), 4)
    with pytest.raises(ConfigError, match=r"use 4$"):
        split_devices(make_batch(2), 4)


def test_refuses_invalid_devices():
    with pytest.raises(ConfigError, match="one or more different devices"):
        data_parallel(lambda *_: None, [])
    with pytest.raises(ConfigError, match="one or more different devices"):
        data_parallel(lambda *_: None, jax.devices()[:1] * 2)


def test_refuses_an_unsplit_batch():
    parallel = data_parallel(lambda *_: None, jax.devices()[:1])
    with pytest.raises(SpecMismatch, match=r"batch leaf observation has shape \(3, 4\).*split_devices"):
        parallel(None, make_batch(4), jax.random.key(0))


def drawn(state, batch, key, *, axis_name):
    """Return (replicated, split) results of an argument of every kind."""
    key = jax.random.fold_in(key, jax.lax.axis_index(axis_name))
    noise = jax.lax.psum(jax.random.normal(key, batch["x"].shape) * batch["x"], axis_name)
    return {"w": state["w"] + noise.sum()}, (noise, None)


def test_one_device_has_the_bits_of_pmap():
    state, batch = {"w": np.float32([0.1, 0.2])}, {"x": np.float32([[0.3, 0.7, 0.1]])}
    arguments, device = (state, batch, jax.random.key(1)), jax.devices()[:1]
    axes = {"in_axes": (None, 0, None), "out_axes": (None, 0)}
    on_each = functools.partial(drawn, axis_name=parallel.AXIS_NAME)
    expected = jax.pmap(on_each, parallel.AXIS_NAME, devices=device, **axes)(*arguments)
    called = parallel.OnEach(drawn, device, **axes)
    called.compile(*arguments)
    jax.tree.map(np.testing.assert_array_equal, called(*arguments), expected)
    used = weakref.ref(called)
    del called
    gc.collect()
    assert used() is None


def test_a_packed_tree_comes_back_as_it_was():
    tree = {
        "a": jnp.arange(6.0).reshape(2, 3),
        "b": (jnp.int32(7), jnp.array([True, False])),
        "c": jnp.bfloat16([0.1, 2.0]),
        "d": (),
        "e": jnp.zeros((0, 2)),
        "f": 0.25,
    }
    packed = jax.jit(parallel.pack)(tree)
    assert len(jax.tree.leaves(packed)) == 4  # types
    jax.tree.map(np.testing.assert_array_equal, packed.unpacked(), tree)
    jax.tree.map(
        lambda found, given: np.testing.assert_equal(found.dtype, jnp.asarray(given).dtype), packed.unpacked(), tree
    )


def test_small_calls_compute_the_same_bits():
    """Two independent networks, one program: in sequence or at once."""
    key = jax.random.key(0)
    layers = jax.random.normal(key, (2, 3, 64, 64))

    def both(x):
        ends = []
        for network in layers:
            y = x
            for layer in network:
                y = jax.numpy.tanh(y @ layer)
            ends.append(y)
        return ends

    x = jax.random.normal(key, (16, 64))
    assert small_calls() == (parallel.IN_TURN if jax.default_backend() == "cpu" else None)
    in_turn = jax.jit(both, compiler_options=small_calls())(x)
    for one, other in zip(in_turn, jax.jit(both)(x), strict=True):
        np.testing.assert_array_equal(one, other)


def test_unknown_xla_option_is_left_out(monkeypatch):
    monkeypatch.setattr(parallel, "IN_TURN", {"xla_cpu_no_such_option": "x"})
    assert small_calls.__wrapped__() is None


@pytest.mark.parametrize("value", [0.1, 2**40 + 1, True, np.int8(-3), np.float32(0.1)])
def test_state_sent_to_other_processes_keeps_its_bits(value):
    """64-bit leaves exist with jax_enable_x64."""
    sent = jax.pmap(parallel._of_first, axis_name=parallel.AXIS_NAME, in_axes=(None, 0), out_axes=None)
    with jax.enable_x64(True):
        given = np.array([value])
        found = np.asarray(sent(given, np.array([True])))
    assert found.dtype == given.dtype and found == given


def test_jax_has_the_cache_that_forget_pmap_frees():
    """If not, `forget_pmap` silently does nothing: look whether this jax frees the programs of a pmap by itself."""
    cache = importlib.import_module("jax._src.pmap")._cached_shard_map
    assert callable(cache.evict_function)


PROCESS_SCRIPT = Path(__file__).parent / "process_cases.py"


@pytest.mark.slow
@pytest.mark.parametrize("updates", [4, nightly(50)])
def test_two_processes_with_two_devices_each(updates: int) -> None:
    held, place = held_port("tcp://127.0.0.1:0")
    environment = fake_devices(2) | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    commands = [[sys.executable, *STRICT, str(PROCESS_SCRIPT), str(updates), number, place] for number in "01"]
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    processes = [subprocess.Popen(command, env=environment, **output) for command in commands]
    try:
        for process in processes:
            told, _ = process.communicate(timeout=180)
            assert process.returncode == 0 and "passed" in told, told[-4000:]
    finally:
        held.close()
        for process in processes:
            process.kill()
