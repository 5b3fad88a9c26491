"""Hanabi for two by self-play: MAPPO with one policy for both seats; needs the extra openspiel"""

from jsrl import EnvConfig, EvaluatorConfig, Experiment, MAPPOConfig, NetworkConfig


def config() -> Experiment:
    """Return the experiment: the value function sees both players' cards; the return is the score."""
    return Experiment(
        name="mappo_hanabi",
        env=EnvConfig("openspiel:hanabi"),
        agent=MAPPOConfig(
            learning_rate=7e-4,
            gamma=0.99,
            entropy_coef=0.01,
            num_epochs=3,
            num_minibatches=8,
            max_grad_norm=0.5,
            network=NetworkConfig(hidden=(256, 256), activation="relu"),
            critic_network=NetworkConfig(hidden=(128, 128), activation="relu"),
        ),
        num_envs=64,
        rollout_length=64,
        num_actors=1,
        total_env_steps=20_000_000,
        stop_at_return=15.0,
        evaluator=EvaluatorConfig(episodes=100, num_envs=50, period_env_steps=250_000, final_episodes=500),
    )
