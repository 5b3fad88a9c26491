"""IMPALA with its usual settings; choose the environment: --env.id ALE/Pong-v5"""

from jsrl import Experiment, IMPALAConfig


def config() -> Experiment:
    """Return IMPALA on CartPole; --env.id chooses another environment; it runs asynchronously."""
    return Experiment(
        name="impala",
        agent=IMPALAConfig(),
        num_envs=32,
        num_groups=4,
        rollout_length=20,
        batch_envs=16,
        max_policy_lag=None,
        total_env_steps=1_000_000,
    )
