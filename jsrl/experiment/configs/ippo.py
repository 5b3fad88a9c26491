"""IPPO (independent PPO) on cooperative navigation, 3 seats; choose another environment: --env.id"""

import dataclasses

from jsrl import Experiment
from jsrl.experiment.configs import mappo


def config() -> Experiment:
    """Return the experiment `mappo`, with a value function that reads each seat's own observation."""
    experiment = mappo.config()
    return dataclasses.replace(experiment, name="ippo", agent=dataclasses.replace(experiment.agent, critic="own"))
