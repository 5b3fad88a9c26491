"""TD3 with its usual settings; choose the environment: --env.id Hopper-v5"""

from jsrl import EnvConfig, EvaluatorConfig, Experiment, TD3Config


def config() -> Experiment:
    """Return TD3 on Pendulum; --env.id chooses another environment; one update per env step."""
    return Experiment(
        name="td3",
        env=EnvConfig("Pendulum-v1"),
        agent=TD3Config(),
        num_envs=8,
        rollout_length=4,
        max_policy_lag=None,
        total_env_steps=100_000,
        evaluator=EvaluatorConfig(episodes=10, num_envs=10, final_episodes=20),
    )
