"""CartPole-v1 with population-based training: of four PPO members the worst copies the best"""

from jsrl import PBT, EnvConfig, EvaluatorConfig, Experiment, PolicyConfig, PPOConfig, Range

MEMBERS = ("first", "second", "third", "fourth")


def config() -> Experiment:
    """Return the experiment: each member plays a quarter of the environments, with a learning rate of its own."""
    agent = PPOConfig(gamma=0.98, gae_lambda=0.9, num_epochs=8, num_minibatches=4)
    explored = {"learning_rate": Range(1e-5, 1e-2), "entropy_coef": Range(1e-4, 3e-2)}
    return Experiment(
        name="pbt_cartpole",
        env=EnvConfig("CartPole-v1"),
        policies={name: PolicyConfig(agent) for name in MEMBERS},
        director=PBT(MEMBERS, explored, ready_env_steps=5_000),
        num_envs=32,
        rollout_length=64,
        num_actors=1,
        total_env_steps=300_000,
        evaluator=EvaluatorConfig(enabled=False),
    )
