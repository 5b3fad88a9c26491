"""Three agents cover three landmarks together: DQN, SAC and PPO, each on data of its own kind"""

from jsrl import DQNConfig, EnvConfig, EvaluatorConfig, Experiment, PolicyConfig, PPOConfig, ReplayConfig, SACConfig


def config() -> Experiment:
    """Return cooperative navigation with a policy for each seat: two learn from replay, PPO from fresh trajectories."""
    return Experiment(
        name="three_algorithms",
        env=EnvConfig("particle:simple_spread_v3"),
        policies={
            "dqn": PolicyConfig(DQNConfig(learning_rate=5e-4, gamma=0.95), seats="agent_0"),  # with its usual replay
            "sac": PolicyConfig(
                SACConfig(gamma=0.95), seats="agent_1", replay=ReplayConfig(batch_size=128, updates_per_env_step=0.125)
            ),
            "ppo": PolicyConfig(PPOConfig(learning_rate=1e-3, gamma=0.95), seats="agent_2"),
        },
        num_envs=16,
        rollout_length=26,  # an episode of 25 actions and the row of its last observation
        num_actors=1,  # its steps are cheap
        total_env_steps=300_000,
        evaluator=EvaluatorConfig(episodes=100, num_envs=100, final_episodes=500),
    )
