"""Replay on the device: a ring of rows [C, N] and draws from it, as pure functions over one pytree.

`add` writes the T rows of a trajectory after the earlier ones, then its bootstrap row, which row 0 of the next
trajectory replaces: windows cross the boundaries of trajectories. A column is an environment, so trajectories of a column must
follow each other. If an environment started over in between, row 0 is_first although the bootstrap row was not: a gap, at
which windows end with the bootstrap row (jsrl/replay/device/gaps.py).

A window starts at a row of mask 1 (for agents with a core: at row 0 of a trajectory, where the core is known) and has
`window` rows and a bootstrap row. Frames of a stack are stored once (EnvSpec.frames) and stacked again when drawn.

Everything is written in place if the state is donated: nothing here copies the ring.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jsrl.errors import ConfigError
from jsrl.experiment.settings import ReplayConfig
from jsrl.replay import shared
from jsrl.replay.device.gaps import FirstGap, Gaps, end_at_gaps, find_gaps, is_kept, keep, no_gaps, put_stored
from jsrl.replay.device.tree import FAN_OUT, SumTree, find, init_tree, set_weights
from jsrl.types import Array, Trajectory, Tree, leaves, map_trajectory, spread

DRAWS = 4  # uniform draws of a start before one with mask 0 is accepted


@dataclass(frozen=True)
class RingShape:
    """The constants of a ring.

    Attributes:
      capacity: rows C of each environment, a multiple of `num_rows`. num_envs: N. num_rows: T of added trajectories.
      window: rows of a window. stride: rows between starts: 1, or T if only row 0 of a trajectory has its core.
      frames: frames per observation (None: stored unchanged). prioritised: whether starts have priorities.
    """

    capacity: int
    num_envs: int
    num_rows: int
    window: int
    stride: int = 1
    frames: int | None = None
    prioritised: bool = False

    @property
    def history(self) -> int:
        """Return how many rows before a window its oldest stack needs."""
        return (self.frames or 1) - 1


class Ring(NamedTuple):
    """The state.

    Attributes:
      rows: leaves [C * N, ...], row-major (`core`: [C / T * N, ...]). fresh: bool [C * N], where a stack begins (or ()).
      tree: priorities of starts [C / stride * N] (or ()). highest: float32, the highest priority so far.
      written: int32, rows per environment so far. gaps: bootstrap rows that were not followed by the next trajectory.
    """

    rows: Trajectory
    fresh: Any
    tree: SumTree
    highest: Array
    written: Array
    gaps: Gaps


def ring_shape(config: ReplayConfig, spec: Trajectory, frames: int | None = None) -> RingShape:
    """Return the shape of a ring for trajectories of a schema [T+1, N, ...]; its capacity is rounded to whole ones."""
    capacity, window = config.capacity, config.window
    num_rows, num_envs = spec.is_first.shape[0] - 1, spec.is_first.shape[1]
    stride = num_rows if leaves(spec.core) else 1
    rows = max(1, round(capacity / (num_envs * num_rows))) * num_rows
    shape = RingShape(rows, num_envs, num_rows, window, stride, frames, config.prioritised)
    needed = 2 * num_rows + window + shape.history + 1
    if rows < needed:
        raise ConfigError(
            f"replay.capacity {capacity} is {rows} rows of each of {num_envs} environments; trajectories of {num_rows} rows "
            f"and windows of {window} need {needed}: set it to {-(-needed // num_rows) * num_rows * num_envs} or more."
        )
    if rows * num_envs >= 1 << 31:
        raise ConfigError(f"replay.capacity {capacity} is too large; a ring has at most 2^31 rows: lower it.")
    return shape


def init_ring(shape: RingShape, spec: Trajectory) -> Ring:
    """Return an empty ring for trajectories of a schema (`spec.version` is not kept)."""
    size = shape.capacity * shape.num_envs

    def rows(leaf: Any) -> Array:
        return jnp.zeros((size, *leaf.shape[2:]), jax.dtypes.canonicalize_dtype(leaf.dtype))

    def columns(leaf: Any) -> Array:
        return jnp.zeros((size // shape.num_rows, *leaf.shape[1:]), leaf.dtype)

    kept = spec._replace(version=(), sampling=())
    stored = map_trajectory(rows, columns, kept)
    fresh: Any = ()
    if shape.frames is not None:
        stored = stored._replace(observation=stored.observation[..., -1])
        fresh = jnp.zeros(size, bool)
    tree = init_tree(size // shape.stride) if shape.prioritised else ()
    gaps = no_gaps((stored.observation, stored.state), stored.acts, shape.num_envs)
    return Ring(stored, fresh, tree, jnp.ones((), jnp.float32), jnp.zeros((), jnp.int32), gaps)


def add(shape: RingShape, ring: Ring, trajectory: Trajectory) -> Ring:
    """Return the ring with the rows of a trajectory [T+1, N, ...], which replace the oldest ones."""
    at = ring.written % shape.capacity
    given = trajectory._replace(version=(), sampling=())
    fresh: Any = ()
    if shape.frames is not None:
        observation = trajectory.observation
        older = jnp.any(observation[..., :-1] != 0, axis=tuple(range(2, observation.ndim)))
        fresh = _write(shape, ring.fresh, trajectory.is_first & ~older, at)
        given = given._replace(observation=observation[..., -1])
    after = (at + shape.num_rows) % shape.capacity
    gaps = keep(ring.gaps, (given.observation, given.state), given.acts, given.is_first, at, after)

    def rows(stored: Array, new: Array) -> Array:
        return _write(shape, stored, new.astype(stored.dtype), at)

    def columns(stored: Array, new: Array) -> Array:
        start = at // shape.num_rows * shape.num_envs
        return jax.lax.dynamic_update_slice_in_dim(stored, new.astype(stored.dtype), start, 0)

    stored = map_trajectory(rows, columns, ring.rows, given)
    ring = ring._replace(rows=stored, fresh=fresh, written=ring.written + shape.num_rows, gaps=gaps)
    return _open_starts(shape, ring) if shape.prioritised else ring


def _write(shape: RingShape, stored: Array, new: Array, at: Array) -> Array:
    """Write rows 0 to T-1 at row `at`, which is a multiple of T, and row T after them."""
    num_rows, envs = shape.num_rows, shape.num_envs
    flat = new.reshape(-1, *new.shape[2:])
    stored = jax.lax.dynamic_update_slice_in_dim(stored, flat[: num_rows * envs], at * envs, 0)
    after = (at + num_rows) % shape.capacity * envs
    return jax.lax.dynamic_update_slice_in_dim(stored, flat[num_rows * envs :], after, 0)


def size(shape: RingShape, ring: Ring) -> Array:
    """Return how many env steps the ring holds."""
    return jnp.minimum(ring.written, shape.capacity - 1) * shape.num_envs


def num_starts(shape: RingShape, ring: Ring) -> Array:
    """Return the number of possible starts of windows, including those with mask 0."""
    return _starts(shape, ring)[1] * shape.num_envs


def _starts(shape: RingShape, ring: Ring) -> tuple[Array, Array]:
    """Return (oldest start, as a row counted from the first ever; number of starts) of each environment."""
    lost = ring.written - shape.capacity + 1
    oldest = jnp.where(lost > 0, lost + shape.history, 0)
    oldest = (oldest + shape.stride - 1) // shape.stride * shape.stride
    return oldest, jnp.maximum((ring.written - shape.window - oldest) // shape.stride + 1, 0)


def _mask(shape: RingShape, ring: Ring, ids: Array) -> Array:
    """Return bool [..]: mask of the starts `ids`; sequences may start at any row."""
    if shape.stride > 1:
        return jnp.ones(ids.shape, bool)
    rows, envs = ids // shape.num_envs, ids % shape.num_envs
    acts = ring.rows.acts[ids] != 0
    following = (rows + 1) % shape.capacity
    goes_on = ~ring.rows.is_first[following * shape.num_envs + envs] | is_kept(ring.gaps, following, envs)
    return acts.reshape(*ids.shape, -1).any(axis=-1) & goes_on


# -- priorities -------------------------------------------------------------------------------------------------------


def _open_starts(shape: RingShape, ring: Ring) -> Ring:
    """Give windows completed by a trajectory the highest priority, and those that lost rows none."""
    before = ring.written - shape.num_rows
    overwritten = before + jnp.arange(0, shape.num_rows + 1 + shape.history, shape.stride)
    completed = before - shape.window + 1 + jnp.arange(shape.num_rows)
    if shape.stride > 1:
        last = (ring.written - shape.window) // shape.stride * shape.stride
        completed = jnp.where(last > before - shape.window, last, -1)[None]
    closed, opened = _ids(shape, overwritten), _ids(shape, completed)
    reopened = (overwritten >= completed[0]) & (overwritten <= completed[-1])
    weights = jnp.where(_mask(shape, ring, opened), ring.highest, 0.0)
    places = [_where(shape, ~reopened, closed), _where(shape, completed >= 0, opened)]
    families = jnp.concatenate([_families(closed), _families(opened)])
    both = jnp.concatenate([jnp.zeros(closed.shape), weights])
    return ring._replace(tree=set_weights(ring.tree, jnp.concatenate(places), both, families))


def _ids(shape: RingShape, rows: Array) -> Array:
    """Return the starts of all environments at these rows (counted from the first ever), row-major."""
    places = rows // shape.stride % (shape.capacity // shape.stride) * shape.num_envs
    return (places[:, None] + jnp.arange(shape.num_envs)).reshape(-1)


def _where(shape: RingShape, rows: Array, ids: Array) -> Array:
    """Return the starts at the rows that are true, and for the others one that is ignored."""
    return jnp.where(jnp.repeat(rows, shape.num_envs), ids, jnp.iinfo(jnp.int32).max)


def _families(run: Array) -> Array:
    """Return the families of a range of places; if it wraps to 0, also those of its largest place and of 0."""
    return jnp.concatenate([run[::FAN_OUT], run[-1:], jnp.max(run)[None], jnp.zeros(1, run.dtype)]) // FAN_OUT


def feedback(config: ReplayConfig, ring: Ring, ids: Array, arrays: Mapping[str, Array]) -> Ring:
    """Return the ring with what an update found for the windows drawn as `ids`: new priorities [M], 0 or more."""
    weights = shared.weights_of(config, arrays[shared.PRIORITIES])
    highest = jnp.maximum(ring.highest, weights.max())
    return ring._replace(tree=set_weights(ring.tree, ids, weights.astype(jnp.float32)), highest=highest)


# -- drawing ----------------------------------------------------------------------------------------------------------


def draw(shape: RingShape, ring: Ring, key: Array, number: int) -> tuple[Array, Array]:
    """Return (ids int32 [number], chances float32 [number] up to a factor) of windows: uniformly, or by priority."""
    if shape.prioritised:
        offsets = jax.random.uniform(key, (number,))
        return find(ring.tree, (jnp.arange(number) + offsets) / number)
    oldest, count = _starts(shape, ring)
    chosen = jax.random.randint(key, (DRAWS, number), 0, jnp.maximum(count, 1) * shape.num_envs)
    row, env = oldest + chosen // shape.num_envs * shape.stride, chosen % shape.num_envs
    ids = row // shape.stride % (shape.capacity // shape.stride) * shape.num_envs + env
    first = jnp.argmax(_mask(shape, ring, ids), axis=0)
    return jnp.take_along_axis(ids, first[None], axis=0)[0], jnp.ones(number, jnp.float32)


def weights_of(chances: Array, beta: Array) -> Array:
    """Return importance weights: (chance / the smallest in the batch)^-beta, at most 1."""
    return (jnp.maximum(chances, 1e-30) / jnp.maximum(chances.min(), 1e-30)) ** -beta


def read(shape: RingShape, ring: Ring, ids: Array) -> Trajectory:
    """Return the windows [W+1, M, ...] that start at `ids` (version is 0: it is not kept)."""
    start, env = ids // shape.num_envs * shape.stride, ids % shape.num_envs

    def ring_rows(rows: Array) -> Array:
        return (start + rows[:, None]) % shape.capacity

    here = ring_rows(jnp.arange(shape.window + 1))
    gap, here = find_gaps(ring.gaps, here, env), here * shape.num_envs + env
    stored = ring.rows._replace(observation=())

    drawn = map_trajectory(lambda leaf: leaf[here], lambda leaf: leaf[ids], stored)  # a core: ids count trajectories
    drawn = end_at_gaps(ring.gaps, gap, drawn)
    drawn = drawn._replace(state=put_stored(ring.gaps.seen[1], gap, drawn.state))
    if shape.frames is None:
        observation: Tree = jax.tree.map(lambda leaf: leaf[here], ring.rows.observation)
        observation = put_stored(ring.gaps.seen[0], gap, observation)
    else:
        around = ring_rows(jnp.arange(-shape.history, shape.window + 1)) * shape.num_envs + env
        observation = _stack(shape, ring, around, gap)
    return drawn._replace(observation=observation, version=jnp.zeros(drawn.acts.shape, jnp.int32))


def _stack(shape: RingShape, ring: Ring, places: Array, gap: FirstGap) -> Array:
    """Return stacks [W+1, M, ..., frames] from rows that start `history` before the window; black before an episode."""
    frames, count = ring.rows.observation[places], shape.window + 1
    frames = put_stored(ring.gaps.seen[0], gap, frames, shape.history)
    at_gap = gap.found & (jnp.arange(len(places))[:, None] == gap.at + shape.history)
    fresh = ring.fresh[places] & ~at_gap  # the bootstrap row's stack continues
    goes_on = jnp.ones((count, *fresh.shape[1:]), bool)
    stacked = []
    for back in range(shape.history + 1):
        begin = shape.history - back
        part = frames[begin : begin + count]
        stacked.append(part * spread(goes_on, part).astype(part.dtype))
        goes_on = goes_on & ~fresh[begin : begin + count]
    return jnp.stack(stacked[::-1], axis=-1)
