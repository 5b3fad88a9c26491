"""R2D2 with its usual settings; choose the environment: --env.id probe:memory"""

from jsrl import Experiment, R2D2Config


def config() -> Experiment:
    """Return R2D2 on CartPole; --env.id chooses another environment; windows of 20 rows of burn-in and 20 to train on."""
    return Experiment(
        name="r2d2",
        agent=R2D2Config(burn_in=20),
        num_envs=16,
        rollout_length=20,
        max_policy_lag=None,
        total_env_steps=500_000,
    )
