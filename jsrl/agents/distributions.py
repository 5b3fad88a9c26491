"""Action distributions as plain functions of a network head's outputs, with any leading axes.

| action spec                     | outputs                          | stored action         |
|---------------------------------|----------------------------------|-----------------------|
| Discrete                        | logits [..., A]                  | int32 [...]           |
| MultiDiscrete                   | concatenated logits [..., sum]   | int32 [..., parts]    |
| Continuous (clip, rescale)      | (mean, log_std) [..., A] each    | float32 [..., A]      |
| Continuous (squash)             | (mean, log_std) [..., A] each    | float32 [..., A], before tanh |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jsrl.types import ActionSpec, Array, Continuous, Discrete, MultiDiscrete, Tree

MASKED_LOGIT = -1e9  # finite: exp() is exactly 0, and 0 * MASKED_LOGIT stays 0 (with -inf it would be NaN)
_LOG_2PI = float(np.log(2.0 * np.pi))
_LOG_2 = float(np.log(2.0))
# The logistic density sech(x)^2 / 2 as a mixture of centred normals: (share, standard deviation). Fitted to the smallest
# maximum of |E|u + x| - log(2 cosh u)| over all u, which is 3.6e-6.
_LOGISTIC = ((0.1462281, 0.5091768), (0.5004817, 0.7568967), (0.3160963, 1.120522), (0.0371939, 1.6474145))


class Distribution(NamedTuple):
    """Pure functions over head outputs; log_prob and entropy sum over the action's own axes.

    sample: (key, outputs) -> action. mode: (outputs) -> action. log_prob: (outputs, action) -> [...].
    entropy: (outputs) -> [...], nats. kl: (outputs of p, outputs of q) -> KL(p || q) [...].
    """

    sample: Callable[[Array, Any], Array]
    mode: Callable[[Any], Array]
    log_prob: Callable[[Any, Array], Array]
    entropy: Callable[[Any], Array]
    kl: Callable[[Any, Any], Array]


def distribution(spec: ActionSpec) -> Distribution:
    """Return the distribution for `spec`: the one place that maps an action spec to its maths."""
    match spec:
        case Discrete():
            return categorical()
        case MultiDiscrete(nums=nums):
            return multi_categorical(nums)
        case Continuous(transform="squash"):
            return squashed_gaussian()
        case Continuous():
            return diagonal_gaussian()
    raise TypeError(f"no distribution for the action spec {spec!r}; expected Discrete, MultiDiscrete or Continuous")


def named(outputs: Any) -> dict[str, Array]:
    """Return head outputs by name: `mean` and `log_std` [..., A] of a Gaussian, else `logits`."""
    if not isinstance(outputs, tuple):
        return {"logits": outputs}
    mean, log_std = outputs
    return {"mean": mean, "log_std": jnp.broadcast_to(log_std, mean.shape)}


def mask_logits(logits: Array, mask: Array | None) -> Array:
    """Return logits [..., A] that give masked actions (mask 0) probability 0. A mask of only zeros gives uniform."""
    return logits if mask is None else jnp.where(mask.astype(bool), logits, MASKED_LOGIT)


def categorical() -> Distribution:
    """Return a categorical distribution over logits [..., A]."""

    def log_prob(logits: Array, action: Array) -> Array:
        picked = jnp.take_along_axis(logits, action[..., None].astype(jnp.int32), axis=-1)[..., 0]
        return picked - jax.nn.logsumexp(logits, axis=-1)

    def entropy(logits: Array) -> Array:
        log_p = jax.nn.log_softmax(logits)
        return -jnp.sum(jnp.exp(log_p) * log_p, axis=-1)

    def kl(logits: Array, other: Array) -> Array:
        log_p, log_q = jax.nn.log_softmax(logits), jax.nn.log_softmax(other)
        return jnp.sum(jnp.exp(log_p) * (log_p - log_q), axis=-1)

    return Distribution(
        sample=lambda key, logits: jax.random.categorical(key, logits).astype(jnp.int32),
        mode=lambda logits: jnp.argmax(logits, axis=-1).astype(jnp.int32),
        log_prob=log_prob,
        entropy=entropy,
        kl=kl,
    )


def multi_categorical(nums: tuple[int, ...]) -> Distribution:
    """Return independent categoricals over the parts of concatenated logits [..., sum(nums)]."""
    part, offsets = categorical(), np.cumsum(nums)[:-1].tolist()

    def split(logits: Array) -> list[Array]:
        return jnp.split(logits, offsets, axis=-1)

    def sample(key: Array, logits: Array) -> Array:
        keys = jax.random.split(key, len(nums))
        return jnp.stack([part.sample(k, x) for k, x in zip(keys, split(logits), strict=True)], axis=-1)

    def log_prob(logits: Array, action: Array) -> Array:
        return sum(part.log_prob(x, action[..., i]) for i, x in enumerate(split(logits)))

    return Distribution(
        sample=sample,
        mode=lambda logits: jnp.stack([part.mode(x) for x in split(logits)], axis=-1),
        log_prob=log_prob,
        entropy=lambda logits: sum(map(part.entropy, split(logits))),
        kl=lambda logits, other: sum(map(part.kl, split(logits), split(other))),
    )


def diagonal_gaussian() -> Distribution:
    """Return a Gaussian with diagonal covariance over outputs (mean, log_std), each [..., A]."""

    def sample(key: Array, outputs: tuple[Array, Array]) -> Array:
        mean, log_std = outputs
        return mean + jnp.exp(log_std) * jax.random.normal(key, mean.shape, mean.dtype)

    def log_prob(outputs: tuple[Array, Array], action: Array) -> Array:
        mean, log_std = outputs
        z = (action - mean) * jnp.exp(-log_std)
        return -jnp.sum(0.5 * jnp.square(z) + log_std + 0.5 * _LOG_2PI, axis=-1)

    def entropy(outputs: tuple[Array, Array]) -> Array:
        mean, log_std = outputs
        return jnp.sum(jnp.broadcast_to(log_std, mean.shape) + 0.5 * (1.0 + _LOG_2PI), axis=-1)

    def kl(outputs: tuple[Array, Array], others: tuple[Array, Array]) -> Array:
        (mean, log_std), (other_mean, other_log_std) = outputs, others
        ratio, away = jnp.exp(2.0 * (log_std - other_log_std)), (mean - other_mean) * jnp.exp(-other_log_std)
        return jnp.sum(other_log_std - log_std + 0.5 * (ratio + jnp.square(away) - 1.0), axis=-1)

    return Distribution(sample, mode=lambda outputs: outputs[0], log_prob=log_prob, entropy=entropy, kl=kl)


def squashed_gaussian() -> Distribution:
    """Return the distribution of tanh(u), u a diagonal Gaussian; actions are stored as u, before tanh.

    Storing u keeps the log-probability exact where tanh saturates (no atanh of a rounded 1.0). The environment's side
    applies tanh and scales to the bounds (jsrl.types.to_environment). log_prob is the density of tanh(u) on [-1, 1]:
    log N(u) - sum log(1 - tanh(u)^2), and log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2u)). The entropy is
    H(N) + E[sum log(1 - tanh(u)^2)], which is smooth, without noise, and right to 1e-5 nats per action dimension. The KL
    divergence is that of u, as tanh is invertible.
    """
    normal = diagonal_gaussian()

    def log_prob(outputs: tuple[Array, Array], action: Array) -> Array:
        log_slope = 2.0 * (_LOG_2 - action - jax.nn.softplus(-2.0 * action))
        return normal.log_prob(outputs, action) - jnp.sum(log_slope, axis=-1)

    def entropy(outputs: tuple[Array, Array]) -> Array:
        mean, log_std = outputs
        return normal.entropy(outputs) + jnp.sum(_expected_log_slope(mean, jnp.exp(2.0 * log_std)), axis=-1)

    return normal._replace(log_prob=log_prob, entropy=entropy)


def _expected_log_slope(mean: Array, variance: Array) -> Array:
    """Return E[log(1 - tanh(u)^2)], u ~ N(mean, variance), elementwise.

    log(1 - tanh(u)^2) = 2 log 2 - 2 log(2 cosh u), and log(2 cosh u) = E|u + x| with x of density sech(x)^2 / 2 (both have
    the second derivative sech(u)^2). With x a mixture of normals, u + x is one too, and E|N(m, v)| has a closed form.

    Source: Monahan and Stefanski, 1992, Normal scale mixture approximations to F*(z) (the idea of the mixture).
    """
    distance = jnp.zeros_like(mean)
    for share, std in _LOGISTIC:
        v = variance + std**2
        z = mean * jax.lax.rsqrt(2.0 * v)
        distance += share * (jnp.sqrt(2.0 * v / np.pi) * jnp.exp(-jnp.square(z)) + mean * jax.lax.erf(z))
    return 2.0 * _LOG_2 - 2.0 * distance


# -- noise that is a linear function of the features (gSDE), for a network's `StateNoiseHead` -------------------------


class NoiseCore(NamedTuple):
    """The core of acting: the function that an environment plays for some rows, or until its episode ends.

    Updates know it only by its distribution, (mean, log_std) of each row, so they stay as they are.

    Source: Raffin et al., 2020, arXiv 2005.05719, and Stable-Baselines3.
    Differs: drawn anew at the start of each episode too; the function follows the current log_std; an update of SAC draws
    the noise of each row apart, in place of one function for the whole batch.

    Attributes:
      draw: N(0, 1) [B, F, A], the weights of the function before they are scaled. age: rows since it was drawn, int32 [B].
    """

    draw: Array
    age: Array


def noise_core(weights: Tree) -> Callable[[int], NoiseCore]:
    """Return `initial_core` for a policy's weights, or their shapes."""
    shape = weights["head"]["log_std"].shape
    return lambda batch_size: NoiseCore(jnp.zeros((batch_size, *shape), jnp.float32), jnp.zeros(batch_size, jnp.int32))


def state_noise(
    weights: Tree, features: Array, core: NoiseCore, key: Array, is_first: Array, period: int
) -> tuple[Array, NoiseCore]:
    """Return the noise [B, A] on the mean actions of rows with features [B, F], and the new core."""
    due = is_first | (core.age + 1 >= period)
    draw = jnp.where(due[:, None, None], jax.random.normal(key, core.draw.shape, jnp.float32), core.draw)
    noise = jnp.einsum("bf,bfa->ba", features, jnp.exp(weights["head"]["log_std"]) * draw)
    return noise, NoiseCore(draw, jnp.where(due, 0, core.age + 1))
