"""QMIX: a team's value is a monotonic mixture of its seats' utilities; the mixture depends on the state.

Everything but the mixture is jsrl.agents.factoring.

Source: Rashid et al., 2018, arXiv 1803.11485.
Differs: double Q-learning, as in the authors' later code; the mixer also reads which seats act; `RecurrentQMIXConfig` stores
cores and burns in, as R2D2 does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from jsrl.agents.base import Agent
from jsrl.agents.factoring import MakeMixing, Mixing, factored_dqn, factored_r2d2
from jsrl.agents.vdn import RecurrentVDNConfig, VDNConfig
from jsrl.fields import PositiveFinite, PositiveInt, option, suggesting
from jsrl.networks.model import VALUE_GAIN, weights_of
from jsrl.networks.torsos import dense
from jsrl.types import Array, EnvSpec


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


class MonotonicMixer(nn.Module):
    """utilities [..., N], state [..., F] -> values [...], with no negative derivative in any utility.

    elu(|W1(s)|' u + b1(s)) . |w2(s)| + b2(s): the weights are outputs of networks of the state (hypernetworks), W1 and w2
    with one hidden layer of `hyper_hidden` units, b2 with one of `embedding`, b1 linear. W1 and w2 are very small at first:
    the derivatives start near 0.005, so b2 learns the value of the state before the best of many uncertain utilities
    matters. With derivatives near 0.3, utilities did not learn cooperative navigation.

    Source: Rashid et al., 2018, arXiv 1803.11485, section 4 and figure 2.
    """

    embedding: int = 32
    hyper_hidden: int = 64

    @nn.compact
    def __call__(self, utilities: Array, state: Array) -> Array:
        n, e = utilities.shape[-1], self.embedding

        def positive(name: str, number: int) -> Array:
            hidden = nn.relu(dense(self.hyper_hidden, name=f"{name}_hyper")(state))
            return jnp.abs(dense(number, (e * self.hyper_hidden) ** -0.5, name)(hidden))

        first = positive("first", n * e).reshape(*state.shape[:-1], n, e)
        bias = dense(e, name="first_bias")(state)
        hidden = jax.nn.elu(jnp.einsum("...n,...ne->...e", utilities, first) + bias)
        last = nn.relu(dense(e, name="last_hidden")(state))
        offset = dense(1, VALUE_GAIN, "last_bias")(last)[..., 0]
        return jnp.sum(hidden * positive("last", e), axis=-1) + offset
