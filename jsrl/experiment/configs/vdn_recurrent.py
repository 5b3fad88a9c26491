"""VDN with a recurrent network, on cooperative navigation; another environment: --env.id"""

from jsrl import EnvConfig, EvaluatorConfig, Experiment, RecurrentVDNConfig


def config() -> Experiment:
    """Return VDN on sequences: windows of 5 rows of burn-in and 20 to train on."""
    return Experiment(
        name="vdn_recurrent",
        env=EnvConfig("particle:simple_spread_v3"),
        agent=RecurrentVDNConfig(burn_in=5, gamma=0.95, tau=0.01, target_period=1, normalize_observations=True),
        num_envs=16,
        rollout_length=5,  # windows start at the start of a trajectory
        max_policy_lag=None,
        num_actors=1,  # its steps are cheap
        total_env_steps=600_000,
        evaluator=EvaluatorConfig(episodes=100, num_envs=100, final_episodes=500),
    )
