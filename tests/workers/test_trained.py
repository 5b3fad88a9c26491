"""What a learner makes of the rewards of its rows."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jsrl.agents.base import Agent, AgentState, Split, UpdateOutput
from jsrl.agents.random_rows import random_trajectory
from jsrl.envs.config import EnvConfig
from jsrl.errors import ConfigError
from jsrl.experiment import AgentReference, Experiment, ReplayConfig
from jsrl.types import ArraySpec, Discrete, EnvSpec
from jsrl.workers.learner.build_updater import agent_of

SPEC = EnvSpec(ArraySpec((2,), "float32"), Discrete(2))


def telling(spec: EnvSpec) -> Agent:
    """An agent that tells which rewards it learns from."""

    def update(state, trajectory, key, *, axis_name=None):
        return state, UpdateOutput({"reward": trajectory.reward})

    one: list = [None] * 5
    return Agent(lambda key: None, lambda batch_size: (), lambda *args, **of: None, update, Split(update, update, *one))  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize(
    ("options", "learned"),
    [
        ({}, [[4.0, -0.5], [1.0, 9.0]]),
        ({"reward_scale": 0.5}, [[2.0, -0.25], [0.5, 4.5]]),
        ({"reward_scale": 0.5, "reward_clip": 1.0}, [[1.0, -0.25], [0.5, 1.0]]),
    ],
)
def test_reward_is_scaled_then_clipped_where_the_learner_reads_it(options, learned):
    agent = agent_of(Experiment(AgentReference(telling), EnvConfig("CartPole-v1", **options)), SPEC)
    rows = random_trajectory(SPEC, np.random.default_rng(0), num_rows=1, num_envs=2, extras=(), core=())
    rows = rows._replace(reward=np.array([[4.0, -0.5], [1.0, 9.0]], np.float32))
    for update in (agent.update, agent.split.policy, agent.split.critic):
        found = np.asarray(update(None, rows, None)[1].metrics["reward"])
        assert found.tolist() == learned and found.dtype == np.float32


# -- the running deviation of the discounted return -------------------------------------------------------------------

GAMMA = 0.99  # where the agent has none of its own


def batch(seed: int, columns: int = 4, num_rows: int = 6):
    rows = random_trajectory(SPEC, np.random.default_rng(seed), num_rows=num_rows, num_envs=columns, extras=(), core=())
    reward = np.random.default_rng(seed).normal(2.0, 3.0, rows.reward.shape).astype(np.float32)
    reward[:-1][rows.is_first[1:]] = 0.0  # as in rows of environments: nothing is earned at a last observation
    return rows._replace(reward=reward)


def vec_normalize(batches):
    """Return the variance and the returns of VecNormalize (Stable-Baselines3 2.9), which sees one env step at a time."""
    mean, var, count, returns = 0.0, 1.0, 1e-4, np.zeros(batches[0].reward.shape[1])
    for rows in batches:
        for t in range(len(rows.reward) - 1):
            steps = ~rows.is_first[t + 1]
            returns[rows.is_first[t]] = 0.0
            returns[steps] = returns[steps] * GAMMA + rows.reward[t][steps]
            seen = returns[steps].astype(np.float64)
            delta, total = seen.mean() - mean, count + len(seen)
            var = (var * count + seen.var() * len(seen) + delta**2 * count * len(seen) / total) / total
            mean, count = mean + delta * len(seen) / total, total
    return var, returns


def running(**options) -> Experiment:
    env = EnvConfig("CartPole-v1", reward_scale="running", **options)
    return Experiment(AgentReference(keeping), env, num_envs=4, num_actors=1, num_groups=1)


def keeping(spec: EnvSpec) -> Agent:
    """An agent that tells which rewards it learns from, and has a state."""
    state = AgentState((), (), (), (), jnp.zeros((), jnp.int32))
    return telling(spec)._replace(init=lambda key: state)


def test_running_scale_is_that_of_vec_normalize_over_batches():
    agent, batches = agent_of(running(), SPEC), [batch(0), batch(1)]
    state = agent.init(jax.random.key(0))
    for rows in batches:
        state, output = agent.update(state, rows, jax.random.key(0))
    variance, returns = vec_normalize(batches)
    np.testing.assert_allclose(state.extra.moments.variance, variance, rtol=1e-4)
    ended = batches[-1].is_first[-1]  # their next row opens an episode
    np.testing.assert_allclose(state.extra.returns[~ended], returns[~ended], rtol=1e-4)
    expected = np.clip(batches[-1].reward / np.sqrt(variance), -10.0, 10.0)
    np.testing.assert_allclose(output.metrics["reward"], expected, rtol=1e-3)


def test_running_scale_of_two_devices_is_that_of_one():
    agent, rows = agent_of(running(reward_clip=0.5), SPEC), batch(0)
    state = agent.init(jax.random.key(0))
    alone, output = agent.update(state, rows, jax.random.key(0))
    assert float(jnp.max(jnp.abs(output.metrics["reward"]))) == 0.5

    def share(x):
        return jnp.stack(jnp.split(jnp.asarray(x), 2, axis=1))

    def of_device(reward, is_first):
        own = rows._replace(reward=reward, is_first=is_first)
        return agent.update(state, own, jax.random.key(0), axis_name="d")[0].extra

    both = jax.vmap(of_device, axis_name="d")(share(rows.reward), share(rows.is_first))
    for each in range(2):
        jax.tree.map(lambda a, b, each=each: np.testing.assert_allclose(a[each], b, rtol=1e-5), both, alone.extra)


def test_running_scale_needs_fresh_trajectories():
    experiment = dataclasses.replace(running(), replay=ReplayConfig())
    with pytest.raises(ConfigError, match="reward_scale=running needs fresh trajectories"):
        agent_of(experiment, SPEC)
