"""PQN with its usual settings; choose the environment: --env.id gymnax:Breakout-MinAtar"""

from jsrl import Experiment, PQNConfig


def config() -> Experiment:
    """Return PQN on CartPole; --env.id chooses another environment."""
    return Experiment(
        name="pqn",
        agent=PQNConfig(),
        num_envs=32,
        rollout_length=64,
        max_policy_lag=0,
        total_env_steps=500_000,
    )
