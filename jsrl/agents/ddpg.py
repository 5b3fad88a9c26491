"""Deep deterministic policy gradient (DDPG), for continuous actions: TD3 with one critic, no delay and no smoothing.

Source: Lillicrap et al., 2016, arXiv 1509.02971.
Differs: Gaussian noise unless `noise_process` is `ou`, no batch normalisation, one network width for all; n-step windows where
replay gives them; random actions are played until the first update is published.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jsrl.agents.base import Agent
from jsrl.agents.td3 import TD3Config, td3
from jsrl.fields import suggesting
from jsrl.types import EnvSpec


@suggesting
@dataclass(frozen=True)
class DDPGConfig(TD3Config):
    """Hyperparameters of DDPG: those of TD3 without the ones that are fixed here."""

    factory: ClassVar[str] = "jsrl.agents.ddpg:ddpg"

    num_critics: ClassVar[int] = 1  # type: ignore[misc]
    policy_delay: ClassVar[int] = 1  # type: ignore[misc]
    target_noise: ClassVar[float] = 0.0  # type: ignore[misc]
    target_noise_clip: ClassVar[float] = 0.0  # type: ignore[misc]


def ddpg(config: DDPGConfig, spec: EnvSpec) -> Agent:
    return td3(config, spec)
