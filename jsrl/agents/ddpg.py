"""Deep deterministic policy gradient (DDPG), for continuous actions: TD3 with one critic, no delay and no smoothing.

Source: Lillicrap et al., 2016, arXiv 1509.02971.
Differs: Gaussian noise in place of the Ornstein-Uhlenbeck process, no batch normalisation, one network width for all; n-step
windows where replay gives them; random actions are played until the first update is published (`random_start`).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, ClassVar

from jsrl.agents import off_policy as off
from jsrl.agents.base import Agent
from jsrl.agents.td3 import TD3Config, td3
from jsrl.field_names import suggesting
from jsrl.networks.model import NetworkConfig
from jsrl.types import REPLAY, EnvSpec


@suggesting
@dataclass(frozen=True)
class DDPGConfig:
    """Hyperparameters of DDPG.

    Attributes:
      optimizer: adam, sgd, rmsprop, or a factory of an optax optimizer called with the learning rate, such as optax:lamb.
      learning_rate: learning rate of the policy. critic_learning_rate: that of the critic; None: learning_rate.
      max_grad_norm: clip each gradient to this global norm; None: no clipping.
      gamma: discount factor.
      tau: share of the online networks in each step of the target networks; 1 replaces them.
      target_period: updates between steps of the target networks.
      exploration_noise: standard deviation of the noise on played actions, as a share of half the action's range.
      random_start: play uniformly random actions until the first update is published.
      normalize_observations: normalise observations, except images and flags, by running moments of the sampled rows.
      network: options of the policy's network and of the critic's.
    """

    factory: ClassVar[str] = "jsrl.agents.ddpg:ddpg"
    learns_from: ClassVar[str] = REPLAY
    usual_replay: ClassVar[dict[str, Any]] = off.USUAL_REPLAY

    optimizer: Any = "adam"
    learning_rate: float = 3e-4
    critic_learning_rate: float | None = None
    max_grad_norm: float | None = None
    gamma: float = 0.99
    tau: float = 0.005
    target_period: int = 1
    exploration_noise: float = 0.1
    random_start: bool = True
    normalize_observations: bool = False
    network: NetworkConfig = field(default_factory=lambda: NetworkConfig(hidden=(256, 256), activation="relu"))

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
          ConfigError: an invalid value; the message names it and the valid ones.
        """
        off.check_learning(self)


def ddpg(config: DDPGConfig, spec: EnvSpec) -> Agent:
    """Return DDPG for environments of this spec.

    Raises:
      ConfigError: the spec or network cannot work with this config.
    """
    given = {each.name: getattr(config, each.name) for each in dataclasses.fields(config)}
    return td3(TD3Config(**given, num_critics=1, policy_delay=1, target_noise=0.0), spec)
