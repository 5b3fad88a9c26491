"""Networks that mix the utilities of a team's seats into one value, monotonically in each."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from jsrl.networks.heads import VALUE_GAIN
from jsrl.networks.torsos import dense
from jsrl.types import Array


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
