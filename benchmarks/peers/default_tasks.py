"""The tasks on which PPO's defaults are compared, and their env steps: the same for jsrl and its peer."""

TASKS = {
    "CartPole-v1": 200_000,
    "Acrobot-v1": 200_000,
    "Pendulum-v1": 200_000,
    "MountainCar-v0": 200_000,
    "LunarLander-v3": 300_000,
    "LunarLanderContinuous-v3": 300_000,
    "Hopper-v5": 300_000,
}
