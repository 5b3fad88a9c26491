"""The tasks on which each algorithm's defaults are compared, and their env steps: the same for jsrl and its peer."""

TASKS = {
    "ppo": {
        "CartPole-v1": 200_000,
        "Acrobot-v1": 200_000,
        "Pendulum-v1": 200_000,
        "MountainCar-v0": 200_000,
        "LunarLander-v3": 300_000,
        "LunarLanderContinuous-v3": 300_000,
        "Hopper-v5": 300_000,
    },
    "dqn": {
        "CartPole-v1": 50_000,
        "Acrobot-v1": 100_000,
        "MountainCar-v0": 120_000,
        "LunarLander-v3": 100_000,
    },
    "sac": {
        "Pendulum-v1": 20_000,
        "MountainCarContinuous-v0": 50_000,
        "LunarLanderContinuous-v3": 100_000,
    },
}
