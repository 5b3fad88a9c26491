"""TD3 with its usual settings; choose the environment: --env.id Hopper-v5"""

import dataclasses

from jsrl import Experiment, TD3Config
from jsrl.experiment.configs import sac


def config() -> Experiment:
    """Return the experiment `sac` with TD3."""
    return dataclasses.replace(sac.config(), name="td3", agent=TD3Config())
