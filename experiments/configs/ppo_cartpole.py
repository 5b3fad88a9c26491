"""CartPole-v1 with PPO: solved (475) in seconds; the first thing to run"""

from jsrl.agents.ppo import PPOConfig
from jsrl.envs.config import EnvConfig
from jsrl.experiment import EvaluatorConfig, Experiment


def config() -> Experiment:
    """Return the experiment that stops when 20 greedy episodes of one snapshot average 475."""
    return Experiment(
        name="ppo_cartpole",
        env=EnvConfig("CartPole-v1"),
        agent=PPOConfig(learning_rate=1e-3, schedule="linear", entropy_coef=0.01, num_epochs=4, num_minibatches=4),
        num_envs=16,
        rollout_length=128,
        total_env_steps=500_000,
        stop_at_return=475.0,
        evaluator=EvaluatorConfig(episodes=20, num_envs=20, period_env_steps=10_000),
    )
