"""Behaviour cloning: give --recording DIR, and the environment that was recorded"""

from jsrl import BCConfig, EnvConfig, EvaluatorConfig, Experiment


def config() -> Experiment:
    """Return behaviour cloning on CartPole, in batches of 256 recorded rows."""
    return Experiment(
        name="bc",
        env=EnvConfig("CartPole-v1"),
        agent=BCConfig(),
        num_envs=256,
        rollout_length=1,
        max_policy_lag=None,
        total_env_steps=1_000_000,
        evaluator=EvaluatorConfig(episodes=20, num_envs=20, final_episodes=100),
    )
