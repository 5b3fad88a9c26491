"""HAPPO (a policy for each seat, updated in turn) on cooperative navigation; others: --env.id"""

from jsrl import EnvConfig, EvaluatorConfig, Experiment, HAPPOConfig, NetworkConfig


def config() -> Experiment:
    """Return HAPPO with the settings of mappo."""
    network = NetworkConfig(hidden=(64, 64), activation="relu")
    return Experiment(
        name="happo",
        env=EnvConfig("particle:simple_spread_v3"),
        agent=HAPPOConfig(
            learning_rate=1e-3,
            schedule="linear",
            gamma=0.95,
            num_epochs=5,
            num_minibatches=4,
            network=network,
            critic_network=network,
        ),
        num_envs=128,
        rollout_length=26,  # an episode of 25 actions and the row of its last observation
        num_actors=1,  # its steps are cheap
        total_env_steps=3_000_000,
        evaluator=EvaluatorConfig(episodes=100, num_envs=100, final_episodes=500),
    )
