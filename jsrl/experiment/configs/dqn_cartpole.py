"""CartPole-v1 with DQN: double, duelling, 3-step returns"""

from jsrl import DQNConfig, EnvConfig, EvaluatorConfig, Experiment, ReplayConfig


def config() -> Experiment:
    """Return the experiment that stops when 100 greedy episodes of one snapshot average 490."""
    return Experiment(
        name="dqn_cartpole",
        env=EnvConfig("CartPole-v1"),
        agent=DQNConfig(learning_rate=1e-3, target_period=100, exploration_fraction=0.08, epsilon=0.04),
        num_envs=16,
        rollout_length=8,
        max_policy_lag=None,
        total_env_steps=100_000,
        stop_at_return=490.0,  # solved is 475: the first score above a goal is a lucky one, so aim higher
        replay=ReplayConfig(capacity=100_000, batch_size=64, window=3, min_size=1_000, updates_per_env_step=0.5),
        evaluator=EvaluatorConfig(episodes=100, num_envs=100, period_env_steps=5_000),
    )
