"""QMIX (a monotonic mixture of utilities) on cooperative navigation; another environment: --env.id"""

import dataclasses

from jsrl import Experiment, QMIXConfig
from jsrl.experiment.configs import vdn


def config() -> Experiment:
    """Return the experiment `vdn` with QMIX: double Q-learning and 3-step returns."""
    agent = QMIXConfig(gamma=0.95, tau=0.01, target_period=1, normalize_observations=True)
    return dataclasses.replace(vdn.config(), name="qmix", agent=agent)
