"""DQN (double, duelling, 3-step) with its usual settings; choose the environment: --env.id Acrobot-v1"""

from jsrl import DQNConfig, Experiment, ReplayConfig


def config() -> Experiment:
    """Return DQN on CartPole; --env.id chooses another environment; one update per two env steps."""
    return Experiment(
        name="dqn",
        agent=DQNConfig(learning_rate=5e-4, target_period=250),
        replay=ReplayConfig(capacity=100_000, batch_size=64, window=3, min_size=1_000, updates_per_env_step=0.5),
        num_envs=8,
        rollout_length=8,
        max_policy_lag=None,
        total_env_steps=500_000,
    )
