"""HalfCheetah-v5 with PPO: separate 64x64 networks, normalised observations and values"""

from jsrl import EnvConfig, EvaluatorConfig, Experiment, PPOConfig


def config() -> Experiment:
    """Return the experiment: one million env steps, as in published curves."""
    return Experiment(
        name="ppo_halfcheetah",
        env=EnvConfig("HalfCheetah-v5"),
        agent=PPOConfig(
            learning_rate=3e-4,
            schedule="linear",
            num_epochs=10,
            num_minibatches=32,
            normalize_observations=True,
            normalize_values=True,
        ),
        num_envs=16,
        rollout_length=128,
        total_env_steps=1_000_000,
        evaluator=EvaluatorConfig(episodes=10, num_envs=10, period_env_steps=100_000, final_episodes=20),
    )
