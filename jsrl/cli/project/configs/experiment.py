"""A corridor of my own with an algorithm of my own"""

from algorithm import AgentConfig

from jsrl import EnvConfig, EvaluatorConfig, Experiment


def config() -> Experiment:
    """Return the experiment; each of its fields is an option of the command line."""
    return Experiment(
        name="PROJECT",
        env=EnvConfig("environment:Corridor", kwargs={"size": 8}, max_episode_steps=100),
        agent=AgentConfig(),
        num_envs=16,
        rollout_length=16,
        max_policy_lag=1,
        total_env_steps=100_000,
        evaluator=EvaluatorConfig(period_env_steps=20_000),
    )
