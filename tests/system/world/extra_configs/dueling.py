"""A league of two policies whose actions count their updates, on a game of a few steps that takes some time."""

import sys
from pathlib import Path

from jsrl.directors.league import League
from jsrl.envs.config import EnvConfig
from jsrl.experiment import EvaluatorConfig, Experiment, PolicyConfig, SnapshotConfig, SupervisionConfig

sys.path.append(str(Path(__file__).parents[4]))
from tests.duel import MarkedConfig


def config() -> Experiment:
    """Return an experiment with a director and two learners for the same seats."""
    policy = PolicyConfig(MarkedConfig(most_lag=50))
    return Experiment(
        name="dueling",
        env=EnvConfig("tests.duel:Duel"),
        policies={"main": policy, "hunter": policy},
        director=League(
            main=("main",), main_exploiters=("hunter",), league_exploiters=(), min_env_steps=500, max_env_steps=2_000
        ),
        num_envs=4,
        num_groups=2,
        num_actors=1,
        rollout_length=16,
        placement="served",
        total_env_steps=1_000_000_000,
        restart=10,
        evaluator=EvaluatorConfig(enabled=False),
        snapshots=SnapshotConfig(period_s=0.5),
        supervision=SupervisionConfig(max_backoff_s=0.5),
    )
