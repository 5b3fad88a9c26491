"""A memory probe with recurrent PPO: what feed-forward networks cannot solve"""

from jsrl import EnvConfig, EvaluatorConfig, Experiment, NetworkConfig, PPOConfig


def config() -> Experiment:
    """Return the experiment: the cue of the first step must be answered at the last; try --agent.network.core none."""
    return Experiment(
        name="ppo_memory",
        env=EnvConfig("probe:memory"),
        agent=PPOConfig(
            learning_rate=2e-3,
            num_epochs=4,
            num_minibatches=4,
            entropy_coef=0.01,
            network=NetworkConfig(core="gru", core_size=32, hidden=(32,)),
        ),
        num_envs=32,
        rollout_length=32,
        total_env_steps=300_000,
        evaluator=EvaluatorConfig(episodes=100, num_envs=100, period_env_steps=20_000),
    )
