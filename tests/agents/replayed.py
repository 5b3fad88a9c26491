"""Shared by the tests of off-policy algorithms: a plain loop that stores every row in numpy and samples windows."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np

from jsrl.agents.base import Agent, AgentState
from jsrl.envs.config import EnvConfig
from jsrl.games.probes import PROBES, Probe
from jsrl.types import ArraySpec as Spec
from jsrl.types import (
    Continuous,
    Trajectory,
    make_trajectory_spec,
    map_tree,
    named_leaves,
    spec_of,
    to_environment,
    zeros,
)


def make_env(name: str, *, action: Any = None, num_envs: int = 8, steps: int | None = None, **kwargs: Any) -> Probe:
    """Return a probe; where its reward does not depend on actions, with another action space."""
    kind = PROBES[name]
    attributes = {} if action is None else {"action": action}
    if steps is not None:
        attributes["steps"] = steps
    chosen = type(kind.__name__, (kind,), attributes)
    return chosen(EnvConfig(f"probe:{name}"), num_envs, 0, **kwargs)


REAL = Continuous((-2.0,), (2.0,), "rescale")


class Played(NamedTuple):
    """Final values of the loop: state, metrics and priorities of the last update, mean return of the last 100 episodes."""

    state: AgentState
    metrics: dict[str, float]
    priorities: np.ndarray | None
    score: float


class Rows:
    """Every row of a run, in sequence: leaves [capacity + 1, B, ...], and the cores before each row."""

    def __init__(self, agent: Agent, env: Probe, capacity: int) -> None:
        core = map_tree(lambda s: Spec(s.shape[1:], s.dtype), spec_of(agent.initial_core(env.num_envs)))
        shapes = jax.eval_shape(agent.init, jax.random.key(0)).params
        call = (jax.random.key(0), *self.request(agent, env))
        output, _ = jax.eval_shape(agent.act, shapes, *call)
        extras = jax.tree.map(lambda s: Spec(s.shape[1:], str(s.dtype)), output.extras)
        self.kept = zeros(make_trajectory_spec(env.spec, extras, (), num_rows=capacity, num_envs=env.num_envs))
        self.cores = zeros(map_tree(lambda s: s.batched(capacity, env.num_envs), core))
        self.size, self.store_core = 0, agent.store_core

    @staticmethod
    def request(agent: Agent, env: Probe) -> tuple[Any, np.ndarray, Any]:
        observation = zeros(map_tree(lambda s: s.batched(env.num_envs), env.spec.observation))
        return observation, np.ones(env.num_envs, bool), agent.initial_core(env.num_envs)

    def put(self, to: Any, value: Any) -> None:
        for (_, target), leaf in zip(named_leaves(to), jax.tree.leaves(value), strict=True):
            target[self.size] = leaf

    def sample(self, rng: np.random.Generator, batch: int, window: int) -> Trajectory:
        """Return windows [window + 1, batch, ...] that start at any row."""
        start = rng.integers(self.size - window, size=batch)  # the last row drawn is at most size - 1
        column = rng.integers(self.kept.is_first.shape[1], size=batch)
        index = start + np.arange(window + 1)[:, None]
        drawn = map_tree(lambda x: x[index, column], self.kept)
        if not self.store_core:
            return drawn
        return drawn._replace(core=map_tree(lambda x: x[start, column], self.cores))


def play(
    agent: Agent,
    env: Probe,
    *,
    num_updates: int,
    window: int = 1,
    batch: int = 64,
    warm_up: int = 10,
    updates_per_step: int = 1,
    weights: bool = False,
    seed: int = 0,
) -> Played:
    """Run act -> step -> store -> sample -> update; `warm_up` env steps come before the first update."""

    @jax.jit
    def act(params, key, count, *request):
        return agent.act(params, jax.random.fold_in(key, 2 * count), *request)

    @jax.jit
    def update(state, drawn, key, count):
        return agent.update(state, drawn, jax.random.fold_in(key, 2 * count + 1))

    state, key = jax.jit(agent.init)(jax.random.key(seed)), jax.random.key(seed + 1)
    rng, core = np.random.default_rng(seed), agent.initial_core(env.num_envs)
    rows = Rows(agent, env, warm_up + num_updates // updates_per_step + window + 2)
    step, output, returns = env.reset(), None, []
    for count in range(warm_up + window + 1 + num_updates // updates_per_step):
        rows.put(rows.kept.observation, step.observation)
        rows.kept.is_first[count], rows.kept.acts[count] = step.is_first, step.acts
        rows.put(rows.cores, core)
        reply, core = act(state.params, key, count, step.observation, step.is_first, core)
        rows.kept.action[count], rows.kept.log_prob[count] = reply.action, reply.log_prob
        rows.put(rows.kept.extras, reply.extras)
        step = env.step(to_environment(env.spec.action, np.asarray(reply.action)))
        rows.kept.reward[count], rows.kept.discount[count] = step.reward, step.discount
        returns += [episode.return_ for episode in step.episodes]
        rows.size += 1  # windows end before the row that is still open
        if count <= warm_up + window:
            continue
        for _ in range(updates_per_step):
            drawn = rows.sample(rng, batch, window)
            if weights:
                drawn = drawn._replace(sampling=rng.uniform(0.5, 1.0, batch).astype(np.float32))
            state, output = update(state, drawn, key, count)
    metrics = {name: float(value) for name, value in output.metrics.items()}
    priorities = None if output.priorities is None else np.asarray(output.priorities)
    return Played(state, metrics, priorities, float(np.mean(returns[-100:])))
