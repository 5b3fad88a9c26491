"""Environments, acting and updates as one program: pure functions over arrays, which one compiled call runs many times.

The rows are those of `jsrl.types`, and the keys those of actors: on D devices group d of the environments is on device d, so
that a run has the episodes, actions and updates of a serial run with as many groups and devices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jsrl.agents.base import MADE, Agent, AgentState
from jsrl.envs.adapters.in_jax import JaxEnv, reset_all, step_all
from jsrl.types import Array, EnvSpec, Trajectory, Tree, map_tree, spread, to_environment


class Envs(NamedTuple):
    """One group of B environments between two rows; all of it is in snapshots.

    Attributes:
      state: of the environments. observation, is_first: of the row that is acted on next. core: before it.
      ended: bool [B], that row is an episode's last one, so that the step after it resets the environment.
      length: int32 [B], return_: float32 [B], of the open episodes.
      batches: int32, trajectories so far. keys: uint32 [3, ...], key data: of the environments, of acting, of updates.
    """

    state: Tree
    observation: Tree
    is_first: Array
    ended: Array
    length: Array
    return_: Array
    core: Tree
    batches: Array
    keys: Array


class Episodes(NamedTuple):
    """Sums over episodes that ended. finite: whether all observations and rewards were."""

    count: Array
    return_: Array
    length: Array
    finite: Array


class Made(NamedTuple):
    """What a call made.

    Attributes:
      batches: int32, trajectories of each group. metrics: means over the updates; `MADE` is their number.
      last: metrics of the last update. good: whether they, and the last observations and rewards, were finite; if not, that
        trajectory and its update are not among those above.
      episodes: of all devices.
    """

    batches: Array
    metrics: dict[str, Array]
    last: dict[str, Array]
    good: Array
    episodes: Episodes


class _Carry(NamedTuple):
    """What changes from one trajectory of a call to the next. learned: trajectories after which updates were made."""

    state: AgentState
    envs: Envs
    batches: Array
    learned: Array
    good: Array
    sums: dict[str, Array]
    last: dict[str, Array]
    episodes: Episodes


@dataclass(frozen=True)
class Program:
    """The functions of one experiment.

    Attributes:
      agent: its update makes `updates` updates with a trajectory [T+1, B, ...]. act: schema of an action, see InferenceSpec.
      spec: its observations; with N seats, one policy plays all of them, and what is [T+1, B] elsewhere is [T+1, B, N].
      num_rows: T. num_envs: B, on this device. max_steps: of an episode, or None.
      keeps: undo an update whose metrics are not finite; replay on the device does so itself, without a copy of its rows.
    """

    agent: Agent
    env: JaxEnv
    spec: EnvSpec
    extras: Tree
    num_rows: int
    num_envs: int
    updates: int = 1
    max_steps: int | None = None
    keeps: bool = True

    def begin(self, keys: Array) -> Envs:
        """Return the environments of a group at the start; `keys`: see Envs."""
        state, observation = reset_all(self.env, self.num_envs, jax.random.wrap_key_data(keys[0]), jnp.uint32(1))
        size = self.num_envs
        return Envs(
            state,
            self._seen(observation),
            is_first=jnp.ones(size, bool),
            ended=jnp.zeros(size, bool),
            length=jnp.zeros(size, jnp.int32),
            return_=jnp.zeros(size, jnp.float32),
            core=self.agent.initial_core(size),
            batches=jnp.zeros((), jnp.int32),
            keys=keys,
        )

    def _seen(self, observation: Tree) -> Tree:
        return map_tree(lambda leaf, x: jnp.asarray(x, leaf.dtype), self.spec.observation, observation)

    def play(self, params: Tree, envs: Envs) -> tuple[Envs, Trajectory, Episodes]:
        """Return the environments after a trajectory [T+1, B, ...], the trajectory, and the episodes that ended in it."""
        none = Episodes(jnp.int32(0), jnp.float32(0), jnp.int32(0), jnp.array(True))
        (after, episodes), rows = jax.lax.scan(
            lambda carry, row: self._row(params, carry, row), (envs, none), jnp.arange(self.num_rows, dtype=jnp.uint32)
        )

        def with_last(x: Array, last: Array) -> Array:
            return jnp.concatenate([x, last[None]])

        def with_blank(x: Array) -> Array:
            return jnp.concatenate([x, jnp.zeros_like(x[:1])])

        blank = jax.tree.map(with_blank, rows._replace(observation=(), is_first=()))
        trajectory = blank._replace(
            observation=jax.tree.map(with_last, rows.observation, after.observation),
            is_first=with_last(rows.is_first, after.is_first),
            acts=jnp.ones(blank.reward.shape, jnp.uint8),
            core=envs.core if self.agent.store_core else (),
        )
        return after._replace(batches=envs.batches + 1), trajectory, episodes

    def _row(self, params: Tree, carry: tuple[Envs, Episodes], row: Array) -> tuple[tuple[Envs, Episodes], Trajectory]:
        """Act and step once; return the carry, and the row without what a bootstrap row has as well."""
        envs, episodes = carry
        number = envs.batches.astype(jnp.uint32) * self.num_rows + row
        env_key, act_key = (jax.random.wrap_key_data(envs.keys[i]) for i in range(2))
        output, core = self.agent.act(
            params, jax.random.fold_in(act_key, number), envs.observation, envs.is_first, envs.core
        )
        action = output.action.astype(self.spec.action.array.dtype)
        stepped = step_all(
            self.env, env_key, number + 2, envs.state, to_environment(self.spec.action, action, jnp), envs.ended
        )
        reward = jnp.where(spread(envs.ended, stepped.reward), 0.0, stepped.reward.astype(jnp.float32))
        length = jnp.where(envs.ended, 0, envs.length + 1)
        truncated = stepped.truncated.astype(bool)
        if self.max_steps is not None:
            truncated |= length >= self.max_steps
        terminated = stepped.terminated.astype(bool)
        over = (terminated | truncated) & ~envs.ended
        earned = reward if self.spec.num_agents is None else reward.mean(axis=1)
        return_ = jnp.where(envs.ended, 0.0, envs.return_) + earned
        observation = self._seen(stepped.observation)
        played = Trajectory(
            observation=envs.observation,
            is_first=envs.is_first,
            action=action,
            reward=reward,
            discount=jnp.where(spread(over & terminated, reward), 0.0, jnp.ones_like(reward)),
            acts=(),
            log_prob=output.log_prob.astype(jnp.float32),
            extras=map_tree(lambda leaf, x: x.astype(leaf.dtype), self.extras, output.extras),
            version=jnp.full(reward.shape, envs.batches * self.updates, jnp.int32),
            core=(),
        )
        floats = [x for x in jax.tree.leaves((observation, reward)) if jnp.issubdtype(x.dtype, jnp.floating)]
        finite = jnp.all(jnp.array([jnp.all(jnp.isfinite(x)) for x in floats]))
        episodes = Episodes(
            episodes.count + over.sum(dtype=jnp.int32),
            episodes.return_ + jnp.where(over, return_, 0.0).sum(),
            episodes.length + jnp.where(over, length, 0).sum(dtype=jnp.int32),
            episodes.finite & finite,
        )
        after = Envs(stepped.state, observation, envs.ended, over, length, return_, core, envs.batches, envs.keys)
        return (after, episodes), played

    def learn(
        self, state: AgentState, envs: Envs, axis_name: str | None
    ) -> tuple[AgentState, Envs, dict[str, Array], Episodes]:
        """Play one trajectory and make its updates."""
        number = envs.batches * self.updates
        envs, trajectory, episodes = self.play(state.params, envs)
        key = jax.random.fold_in(jax.random.wrap_key_data(envs.keys[2]), number)
        state, output = self.agent.update(state, trajectory, key, axis_name=axis_name)
        if axis_name is not None:
            count, return_, length, bad = jax.lax.psum((*episodes[:3], jnp.int32(~episodes.finite)), axis_name)
            episodes = Episodes(count, return_, length, bad == 0)
        metrics = {name: value.astype(jnp.float32) for name, value in output.metrics.items()}
        return state, envs, metrics, episodes

    def run(
        self, state: AgentState, envs: Envs, batches: Array, axis_name: str | None = None
    ) -> tuple[AgentState, Envs, Made]:
        """Play and learn from `batches` trajectories, a number that may change from call to call.

        After numbers that are not finite it stops: with the state before them (`keeps`).
        """
        metrics, episodes = jax.eval_shape(lambda s, e: self.learn(s, e, axis_name)[2:], state, envs)
        sums = {name: jnp.zeros((), jnp.float32) for name in metrics}
        none = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), episodes)._replace(finite=jnp.array(True))
        zero = jnp.zeros((), jnp.int32)

        def goes_on(now: _Carry) -> Array:
            return now.good & (now.batches < batches)

        def one(now: _Carry) -> _Carry:
            state, envs, metrics, ended = self.learn(now.state, now.envs, axis_name)
            good = ended.finite & jnp.all(jnp.isfinite(jnp.array([0.0, *metrics.values()])))
            if self.keeps:
                state, envs = jax.tree.map(lambda a, b: jnp.where(good, a, b), (state, envs), (now.state, now.envs))
            learned = good & (metrics.get(MADE, 1.0) > 0)
            sums = {name: now.sums[name] + jnp.where(learned, value, 0.0) for name, value in metrics.items()}
            total = jax.tree.map(jnp.add, now.episodes, ended)._replace(finite=ended.finite)
            return _Carry(state, envs, now.batches + good, now.learned + learned, good, sums, metrics, total)

        end = jax.lax.while_loop(goes_on, one, _Carry(state, envs, zero, zero, jnp.array(True), sums, sums, none))
        means = {name: value / jnp.maximum(end.learned, 1) for name, value in end.sums.items()}
        means |= {name: value for name, value in end.last.items() if name.startswith("replay/")}
        means[MADE] = end.sums[MADE] if MADE in metrics else end.learned.astype(jnp.float32)
        return end.state, end.envs, Made(end.batches, means, end.last, end.good, end.episodes)
