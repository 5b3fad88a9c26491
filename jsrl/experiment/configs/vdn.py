"""VDN (the team's value is a sum) on cooperative navigation; another environment: --env.id"""

from jsrl import EnvConfig, EvaluatorConfig, Experiment, VDNConfig


def config() -> Experiment:
    """Return VDN with double Q-learning and 3-step returns; replay's windows hold whole teams."""
    return Experiment(
        name="vdn",
        env=EnvConfig("particle:simple_spread_v3"),
        agent=VDNConfig(gamma=0.95, tau=0.01, target_period=1, normalize_observations=True),
        num_envs=16,
        rollout_length=16,
        max_policy_lag=None,
        num_actors=1,  # its steps are cheap
        total_env_steps=600_000,
        evaluator=EvaluatorConfig(episodes=100, num_envs=100, final_episodes=500),
    )
