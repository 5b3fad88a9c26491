"""Replay workers between actors and a very fast learner."""

import sys
from pathlib import Path

from jsrl.envs.config import EnvConfig
from jsrl.experiment import AgentReference, EvaluatorConfig, Experiment, ReplayConfig, SnapshotConfig

sys.path.append(str(Path(__file__).parents[4]))


def config() -> Experiment:
    """Return an experiment with a toy agent on CartPole."""
    return Experiment(
        name="replayed",
        agent=AgentReference("tests.replay.learning:acting_toy", {"poison": 1e9}),
        env=EnvConfig("CartPole-v1"),
        num_envs=8,
        rollout_length=4,
        placement="served",
        num_actors=1,
        max_policy_lag=None,
        total_env_steps=1_000_000_000,
        restart=5,
        replay=ReplayConfig(
            kind="host", capacity=2_000, batch_size=16, min_size=200, prioritised=True, updates_per_env_step=0.125
        ),
        evaluator=EvaluatorConfig(episodes=4, num_envs=4, sampled_episodes=0, final_episodes=0, period_env_steps=200),
        snapshots=SnapshotConfig(period_s=0.5),
    )
