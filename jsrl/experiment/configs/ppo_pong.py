"""Pong from pixels with PPO and the Nature CNN"""

from jsrl import EnvConfig, EvaluatorConfig, Experiment, PPOConfig


def config() -> Experiment:
    """Return the experiment: 84x84 grey, four frames, rewards -1, 0, 1."""
    return Experiment(
        name="ppo_pong",
        env=EnvConfig("ALE/Pong-v5"),
        agent=PPOConfig(
            learning_rate=5e-4,
            schedule="linear",
            num_epochs=2,
            num_minibatches=16,
            clip_ratio=0.2,
            entropy_coef=0.01,
        ),
        num_envs=16,
        rollout_length=128,
        max_policy_lag=1,
        total_env_steps=4_000_000,
        stop_at_return=18.0,
        evaluator=EvaluatorConfig(episodes=20, num_envs=10, period_env_steps=200_000, final_episodes=20),
    )
