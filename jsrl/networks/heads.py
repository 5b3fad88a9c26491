"""Heads: outputs of a policy and a value function from features [..., F]."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from jsrl.networks.torsos import dense
from jsrl.types import ActionSpec, Array, Continuous, Discrete, MultiDiscrete

POLICY_GAIN = 0.01
VALUE_GAIN = 1.0


class LogitsHead(nn.Module):
    """Logits [..., num_logits]; for MultiDiscrete the concatenated logits of its parts."""

    num_logits: int

    @nn.compact
    def __call__(self, features: Array) -> Array:
        return dense(self.num_logits, POLICY_GAIN, "logits")(features)


class GaussianHead(nn.Module):
    """(mean [..., A], log_std [..., A]); log_std is a separate parameter, the same for every observation."""

    num_dims: int
    log_std_init: float = 0.0

    @nn.compact
    def __call__(self, features: Array) -> tuple[Array, Array]:
        mean = dense(self.num_dims, POLICY_GAIN, "mean")(features)
        log_std = self.param("log_std", nn.initializers.constant(self.log_std_init), (self.num_dims,), jnp.float32)
        return mean, jnp.broadcast_to(log_std, mean.shape)


def policy_head(action: ActionSpec, log_std_init: float = 0.0) -> Any:
    match action:
        case Discrete(num_actions=num_actions):
            return LogitsHead(num_actions)
        case MultiDiscrete(nums=nums):
            return LogitsHead(sum(nums))
        case Continuous(low=low):
            return GaussianHead(len(low), log_std_init)
    raise TypeError(f"no head for the action spec {action!r}; expected Discrete, MultiDiscrete or Continuous")


def value_head() -> nn.Dense:
    """Return the value head: a linear layer to [..., 1], kernel [F, 1] and bias [1]."""
    return dense(1, VALUE_GAIN)
