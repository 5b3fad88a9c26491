"""What a learner makes of the rewards of its rows."""

from __future__ import annotations

import numpy as np
import pytest

from jsrl.agents.base import Agent, Split, UpdateOutput
from jsrl.agents.random_rows import random_trajectory
from jsrl.envs.config import EnvConfig
from jsrl.experiment import AgentReference, Experiment
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
