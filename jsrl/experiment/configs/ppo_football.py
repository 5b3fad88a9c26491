"""Google football, three against one and a goalkeeper, played by one agent; needs the extra envpool"""

from jsrl import EnvConfig, EvaluatorConfig, Experiment, PPOConfig


def config() -> Experiment:
    """Return the experiment: planes of the pitch, 72x96x4; only goals are rewarded, with 1."""
    return Experiment(
        name="ppo_football",
        env=EnvConfig("envpool:gfootball/academy_3_vs_1_with_keeper-v1"),
        agent=PPOConfig(
            learning_rate=3e-4,
            gamma=0.993,
            num_epochs=4,
            num_minibatches=8,
            entropy_coef=0.01,
        ),
        num_envs=16,
        rollout_length=128,
        max_policy_lag=1,
        total_env_steps=2_000_000,
        evaluator=EvaluatorConfig(episodes=50, num_envs=10, period_env_steps=100_000, final_episodes=100),
    )
