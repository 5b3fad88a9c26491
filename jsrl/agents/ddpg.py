"""Deep deterministic policy gradient (DDPG), for continuous actions: TD3 with one critic, no delay and no smoothing.

Source: Lillicrap et al., 2016, arXiv 1509.02971.
Differs: Gaussian noise unless `noise_process` is `ou`, no batch normalisation, one network width for all; n-step windows where
replay gives them; random actions are played until the first update is published (`random_start`).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

from jsrl.agents import actor_critic as ac
from jsrl.agents import off_policy as off
from jsrl.agents.base import Agent
from jsrl.agents.td3 import TD3Config, td3
from jsrl.fields import (
    NonNegativeFinite,
    PositiveFinite,
    PositiveFloat,
    PositiveInt,
    PositiveUnitFloat,
    UnitFloat,
    option,
    suggesting,
)
from jsrl.networks.model import NetworkConfig
from jsrl.types import REPLAY, EnvSpec


@suggesting
@dataclass(frozen=True)
class DDPGConfig:
    """Hyperparameters of DDPG."""

    factory: ClassVar[str] = "jsrl.agents.ddpg:ddpg"
    learns_from: ClassVar[str] = REPLAY
    usual_replay: ClassVar[dict[str, Any]] = off.USUAL_REPLAY

    # fmt: off
    optimizer: Any = option("adam", ac.OPTIMIZER_HELP)
    learning_rate: PositiveFinite = option(3e-4, "learning rate of the policy.")
    critic_learning_rate: PositiveFinite | None = option(None, "that of the critic; None: learning_rate.")
    schedule: Any = option("constant", ac.SCHEDULE_HELP)
    total_updates: PositiveInt | None = option(None, ac.TOTAL_UPDATES_HELP, in_python=True)
    max_grad_norm: PositiveFloat | None = option(None, "clip each gradient to this global norm; None: no clipping.")
    gamma: UnitFloat = option(0.99, "discount factor.")
    tau: PositiveUnitFloat = option(0.005, "share of the online networks in each step of the target networks; 1 "
        "replaces them.")
    target_period: PositiveInt = option(1, "updates between steps of the target networks.")
    noise_process: off.Process = option("normal", off.PROCESS_HELP)
    exploration_noise: NonNegativeFinite = option(0.1, "standard deviation of the noise on played actions, as a share "
        "of half the action's range.")
    random_start: bool = option(True, "play uniformly random actions until the first update is published.")
    normalize_observations: bool = option(False, off.NORMALIZE_HELP)
    network: NetworkConfig = option(help="options of the policy's network and of the "
        "critic's.", factory=lambda: NetworkConfig(hidden=(256, 256), activation="relu"))
    # fmt: on


def ddpg(config: DDPGConfig, spec: EnvSpec) -> Agent:
    given = {each.name: getattr(config, each.name) for each in dataclasses.fields(config)}
    return td3(TD3Config(**given, num_critics=1, policy_delay=1, target_noise=0.0), spec)
