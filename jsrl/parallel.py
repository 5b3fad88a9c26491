"""One update on several devices: the only file that says pmap.

`update(state, trajectory, key, axis_name="devices")` runs on every device with its share of the batch; it sums what must be
summed over the axis itself. The state carries no device axis: each device holds all of it, and all hold the same.

Only device 0's share of the returned state is used (`out_axes=None`), so an update whose devices disagree is wrong without a
sign of it: tests compare all shards with `replicas`.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import signal
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jsrl.agents.base import AgentState, Update, UpdateOutput
from jsrl.errors import ConfigError, SpecMismatch
from jsrl.types import Array, Trajectory, Tree, map_trajectory, named_leaves

AXIS_NAME = "devices"
INITIALISE_S, HEARTBEAT_S, SHUTDOWN_S = 60, 20, 10  # of jax.distributed
IN_TURN = {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}


@functools.cache
def small_calls() -> dict[str, str] | None:
    """Return the compiler options of a small program that is called very often; None where there are none to give.

    On CPU XLA hands what is independent in a program (actor and critic) to its threads, and waking one takes longer than a
    small network's whole call: 16 rows through two of 64x64 take 140 us so, and 38 us in turn. The results are the same bits.
    """
    if jax.default_backend() != "cpu":
        return None
    try:
        jax.jit(lambda x: x, compiler_options=IN_TURN).lower(np.float32(0)).compile()
    except jax.errors.JaxRuntimeError:  # a version of XLA without this option
        return None
    return IN_TURN


def join_processes(coordinator: str, number: int, count: int, local_devices: int) -> None:
    """Make this process number `number` of `count` whose devices work together; call it before jax is used.

    Whoever leaves without `part_processes` ends at once, without jax's barrier: that would wait for processes that may hang.

    Args:
      coordinator: HOST:PORT where process 0 listens, on that address alone. Whoever reaches it may join: it has no keys.
      local_devices: how many this process has.

    Raises:
      RuntimeError: not all came within a minute.
    """
    asked = signal.getsignal(signal.SIGTERM)
    with contextlib.suppress(AttributeError):  # a version of jax without it
        jax.config.update("jax_enable_preemption_service", False)
    jax.distributed.initialize(
        coordinator,
        count,
        number,
        list(range(local_devices)),
        cluster_detection_method="deactivate",
        initialization_timeout=INITIALISE_S,
        heartbeat_timeout_seconds=HEARTBEAT_S,
        shutdown_timeout_seconds=SHUTDOWN_S,
        coordinator_bind_address=coordinator,
    )
    signal.signal(signal.SIGTERM, asked)  # jax's own would let nobody know
    atexit.register(_end_at_once)


def part_processes() -> None:
    """Leave the other processes in order, once all of them call this."""
    jax.distributed.shutdown()


def _end_at_once() -> None:
    if jax.distributed.is_initialized():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


class DataParallel:
    """An update over `devices`. Made by `data_parallel`.

    With several processes (`join_processes`) each passes its own devices' share of the batch.
    """

    def __init__(self, update: Update, devices: Sequence[jax.Device], *, donate: bool = True) -> None:
        self.devices = tuple(devices)
        every = self._every = list(self.devices) if jax.process_count() == 1 else None
        on_each = functools.partial(update, axis_name=AXIS_NAME)
        self._update = jax.pmap(
            on_each,
            axis_name=AXIS_NAME,
            in_axes=(None, 0, None),
            out_axes=(None, UpdateOutput(None, 0)),  # type: ignore[arg-type]
            donate_argnums=(0,) if donate else (),
            devices=every,
        )

        self._alone = every is not None

        def copy(tree: Tree, is_first: Array) -> Tree:
            return jax.tree.map(jnp.copy if every is not None else lambda x: _of_first(x, is_first), tree)

        held = None if every is not None else 0
        self._copy = jax.pmap(copy, axis_name=AXIS_NAME, in_axes=(held, 0), out_axes=None, devices=every)
        for function in (on_each, copy):
            weakref.finalize(self, forget_pmap, function)

    @property
    def num_devices(self) -> int:
        """Return D, the devices of this process."""
        return len(self.devices)

    def place(self, state: Tree) -> Tree:
        """Return a copy of `state` (host, single-device or replicated arrays) on all devices.

        The caller's own arrays stay valid: what a call donates is only what `place` or an earlier call returned. Of several
        processes all call this, with arrays of the same shapes, and get the state of process 0.
        """
        state, number = self.fetch(state), len(self.devices)
        if not self._alone:
            state = jax.tree.map(lambda x: np.broadcast_to(x, (number, *x.shape)), state)
        is_first = np.arange(number) + number * jax.process_index() == 0
        return jax.block_until_ready(self._copy(state, is_first))

    def make(self, init: Callable[[Array], Tree], key: Array) -> Tree:
        """Return `init(key)`, made on all devices: nothing of it passes through the host's memory."""

        def on_each(key: Array, _: Array) -> Tree:
            return init(key)

        made = jax.pmap(on_each, axis_name=AXIS_NAME, in_axes=(None, 0), out_axes=None, devices=self._every)
        try:
            return jax.block_until_ready(made(key, np.zeros(len(self.devices))))
        finally:
            forget_pmap(on_each)

    def __call__(self, state: AgentState, batch: Trajectory, key: Array) -> tuple[AgentState, UpdateOutput]:
        """Update `state` with a batch whose leaves are [D, T+1, B/D, ...] (core: [D, B/D, ...]).

        Args:
          state: from `place` or from the last call; it is donated, so it must not be used again (unless `donate=False`).
          batch: numpy or device arrays. Numpy buffers may be read until the result is ready.
          key: the same in every process.

        Returns:
          the new state, and metrics and priorities ([D, B/D, ...], see `join_devices`; or None).

        Raises:
          SpecMismatch: a leaf's leading axis is not D.
        """
        for name, leaf in named_leaves(batch):
            if not leaf.shape or leaf.shape[0] != len(self.devices):
                raise SpecMismatch(
                    f"batch leaf {name} has shape {tuple(leaf.shape)}, but its first axis must be the {len(self.devices)} "
                    "device(s); split a [T+1, B, ...] trajectory with jsrl.parallel.split_devices"
                )
        return self._update(state, batch, key)

    def compile(self, state: AgentState, batch: Trajectory, key: Array) -> None:
        """Compile for arrays like these without running; the next call with such arrays starts at once."""
        self._update.lower(state, batch, key).compile()  # fills the cache that calls look into

    def fetch(self, tree: Tree) -> Tree:
        """Return a tree of replicated arrays as numpy arrays of their own, from the first shard: nothing is gathered."""
        return jax.tree.map(_first_shard, tree)


