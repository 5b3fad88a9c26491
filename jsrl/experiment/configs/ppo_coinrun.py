"""Procgen's CoinRun from pixels; needs the extra envpool and Qt 5 of the system"""

from jsrl import EnvConfig, EvaluatorConfig, Experiment, PPOConfig


def config() -> Experiment:
    """Return the experiment: 64x64 in colour; the coin at the end of a level pays 10, and every episode has a new level."""
    return Experiment(
        name="ppo_coinrun",
        env=EnvConfig("envpool:CoinrunEasy-v0"),
        agent=PPOConfig(
            learning_rate=5e-4,
            gamma=0.999,
            num_epochs=2,
            num_minibatches=8,
            entropy_coef=0.01,
            normalize_values=True,
        ),
        num_envs=32,
        rollout_length=128,
        max_policy_lag=1,
        total_env_steps=2_000_000,
        evaluator=EvaluatorConfig(episodes=50, num_envs=25, period_env_steps=200_000, final_episodes=200),
    )
