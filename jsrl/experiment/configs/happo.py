"""HAPPO (a policy for each seat, updated in turn) on cooperative navigation; others: --env.id"""

import dataclasses

from jsrl import Experiment, HAPPOConfig, NetworkConfig
from jsrl.experiment.configs import mappo


def config() -> Experiment:
    """Return the experiment `mappo` with HAPPO."""
    network = NetworkConfig(hidden=(64, 64), activation="relu")
    agent = HAPPOConfig(
        learning_rate=1e-3, schedule="linear", gamma=0.95, num_epochs=5, num_minibatches=4,
        network=network, critic_network=network,
    )  # fmt: skip
    return dataclasses.replace(mappo.config(), name="happo", agent=agent, total_env_steps=3_000_000)
