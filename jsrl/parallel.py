"""One update on one device or several: the only file that uses pmap.

`update(state, trajectory, key, axis_name="devices")` runs on every device with its share of the batch; the update itself does
the sums over the axis. The state has no device axis: every device holds a full copy.

Only device 0's copy of the returned state is used (`out_axes=None`), so an update whose devices disagree gives wrong results
silently: tests compare all copies.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import math
import os
import signal
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from jsrl.agents.base import AgentState, Update, UpdateOutput
from jsrl.errors import ConfigError, SpecMismatch
from jsrl.types import Array, Trajectory, Tree, map_trajectory, named_leaves

AXIS_NAME = "devices"
INITIALISE_S, HEARTBEAT_S, SHUTDOWN_S = 60, 20, 10  # of jax.distributed
IN_TURN = {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}


@functools.cache
def small_calls() -> dict[str, str] | None:
    """Return the compiler options of a small program that is called very often; None: no options.

    On CPU, XLA runs independent parts of a program (actor and critic) on its threads. Waking a thread takes longer than a
    whole call of a small network: 16 rows through two networks of 64x64 take 140 us with threads and 38 us without.
    Results are bit-equal.
    """
    if jax.default_backend() != "cpu":
        return None
    try:
        jax.jit(lambda x: x, compiler_options=IN_TURN).lower(np.float32(0)).compile()
    except jax.errors.JaxRuntimeError:  # a version of XLA without this option
        return None
    return IN_TURN


def join_processes(coordinator: str, number: int, count: int, local_devices: int) -> None:
    """Join this process, number `number` of `count`, to the others for joint updates; call it before using jax.

    A process that exits without `leave_processes` ends at once and skips jax's barrier, which would wait for hung processes.

    Args:
      coordinator: HOST:PORT where process 0 listens, on that address alone. There is no authentication: any peer may join.
      local_devices: how many this process has.

    Raises:
      RuntimeError: not all processes joined within a minute.
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
    signal.signal(signal.SIGTERM, asked)  # keep the worker's handler: jax's would hide the signal from it
    atexit.register(_end_at_once)


def leave_processes() -> None:
    """Leave the group of processes cleanly, once all of them call this."""
    jax.distributed.shutdown()


def _end_at_once() -> None:
    if jax.distributed.is_initialized():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


class OnEach:
    """A compiled function of every device: arguments and results of axis 0 are split over the devices, those of None equal.

    Args:
      function: called with `axis_name`. devices: of this process. in_axes, out_axes: 0 or None, of each argument and result.
      donate: arguments.
    """

    def __init__(
        self, function: Callable[..., Any], devices: Sequence[jax.Device], in_axes: Any, out_axes: Any, donate: Any = ()
    ) -> None:
        on_each = functools.partial(function, axis_name=AXIS_NAME)
        alone = jax.process_count() == 1
        if alone and len(devices) == 1:  # a call costs a third less of Python than with pmap
            self._function = jax.jit(_on_one(on_each, devices[0], in_axes, out_axes), donate_argnums=donate)
            return
        every = list(devices) if alone else None
        self._function = jax.pmap(
            on_each, AXIS_NAME, in_axes=in_axes, out_axes=out_axes, donate_argnums=donate, devices=every
        )
        weakref.finalize(self, forget_pmap, on_each)

    def __call__(self, *args: Tree) -> Any:
        return self._function(*args)

    def compile(self, *args: Tree) -> None:
        """Compile for arrays like these without running; the next call with such arrays starts at once."""
        self._function.lower(*args).compile()  # fills the cache that calls look into


def _on_one(function: Callable[..., Any], device: jax.Device, in_axes: Any, out_axes: Any) -> Callable[..., Any]:
    """Return what pmap makes of a function for one device."""

    def each(change: Any, axes: Any, values: Any) -> Any:
        def changed(axis: int | None, part: Tree) -> Tree:
            return part if axis is None else jax.tree.map(change, part)

        return jax.tree.map(changed, axes, values, is_leaf=lambda axis: axis is None)

    def specs(axes: Any) -> Any:
        return jax.tree.map(lambda axis: P() if axis is None else P(AXIS_NAME), axes, is_leaf=lambda axis: axis is None)

    def call(*args: Tree) -> Any:
        return each(lambda x: x[None], out_axes, function(*each(lambda x: x[0], in_axes, args)))

    mesh = jax.sharding.Mesh([device], (AXIS_NAME,))
    return jax.shard_map(call, mesh=mesh, in_specs=specs(in_axes), out_specs=specs(out_axes), check_vma=False)


