"""The tiny agent on an environment that sleeps, so that a run under test leaves CPU time to others."""

from tiny_agent import TinyConfig

from jsrl.envs.config import EnvConfig
from jsrl.experiment import EvaluatorConfig, Experiment, InferenceConfig


def config() -> Experiment:
    """Return an experiment that starts and learns as fast as processes can."""
    return Experiment(
        name="tiny",
        agent=TinyConfig(),
        env=EnvConfig("worlds:World"),
        num_envs=4,
        num_groups=2,
        rollout_length=8,
        placement="served",
        num_actors=1,
        total_env_steps=640,
        evaluator=EvaluatorConfig(enabled=False, episodes=4, num_envs=4, final_episodes=4),
        inference=InferenceConfig(),
    )
