"""DQN (double, duelling, 3-step) with its usual settings; choose the environment: --env.id Acrobot-v1"""

from jsrl.agents.dqn import DQNConfig
from jsrl.experiment import Experiment


def config() -> Experiment:
    """Return DQN on CartPole; --env.id chooses another environment; one update per four env steps."""
    return Experiment(
        name="dqn",
        agent=DQNConfig(),
        num_envs=8,
        rollout_length=8,
        max_policy_lag=None,
        total_env_steps=500_000,
    )
