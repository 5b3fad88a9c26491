"""Hide-and-seek by a league: each policy plays both sides, and one looks for weaknesses of the other"""

import dataclasses

from jsrl import EvaluatorConfig, Experiment, League, NetworkConfig, PolicyConfig, PPOConfig
from jsrl.experiment.configs.hide_and_seek import config as self_play


def config() -> Experiment:
    """Return the small network in the empty room, with a reward for each step towards a hider."""
    agent = PPOConfig(
        learning_rate=5e-4,
        gamma=0.97,
        entropy_coef=0.01,
        num_epochs=4,
        num_minibatches=8,
        normalize_observations=True,
        network=NetworkConfig(hidden=(128, 128), shared=False),
    )
    experiment = self_play()
    kwargs = {**experiment.env.kwargs, "reward_range": 6.0, "reward_falls": True}
    return dataclasses.replace(
        experiment,
        name="hide_and_seek_league",
        env=dataclasses.replace(experiment.env, kwargs=kwargs),
        policies={"main": PolicyConfig(agent), "hunter": PolicyConfig(agent)},
        director=League(
            main=("main",),
            main_exploiters=("hunter",),
            league_exploiters=(),
            min_env_steps=40_000,
            max_env_steps=80_000,
        ),
        evaluator=EvaluatorConfig(enabled=False),
    )
