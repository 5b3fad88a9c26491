"""MAPPO on simple_reference: two agents that move, and tell each other where to go"""

import dataclasses

from jsrl import EnvConfig, Experiment
from jsrl.experiment.configs import mappo


def config() -> Experiment:
    """Return the experiment `mappo`; agents choose a move and a symbol in place of one of their 50 combinations."""
    env = EnvConfig("particle:simple_reference_v3", kwargs={"multi_discrete": True})
    return dataclasses.replace(mappo.config(), name="mappo_reference", env=env)