def forget_pmap(function: Callable[..., Any]) -> None:
    """Free what jax keeps of a function that `jax.pmap` was given, once nothing calls it any more.

    jax 0.10 keeps it forever: its cache is keyed weakly by the function, but what it holds refers to the function. That is
    about 20 MB of compiled program for each run that starts in one process. Another jax, without that cache, needs nothing.
    """
    try:
        from jax._src import pmap

        pmap._cached_shard_map.evict_function(function)
    except (ImportError, AttributeError):
        return


def data_parallel(update: Update, devices: Sequence[jax.Device] | None = None, *, donate: bool = True) -> DataParallel:
    """Return `update` spread over `devices` (None: all of this process); B is split evenly between them.

    Args:
      update: an agent's `update`, or any function of its signature.
      donate: let an update write the new state over the old one.

    Raises:
      ConfigError: no devices, or not all of this process's where several processes work together.
    """
    chosen = list(jax.local_devices() if devices is None else devices)
    if not chosen or len(set(chosen)) != len(chosen):
        raise ConfigError(f"data_parallel needs one or more different devices, got {chosen}")
    if jax.process_count() > 1 and set(chosen) != set(jax.local_devices()):
        raise ConfigError(
            f"with {jax.process_count()} processes every process uses all of its devices; got {chosen} "
            f"of {jax.local_devices()}. Hide the others (CUDA_VISIBLE_DEVICES), or leave `devices` out"
        )
    return DataParallel(update, chosen, donate=donate)


def split_devices(trajectory: Trajectory, num_devices: int) -> Trajectory:
    """Return a [T+1, B, ...] trajectory (core, sampling: [B, ...]) as [D, T+1, B/D, ...] (core, sampling: [D, B/D, ...]).

    Device d gets environments d B/D to (d+1) B/D - 1.

    Raises:
      ConfigError: B cannot be divided by `num_devices`.
    """
    num_envs = trajectory.is_first.shape[1]
    if num_envs % num_devices:
        below = num_envs // num_devices * num_devices
        fitting = " or ".join(str(n) for n in (below, below + num_devices) if n)
        raise ConfigError(
            f"a batch of {num_envs} environments cannot be split evenly over {num_devices} devices; use {fitting}"
        )

    def rows(x: Array) -> Array:
        split = x.reshape(x.shape[0], num_devices, num_envs // num_devices, *x.shape[2:])
        return split.swapaxes(0, 1)

    def columns(x: Array) -> Array:
        return x.reshape(num_devices, num_envs // num_devices, *x.shape[1:])

    return map_trajectory(rows, columns, trajectory)


def join_devices(tree: Tree) -> Tree:
    """Return this process's part of device-split arrays [D, B/D, ...] (priorities) as numpy arrays [B, ...]."""

    def join(x: Any) -> np.ndarray:
        shards = sorted(x.addressable_shards, key=lambda shard: shard.index[0].start or 0)
        local = np.concatenate([np.asarray(shard.data) for shard in shards])
        return local.reshape(-1, *local.shape[2:])

    return jax.tree.map(join, tree)


def replicas(tree: Tree) -> list[Tree]:
    """Return the tree as each device of this process holds it (numpy): for checks that all hold the same."""
    count = len(jax.tree.leaves(tree)[0].addressable_shards)
    return [jax.tree.map(lambda x, d=d: np.array(x.addressable_shards[d].data), tree) for d in range(count)]


def _of_first(x: Array, is_first: Array) -> Array:
    """Return the bits of an array as the one device has them on which `is_first` is true."""
    bits = x if x.dtype == jnp.bool_ else jax.lax.bitcast_convert_type(x, f"uint{8 * x.dtype.itemsize}")
    found = jax.lax.psum(jnp.where(is_first, bits.astype(jnp.uint32), 0), AXIS_NAME)
    return found != 0 if x.dtype == jnp.bool_ else jax.lax.bitcast_convert_type(found.astype(bits.dtype), x.dtype)


def _first_shard(x: Any) -> np.ndarray:
    return np.array(x.addressable_shards[0].data if isinstance(x, jax.Array) else x)
