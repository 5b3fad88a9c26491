"""QMIX with a recurrent network, on cooperative navigation; another environment: --env.id"""

import dataclasses

from jsrl import Experiment, RecurrentQMIXConfig
from jsrl.experiment.configs import vdn


def config() -> Experiment:
    """Return the experiment `vdn` on sequences: windows of 5 rows of burn-in and 20 to train on."""
    agent = RecurrentQMIXConfig(burn_in=5, gamma=0.95, tau=0.01, target_period=1, normalize_observations=True)
    # windows start at the start of a trajectory
    return dataclasses.replace(vdn.config(), name="qmix_recurrent", agent=agent, rollout_length=5)
