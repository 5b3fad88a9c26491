"""Connect four by self-play: PPO against a pool of its own frozen versions"""

from jsrl import DeltaUniform, EnvConfig, EvaluatorConfig, Experiment, NetworkConfig, PolicyConfig, PPOConfig


def config() -> Experiment:
    """Return the experiment: one policy for both seats plays its frozen versions from either side."""
    agent = PPOConfig(
        learning_rate=5e-4, gamma=0.99, entropy_coef=0.01, num_epochs=4, network=NetworkConfig(hidden=(128, 128))
    )
    return Experiment(
        name="ppo_connect_four",
        env=EnvConfig("openspiel:connect_four"),
        policies={"main": PolicyConfig(agent)},
        director=DeltaUniform(freeze_env_steps=50_000, latest_share=0.2, live=4),
        num_envs=32,
        rollout_length=128,
        total_env_steps=2_000_000,
        evaluator=EvaluatorConfig(enabled=False),
    )
