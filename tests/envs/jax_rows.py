"""The rows of the fused program beside those of actors, for one environment in JAX."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jsrl import EnvConfig, make_env
from jsrl.agents.base import ActOutput, Agent
from jsrl.envs.adapters.in_jax import make_single
from jsrl.envs.base import EnvStep
from jsrl.envs.seats import part_of, view_of
from jsrl.extend import ArraySpec, Discrete, EnvSpec
from jsrl.types import spec_for_one
from jsrl.workers.fused.program import Program
from jsrl.workers.fused.worker import group_keys

NUM_ROWS, NUM_ENVS = 16, 3


def drawing(spec: EnvSpec) -> Agent:
    """Return an agent that acts at random; its core counts the rows since the reset, and is stored beside each row."""
    assert isinstance(spec.action, Discrete) or spec.num_agents is None
    shape = (NUM_ENVS,) if spec.num_agents is None else (NUM_ENVS, spec.num_agents)

    def act(params: Any, key: Any, observation: Any, is_first: Any, core: Any, *, greedy: bool = False) -> Any:
        before = jnp.where(is_first, 0, core)
        if isinstance(spec.action, Discrete):
            action = jax.random.randint(key, shape, 0, spec.action.num_actions)
        else:
            action = jax.random.normal(key, (*shape, *spec.action.array.shape))
        return ActOutput(action, jnp.zeros(shape), {"count": before}), before + 1

    return Agent(lambda key: (), lambda size: jnp.zeros(size, jnp.int32), act, lambda: ())


def assert_rows_agree(config: EnvConfig, trajectories: int = 3) -> list[bool]:
    """Play in the program, and its actions in a vector as actors have; return for each episode whether it terminated."""
    vector: Any = make_env(config, NUM_ENVS, 5, group=1)
    names = getattr(vector.spec, "names", ())
    if names:
        vector = make_env(config, NUM_ENVS, 5, group=1, groups={"all": names})
    spec, view = spec_for_one(vector.spec), view_of("all", range(len(names)))
    factory = config.id if callable(config.id) else None
    program = Program(
        drawing(spec), make_single(config, factory), spec, {"count": ArraySpec((), "int32")}, NUM_ROWS, NUM_ENVS,
        max_steps=config.max_episode_steps,
    )  # fmt: skip
    envs, played = jax.jit(program.begin)(group_keys(5, 5, 1)), jax.jit(program.play)
    step = part_of(view, vector.reset())
    endings, counted, total = list[bool](), 0, 0.0
    for _ in range(trajectories):
        envs, rows, episodes = played((), envs)
        rows = jax.tree.map(np.asarray, rows)
        for t in range(NUM_ROWS):
            _assert_row(rows, t, step)
            assert ((rows.extras["count"][t] == 0) == step.is_first).all(), "the core is reset where an episode begins"
            step = part_of(view, vector.step({"all": rows.action[t]} if names else rows.action[t]))
            np.testing.assert_allclose(rows.reward[t], step.reward, rtol=1e-4, atol=1e-5)
            np.testing.assert_array_equal(rows.discount[t], step.discount)
            endings += [episode.terminated for episode in step.episodes]
            total += sum(episode.return_ for episode in step.episodes)
        _assert_row(rows, NUM_ROWS, step)
        counted, total = counted + int(episodes.count), total - float(episodes.return_)
    assert counted == len(endings) and abs(total) < 1e-2
    assert played._cache_size() == 1
    vector.close()
    return endings


def _assert_row(rows: Any, t: int, step: EnvStep) -> None:
    np.testing.assert_array_equal(rows.is_first[t], step.is_first)
    np.testing.assert_array_equal(rows.acts[t], step.acts)
    for one, other in zip(jax.tree.leaves(rows.observation), jax.tree.leaves(step.observation), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one[t], other, rtol=1e-4, atol=1e-4)
