"""Value decomposition networks: a team's value is the sum of its seats' utilities.

Everything but the sum is jsrl.agents.factoring.

Source: Sunehag et al., 2018, arXiv 1706.05296, equation 3.
Differs: double Q-learning; `RecurrentVDNConfig` stores cores and burns in, as R2D2 does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax.numpy as jnp

from jsrl.agents.base import Agent
from jsrl.agents.dqn import DQNConfig
from jsrl.agents.factoring import Mixing, factored_dqn, factored_r2d2
from jsrl.agents.r2d2 import R2D2Config
from jsrl.fields import PositiveFinite, PositiveFloat, PositiveInt, UnitFloat, option, suggesting
from jsrl.networks.model import NetworkConfig
from jsrl.types import EnvSpec

AGENT_IDS_HELP = "the network reads the number of the seat, so that seats that share it may act differently."


@suggesting
@dataclass(frozen=True)
class VDNConfig(DQNConfig):
    """Hyperparameters of VDN: those of DQN, and this."""

    factory: ClassVar[str] = "jsrl.agents.vdn:vdn"
    usual_replay: ClassVar[dict[str, Any]] = {
        "capacity": 200_000, "batch_size": 128, "window": 3, "min_size": 5_000, "updates_per_env_step": 0.03125
    }  # fmt: skip
    rewards: ClassVar[str] = "team"  # it learns from the mean reward of its seats

    learning_rate: PositiveFinite = 5e-4
    target_period: PositiveInt = 200
    dueling: bool = False
    num_atoms: ClassVar[int] = 1  # type: ignore[misc]  # only single values can be mixed
    value_min: ClassVar[float] = 0.0  # type: ignore[misc]
    value_max: ClassVar[float] = 0.0  # type: ignore[misc]
    quantiles: ClassVar[bool] = False  # type: ignore[misc]
    agent_ids: bool = option(True, AGENT_IDS_HELP)


@suggesting
@dataclass(frozen=True)
class RecurrentVDNConfig(R2D2Config):
    """Hyperparameters of VDN with a recurrent network: those of R2D2, and this."""

    factory: ClassVar[str] = "jsrl.agents.vdn:recurrent_vdn"
    rewards: ClassVar[str] = "team"  # it learns from the mean reward of its seats

    learning_rate: PositiveFinite = 5e-4
    max_grad_norm: PositiveFloat | None = 10.0
    gamma: UnitFloat = 0.99
    target_period: PositiveInt = 200
    dueling: bool = False
    rescale_values: bool = False
    network: NetworkConfig = field(
        default_factory=lambda: NetworkConfig(hidden=(64,), activation="relu", core="gru", core_size=64)
    )
    agent_ids: bool = option(True, AGENT_IDS_HELP)

    @property
    def usual_replay(self) -> dict[str, Any]:
        """Return the settings of replay: 20 rows of each window are trained on."""
        return {
            "capacity": 200_000, "batch_size": 32, "window": self.burn_in + 20, "min_size": 5_000,
            "updates_per_env_step": 0.00625,
        }  # fmt: skip


def vdn(config: VDNConfig, spec: EnvSpec) -> Agent:
    return factored_dqn(config, spec, summing)


def recurrent_vdn(config: RecurrentVDNConfig, spec: EnvSpec) -> Agent:
    return factored_r2d2(config, spec, summing)


def summing(num_agents: int, state_size: int) -> Mixing:
    """Return the sum of utilities, which has no weights."""
    del num_agents, state_size
    return Mixing(lambda key: (), lambda weights, utilities, state: jnp.sum(utilities, axis=-1))
