"""A league on tic-tac-toe: PPO against its frozen past and against an exploiter, a second policy"""

from jsrl import EnvConfig, EvaluatorConfig, Experiment, League, NetworkConfig, PolicyConfig, PPOConfig


def config() -> Experiment:
    """Return the experiment: two learners for the same seats; advantages and entropy bonus are in units of the reward."""
    agent = PPOConfig(
        learning_rate=2e-3,
        gamma=1.0,
        entropy_coef=0.07,
        normalize_advantages=False,
        network=NetworkConfig(hidden=(128, 128), activation="relu"),
    )
    return Experiment(
        name="league_tic_tac_toe",
        env=EnvConfig("openspiel:tic_tac_toe"),
        policies={"main": PolicyConfig(agent), "hunter": PolicyConfig(agent)},
        director=League(
            main=("main",),
            main_exploiters=("hunter",),
            league_exploiters=(),
            min_env_steps=20_000,
            max_env_steps=60_000,
        ),
        num_envs=64,
        rollout_length=32,
        total_env_steps=500_000,
        evaluator=EvaluatorConfig(enabled=False),
    )