class Replicas:
    """Copies of a state, one on each of `devices`, which are those of this process."""

    def __init__(self, devices: Sequence[jax.Device]) -> None:
        self.devices = tuple(devices)
        self._alone = jax.process_count() == 1

        def copy(tree: Tree, is_first: Array, axis_name: str) -> Tree:
            return jax.tree.map(jnp.copy if self._alone else lambda x: _of_first(x, is_first), tree)

        self._copy = OnEach(copy, devices, (None if self._alone else 0, 0), None)

    @property
    def num_devices(self) -> int:
        """Return D, the devices of this process."""
        return len(self.devices)

    def place(self, state: Tree) -> Tree:
        """Return a copy of `state` (host, single-device or replicated arrays) on all devices.

        The caller's arrays stay valid: calls donate only states that `place` or an earlier call returned. With several
        processes all of them call this, with arrays of the same shapes, and get the state of process 0.
        """
        state, number = self.fetch(state), len(self.devices)
        if not self._alone:
            state = jax.tree.map(lambda x: np.broadcast_to(x, (number, *x.shape)), state)
        is_first = np.arange(number) + number * jax.process_index() == 0
        return jax.block_until_ready(self._copy(state, is_first))

    def make(self, init: Callable[[Array], Tree], key: Array) -> Tree:
        """Return `init(key)`, made on all devices; nothing passes through the host's memory."""
        made = OnEach(lambda key, _, axis_name: init(key), self.devices, (None, 0), None)
        return jax.block_until_ready(made(key, np.zeros(len(self.devices))))

    def fetch(self, tree: Tree) -> Tree:
        """Return copies of replicated arrays as numpy arrays, read from the first shard; no gather.

        Of a Packed tree: the tree.
        """
        return tree.unpacked() if isinstance(tree, Packed) else jax.tree.map(_first_shard, tree)


class DataParallel(Replicas):
    """An update over `devices`. Made by `data_parallel`.

    With several processes (`join_processes`) each passes its own devices' share of the batch.
    """

    def __init__(self, update: Update, devices: Sequence[jax.Device], *, donate: bool = True) -> None:
        super().__init__(devices)
        axes = (None, UpdateOutput(None, 0))  # type: ignore[arg-type]
        self._update = OnEach(update, devices, (None, 0, None), axes, donate=(0,) if donate else ())

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
        self._update.compile(state, batch, key)


@functools.partial(jax.tree_util.register_dataclass, data_fields=["vectors"], meta_fields=["structure", "leaves"])
@dataclasses.dataclass(frozen=True)
class Packed:
    """A tree of arrays laid end to end, so that it leaves its device in one transfer for each dtype.

    Attributes:
      vectors: dtype -> [n]. structure: of the tree. leaves: (dtype, shape) of each.
    """

    vectors: dict[str, Array]
    structure: Any
    leaves: tuple[tuple[str, tuple[int, ...]], ...]

    def unpacked(self) -> Tree:
        """Return the tree as numpy arrays, which must not be written; waits until it is computed."""
        vectors = jax.device_get({name: x.addressable_shards[0].data for name, x in self.vectors.items()})
        at, found = dict.fromkeys(vectors, 0), list[np.ndarray]()
        for name, shape in self.leaves:
            end = at[name] + math.prod(shape)
            found.append(vectors[name][at[name] : end].reshape(shape))
            at[name] = end
        return jax.tree.unflatten(self.structure, found)


def pack(tree: Tree) -> Packed:
    """Return a tree of arrays packed; call it in a compiled function."""
    leaves, structure = jax.tree.flatten(jax.tree.map(jnp.asarray, tree))
    parts: dict[str, list[Array]] = {}
    for leaf in leaves:
        parts.setdefault(leaf.dtype.name, []).append(leaf.ravel())
    vectors = {name: jnp.concatenate(part) for name, part in parts.items()}
    return Packed(vectors, structure, tuple((leaf.dtype.name, leaf.shape) for leaf in leaves))


def forget_pmap(function: Callable[..., Any]) -> None:
    """Free jax's cached program of a function given to `jax.pmap`, once nothing calls it any more.

    jax 0.10 never frees it: the cache's key is a weak reference to the function, but the cached value refers to the function.
    That leaks about 20 MB of compiled program per run in one process. A jax without that cache needs nothing.
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


def _of_first(x: Array, is_first: Array) -> Array:
    """Return the exact bits that an array has on the one device where `is_first` is true."""
    bits = x if x.dtype == jnp.bool_ else jax.lax.bitcast_convert_type(x, f"uint{8 * x.dtype.itemsize}")
    wide = bits.astype(jnp.uint32) if bits.dtype.itemsize < 4 else bits
    found = jax.lax.psum(jnp.where(is_first, wide, 0), AXIS_NAME)
    return found != 0 if x.dtype == jnp.bool_ else jax.lax.bitcast_convert_type(found.astype(bits.dtype), x.dtype)


def _first_shard(x: Any) -> np.ndarray:
    return np.array(x.addressable_shards[0].data if isinstance(x, jax.Array) else x)
