"""QMIX: a team's value is a monotonic mixture of its seats' utilities; the mixture depends on the state.

Everything but the mixture is jsrl.agents.factoring; the mixer is jsrl.networks.mixers.MonotonicMixer.

Source: Rashid et al., 2018, arXiv 1803.11485.
Differs: double Q-learning, as in the authors' later code; the mixer also reads which seats act; `RecurrentQMIXConfig` stores
cores and burns in, as R2D2 does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp

from jsrl.agents.base import Agent
from jsrl.agents.factoring import MakeMixing, Mixing, factored_dqn, factored_r2d2
from jsrl.agents.vdn import RecurrentVDNConfig, VDNConfig
from jsrl.field_names import suggesting
from jsrl.fields import PositiveFinite, PositiveInt, option
from jsrl.networks.mixers import MonotonicMixer
from jsrl.networks.model import weights_of
from jsrl.types import EnvSpec


@suggesting
@dataclass(frozen=True)
class QMIXConfig(VDNConfig):
    """Hyperparameters of QMIX: those of VDN, and these."""

    factory: ClassVar[str] = "jsrl.agents.qmix:qmix"

    learning_rate: PositiveFinite = 2e-4  # with 5e-4 values may diverge
    mixer_embedding: PositiveInt = option(32, "hidden units of the mixer.")
    mixer_hidden: PositiveInt = option(64, "hidden units of the networks that make its weights.")


@suggesting
@dataclass(frozen=True)
class RecurrentQMIXConfig(RecurrentVDNConfig):
    """Hyperparameters of QMIX with a recurrent network: those of recurrent VDN, and these."""

    factory: ClassVar[str] = "jsrl.agents.qmix:recurrent_qmix"

    learning_rate: PositiveFinite = 2e-4
    mixer_embedding: PositiveInt = option(32, "hidden units of the mixer.")
    mixer_hidden: PositiveInt = option(64, "hidden units of the networks that make its weights.")


def qmix(config: QMIXConfig, spec: EnvSpec) -> Agent:
    return factored_dqn(config, spec, monotonic(config))


def recurrent_qmix(config: RecurrentQMIXConfig, spec: EnvSpec) -> Agent:
    return factored_r2d2(config, spec, monotonic(config))


def monotonic(config: QMIXConfig | RecurrentQMIXConfig) -> MakeMixing:
    """Return the function that makes the mixer of N seats and states [F]."""
    mixer = MonotonicMixer(config.mixer_embedding, config.mixer_hidden)

    def make(num_agents: int, state_size: int) -> Mixing:
        blank = jnp.zeros((1, num_agents)), jnp.zeros((1, state_size))
        return Mixing(
            lambda key: weights_of(mixer.init(key, *blank)),
            lambda weights, utilities, state: mixer.apply({"params": weights}, utilities, state),
        )

    return make
