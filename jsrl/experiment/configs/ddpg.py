"""DDPG with its usual settings; choose the environment: --env.id Hopper-v5"""

import dataclasses

from jsrl import DDPGConfig, Experiment
from jsrl.experiment.configs import sac


def config() -> Experiment:
    """Return the experiment `sac` with DDPG."""
    return dataclasses.replace(sac.config(), name="ddpg", agent=DDPGConfig())
