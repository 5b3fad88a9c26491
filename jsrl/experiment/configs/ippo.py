"""IPPO (independent PPO) on cooperative navigation, 3 seats; choose another environment: --env.id"""

from jsrl import EnvConfig, EvaluatorConfig, Experiment, MAPPOConfig, NetworkConfig


def config() -> Experiment:
    """Return the experiment of mappo, with a value function that reads each seat's own observation."""
    network = NetworkConfig(hidden=(64, 64), activation="relu")
    return Experiment(
        name="ippo",
        env=EnvConfig("particle:simple_spread_v3"),
        agent=MAPPOConfig(
            critic="own",
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
