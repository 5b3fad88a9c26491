"""MiniGrid's DoorKey with recurrent PPO: a key, a door, a goal, seen through 7 x 7 cells"""

from jsrl import EnvConfig, EvaluatorConfig, Experiment, NetworkConfig, PPOConfig


def config() -> Experiment:
    """Return the experiment: cells are one-hot; the return is 1 - 0.9 * (share of the time limit used), or 0."""
    return Experiment(
        name="ppo_doorkey",
        env=EnvConfig(
            "MiniGrid-DoorKey-6x6-v0",
            wrappers=(
                "minigrid.wrappers:OneHotPartialObsWrapper",
                "minigrid.wrappers:ImgObsWrapper",
                "gymnasium.wrappers:FlattenObservation",
            ),
        ),
        agent=PPOConfig(
            learning_rate=1e-3,
            num_epochs=4,
            num_minibatches=4,
            entropy_coef=0.02,
            network=NetworkConfig(core="gru", core_size=64, hidden=(64,)),
        ),
        num_envs=32,
        rollout_length=64,
        total_env_steps=500_000,
        stop_at_return=0.93,
        evaluator=EvaluatorConfig(episodes=100, num_envs=20, period_env_steps=25_000),
    )
