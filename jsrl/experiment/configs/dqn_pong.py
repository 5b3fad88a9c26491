"""Pong from pixels with DQN: double, duelling, 3-step, prioritised, Nature CNN"""

from jsrl import DQNConfig, EnvConfig, EvaluatorConfig, Experiment, ReplayConfig


def config() -> Experiment:
    """Return the experiment: 84x84 grey, four frames stored once, rewards -1, 0, 1."""
    return Experiment(
        name="dqn_pong",
        env=EnvConfig("ALE/Pong-v5"),
        agent=DQNConfig(
            learning_rate=1e-4,
            target_period=1_000,
            exploration_fraction=0.025,
            epsilon=0.01,
        ),
        num_envs=16,
        rollout_length=8,
        max_policy_lag=None,
        total_env_steps=2_000_000,
        stop_at_return=18.0,
        replay=ReplayConfig(
            capacity=200_000,
            batch_size=32,
            window=3,
            min_size=10_000,
            updates_per_env_step=0.25,
            prioritised=True,
            alpha=0.5,
        ),
        evaluator=EvaluatorConfig(episodes=20, num_envs=10, period_env_steps=100_000, final_episodes=20),
    )
