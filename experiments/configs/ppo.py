"""PPO with its usual settings; choose the environment: --env.id Acrobot-v1"""

from jsrl.agents.ppo import PPOConfig
from jsrl.experiment import Experiment


def config() -> Experiment:
    """Return PPO on CartPole; --env.id chooses another environment."""
    return Experiment(
        name="ppo", agent=PPOConfig(), num_envs=16, rollout_length=128, total_env_steps=1_000_000, max_policy_lag=0
    )
