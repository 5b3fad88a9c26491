"""MAPPO on cooperative navigation (simple_spread, 3 seats); choose another environment: --env.id"""

from jsrl import EnvConfig, EvaluatorConfig, Experiment, MAPPOConfig, NetworkConfig


def config() -> Experiment:
    """Return MAPPO; 40 gradient steps per update learn from fewer env steps than the paper's 10, which reads whole batches."""
    network = NetworkConfig(hidden=(64, 64), activation="relu")
    return Experiment(
        name="mappo",
        env=EnvConfig("particle:simple_spread_v3"),
        agent=MAPPOConfig(
            learning_rate=1e-3,
            schedule="linear",
            gamma=0.95,
            num_epochs=5,
            num_minibatches=8,
            network=network,
            critic_network=network,
        ),
        num_envs=128,
        rollout_length=26,  # an episode of 25 actions and the row of its last observation
        num_actors=1,  # its steps are cheap
        total_env_steps=4_000_000,
        evaluator=EvaluatorConfig(episodes=100, num_envs=100, final_episodes=500),
    )
