"""Pong from pixels with IMPALA: actors never wait for the learner"""

from jsrl import EnvConfig, EvaluatorConfig, Experiment, IMPALAConfig


def config() -> Experiment:
    """Return the experiment: V-trace corrects for the lag between acting and learning."""
    return Experiment(
        name="impala_pong",
        env=EnvConfig("ALE/Pong-v5"),
        agent=IMPALAConfig(
            optimizer="adam",
            learning_rate=4e-4,
            schedule="linear",
            vtrace_lambda=0.95,
            entropy_coef=0.001,
        ),
        num_envs=32,
        num_groups=4,
        rollout_length=20,
        batch_envs=8,
        max_policy_lag=None,
        total_env_steps=6_000_000,
        stop_at_return=15.0,
        evaluator=EvaluatorConfig(episodes=20, num_envs=10, period_env_steps=250_000, final_episodes=20),
    )
