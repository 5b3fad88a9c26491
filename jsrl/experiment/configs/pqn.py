"""PQN with its usual settings; choose the environment: --env.id gymnax:Acrobot-v1"""

from jsrl import EnvConfig, Experiment, PQNConfig


def config() -> Experiment:
    """Return PQN on CartPole; --env.id chooses another environment; rewards are scaled so that values are around 1."""
    return Experiment(
        name="pqn",
        agent=PQNConfig(num_epochs=4, num_minibatches=16),
        env=EnvConfig(reward_scale="running"),
        num_envs=32,
        rollout_length=64,
        max_policy_lag=0,
        total_env_steps=500_000,
    )
