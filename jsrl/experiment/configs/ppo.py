"""PPO for any environment, with settings that learn the classic tasks; choose it: --env.id Acrobot-v1"""

from jsrl import Experiment, PPOConfig


def config() -> Experiment:
    """Return PPO on CartPole; --env.id chooses another environment."""
    agent = PPOConfig(num_epochs=10, minibatch_size=64, normalize_observations=True, normalize_values=True)
    return Experiment(
        name="ppo", agent=agent, num_envs=16, rollout_length=128, total_env_steps=1_000_000, max_policy_lag=0
    )
