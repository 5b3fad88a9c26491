"""The counting agent, which detects rows and cores of mixed incarnations."""

from counting_agent import CountingConfig

from jsrl.envs.config import EnvConfig
from jsrl.experiment import EvaluatorConfig, Experiment, SnapshotConfig, SupervisionConfig


def config() -> Experiment:
    """Return an experiment with the fastest possible processes and an environment that takes some time."""
    return Experiment(
        name="counting",
        agent=CountingConfig(),
        env=EnvConfig("worlds:Counts"),
        num_envs=4,
        num_groups=2,
        rollout_length=8,
        placement="served",
        num_actors=1,
        total_env_steps=1_000_000_000,
        restart=10,
        evaluator=EvaluatorConfig(enabled=False),
        snapshots=SnapshotConfig(period_s=0.5),
        supervision=SupervisionConfig(max_backoff_s=0.5),
    )
