"""`on_device`: turns an off-policy agent that learns from windows into an agent that learns from the actors' trajectories.

The ring is in AgentState.extra. One update adds a trajectory and makes K updates of the agent with windows drawn from
the ring, in one compiled call; every placement, snapshots and resume work with it as with any other agent.

On D devices every device holds the whole ring. The devices' shares of the trajectory are gathered, all devices draw the same
windows, and each learns from its part of them. So D devices do the same as one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jsrl.agents.base import MADE, Agent, AgentState, Failure, ReplayExtra, UpdateOutput, with_extra
from jsrl.agents.minibatches import update_keys
from jsrl.errors import ConfigError
from jsrl.experiment.settings import ReplayConfig
from jsrl.replay.device.ring import (
    Ring,
    RingShape,
    add,
    draw,
    feedback,
    init_ring,
    num_starts,
    read,
    ring_shape,
    size,
    weights_of,
)
from jsrl.replay.device.tree import SumTree
from jsrl.replay.shared import PRIORITIES, beta_at
from jsrl.types import Array, Trajectory, Tree, map_trajectory


class _Carry(NamedTuple):
    """The values that change between updates of one call: the agent's own state, the ring's priorities, a failure."""

    state: AgentState
    tree: SumTree
    highest: Array
    failure: Failure


@dataclass(frozen=True)
class OnDevice:
    """An off-policy agent combined with a ring on the device, by `on_device`; for the attributes see there.

    Attributes:
      own: the agent whose `update` learns from windows.
    """

    own: Agent
    config: ReplayConfig
    shape: RingShape
    spec: Trajectory
    total_updates: int | None

    @functools.cached_property
    def agent(self) -> Agent:
        """Return the combination."""
        return with_extra(self.own, self.begin, self.update)

    def pack(self, state: AgentState) -> AgentState:
        """Return the snapshot of a state."""
        return state if self.config.save else state._replace(extra=state.extra._replace(ring=()))

    def unpack(self, packed: AgentState, make: Callable[[], AgentState]) -> AgentState:
        """Return the state of a snapshot; `make`: returns a fresh state of the combination."""
        return packed if self.config.save else packed._replace(extra=packed.extra._replace(ring=make().extra.ring))

    def failed(self, state: AgentState) -> tuple[AgentState, Trajectory, Array]:
        """Return (the agent's own state before the failed update, its windows, its number in its call)."""
        extra: ReplayExtra = state.extra
        windows = self._windows(extra.ring, extra.failure.ids, extra.failure.weights)
        return state._replace(extra=extra.agent), windows, extra.failure.number

    @property
    def calls(self) -> int:
        """Return K, the updates of one call."""
        return self.config.updates_per_call or 1

    def begin(self, own: Tree) -> ReplayExtra:
        number = self.config.batch_size
        failure = Failure(_none(), jnp.zeros(number, jnp.int32), jnp.zeros(number, jnp.float32))
        return ReplayExtra(own, init_ring(self.shape, self.spec), jnp.zeros((), jnp.int32), failure)

    def update(
        self, own: AgentState, extra: ReplayExtra, trajectory: Trajectory, key: Array, axis_name: str | None
    ) -> tuple[AgentState, ReplayExtra, UpdateOutput]:
        """Add a trajectory [T+1, N, ...] and make K updates with windows (none before the ring has `min_size` rows)."""
        ring = add(self.shape, extra.ring, _all_columns(trajectory, axis_name))
        before = _Carry(own, ring.tree, ring.highest, extra.failure._replace(number=_none()))
        held = size(self.shape, ring)
        ready = (held >= self.config.min_size) & (num_starts(self.shape, ring) > 0)

        def learn(carry: _Carry) -> tuple[_Carry, dict[str, Array]]:
            def one(now: _Carry, number: Array) -> tuple[_Carry, dict[str, Array]]:
                return self._update_once(now, ring, number, key, extra.made, axis_name)

            return jax.lax.scan(one, carry, jnp.arange(self.calls, dtype=jnp.int32))

        def wait(carry: _Carry) -> tuple[_Carry, dict[str, Array]]:
            shapes = jax.eval_shape(learn, carry)[1]
            return carry, jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

        after, metrics = jax.lax.cond(ready, learn, wait, before)
        made = jnp.where(ready, self.calls, 0).astype(jnp.int32)
        kept = ring._replace(tree=after.tree, highest=after.highest)
        means = {name: values.astype(jnp.float32).mean() for name, values in metrics.items()}
        means |= {MADE: made.astype(jnp.float32), "replay/size": held.astype(jnp.float32)}
        return after.state, ReplayExtra((), kept, extra.made + made, after.failure), UpdateOutput(means)

    def _update_once(
        self, now: _Carry, ring: Ring, number: Array, key: Array, made: Array, axis_name: str | None
    ) -> tuple[_Carry, dict[str, Array]]:
        draw_key, update_key = update_keys(key, number)
        ring = ring._replace(tree=now.tree, highest=now.highest)
        ids, chances = draw(self.shape, ring, draw_key, self.config.batch_size)
        weights = weights_of(chances, self._beta(made + number))
        windows = self._windows(ring, _share(ids, axis_name), _share(weights, axis_name))
        state, output = self.own.update(now.state, windows, update_key, axis_name=axis_name)
        failure = now.failure
        good = _finite(output.metrics) & (failure.number < 0)
        state = _choose(good, state, now.state)
        failure = _choose(good | (failure.number >= 0), failure, Failure(number, ids, weights))
        if self.config.prioritised:
            places = jnp.where(good, ids, jnp.iinfo(jnp.int32).max)  # beyond the tree: ignored
            priorities = jnp.where(good, _gathered(output.priorities, axis_name), 0.0)
            ring = feedback(self.config, ring, places, {PRIORITIES: priorities})
        return _Carry(state, ring.tree, ring.highest, failure), output.metrics

    def _beta(self, made: Array) -> Array:
        share = jnp.minimum(made / float(self.total_updates), 1.0) if self.total_updates else jnp.zeros(())
        return beta_at(self.config, share)

    def _windows(self, ring: Ring, ids: Array, weights: Array) -> Trajectory:
        return read(self.shape, ring, ids)._replace(sampling=weights if self.config.prioritised else ())


def on_device(
    agent: Agent,
    config: ReplayConfig,
    spec: Trajectory,
    *,
    frames: int | None = None,
    total_updates: int | None = None,
) -> OnDevice:
    """Combine an off-policy agent with a ring on the device.

    After an update whose metrics are not finite the previous state is kept, and no further one is made.

    Args:
      agent: its `update` learns from windows [W+1, M, ...]. config: of the replay.
      spec: schema [T+1, N, ...] of the combined update's trajectories.
      frames: EnvSpec.frames of the environment. total_updates: of the agent in the whole run, for beta (None: fixed).

    Raises:
      ConfigError: the ring is too small.
    """
    shape = ring_shape(config, spec, frames)
    most = (shape.capacity - 1) * shape.num_envs
    if config.min_size > most:
        raise ConfigError(
            f"replay.min_size {config.min_size} is never reached: of replay.capacity {config.capacity} the ring holds at most "
            f"{most} rows of {shape.num_envs} environments at once; lower min_size, or raise capacity."
        )
    anneals_over = total_updates if config.prioritised else None  # one compiled program for runs of any length
    return OnDevice(agent, config, shape, spec, anneals_over)


def _none() -> Array:
    return jnp.full((), -1, jnp.int32)


# -- devices ----------------------------------------------------------------------------------------------------------


def _share(x: Array, axis_name: str | None) -> Array:
    """Return this device's part of an array [M, ...] that all devices hold."""
    if axis_name is None:
        return x
    count = x.shape[0] // jax.lax.axis_size(axis_name)
    return jax.lax.dynamic_slice_in_dim(x, jax.lax.axis_index(axis_name) * count, count)


def _gathered(x: Array, axis_name: str | None, axis: int = 0) -> Array:
    return x if axis_name is None else jax.lax.all_gather(x, axis_name, axis=axis, tiled=True)


def _all_columns(trajectory: Trajectory, axis_name: str | None) -> Trajectory:
    return map_trajectory(lambda x: _gathered(x, axis_name, 1), lambda x: _gathered(x, axis_name), trajectory)


# -- one update -------------------------------------------------------------------------------------------------------


def _finite(metrics: dict[str, Array]) -> Array:
    checks = [jnp.all(jnp.isfinite(value)) for value in metrics.values()]
    return jnp.all(jnp.array(checks)) if checks else jnp.array(True)


def _choose(condition: Array, yes: Tree, no: Tree) -> Tree:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)
