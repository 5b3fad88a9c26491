"""Networks of the off-policy agents as pure functions: policies, ensembles of critics, and values of every action.

Weights are plain nested dicts. Those of an ensemble have a leading axis E in every leaf, so that all members are
multiplied at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from jsrl.errors import ConfigError
from jsrl.networks.kernels.products import Precision
from jsrl.networks.model import (
    POLICY_GAIN,
    VALUE_GAIN,
    LogitsHead,
    NetworkConfig,
    StateNoiseHead,
    check_features,
    core_type,
    first_weights,
    make_core,
    make_core_norm,
    make_torso,
    observation_leaves,
    remember,
    weights_of,
)
from jsrl.networks.orthogonal import orthogonal
from jsrl.networks.torsos import MLP, ActivationName, dense
from jsrl.types import Array, Continuous, Discrete, EnvSpec, Tree

LOG_STD_RANGE = (-20.0, 2.0)


class Network(NamedTuple):
    """A feed-forward network. init: (key) -> weights. apply: (weights, observation [..., *shape], ...) -> outputs.

    read: as apply, but returns (outputs, features [..., F] that the head reads).
    """

    init: Callable[[Array], Tree]
    apply: Callable[..., Any]
    read: Callable[..., Any]


class ValueNetwork(NamedTuple):
    """A network of action values, feed-forward or recurrent.

    init: (key) -> weights. initial_core: (batch_size) -> core [B, ...], () when feed-forward.
    apply: (weights, observation [T, B, ...], is_first [T, B], core) -> (outputs [T, B, A, Z], core). Z atoms (logits of a
    distribution over values), or 1. For feed-forward networks any leading axes work.
    """

    init: Callable[[Array], Tree]
    initial_core: Callable[[int], Tree]
    apply: Callable[[Tree, Tree, Array, Tree], tuple[Array, Tree]]


# -- heads ------------------------------------------------------------------------------------------------------------


class TanhHead(nn.Module):
    """Actions in [-1, 1]: [..., num_dims]."""

    num_dims: int

    @nn.compact
    def __call__(self, features: Array) -> Array:
        return jnp.tanh(dense(self.num_dims, POLICY_GAIN, "action")(features))


class ConditionalGaussianHead(nn.Module):
    """(mean [..., A], log_std [..., A]), both computed from the observation; log_std is clipped to [-20, 2].

    log_std_init: log_std at the start, which is the bias of its part of the layer.
    """

    num_dims: int
    log_std_init: float = 0.0

    @nn.compact
    def __call__(self, features: Array) -> tuple[Array, Array]:

        def bias(key: Array, shape: tuple[int, ...], dtype: jnp.dtype = jnp.float32) -> Array:
            return jnp.repeat(jnp.array([0.0, self.log_std_init], dtype), self.num_dims)

        kernel = orthogonal(POLICY_GAIN)
        outputs = nn.Dense(2 * self.num_dims, kernel_init=kernel, bias_init=bias, name="gaussian")(features)
        mean, log_std = jnp.split(outputs, 2, axis=-1)
        return mean, jnp.clip(log_std, *LOG_STD_RANGE)


class ValuesHead(nn.Module):
    """Values of all actions [..., A, Z]; duelling: v + (a - mean over actions of a).

    Source: Wang et al., 2016, arXiv 1511.06581, equation 9.
    Differs: both streams are linear in the torso's features.
    """

    num_actions: int
    num_atoms: int = 1
    dueling: bool = False

    @nn.compact
    def __call__(self, features: Array) -> Array:
        """Return values, or logits of their distributions."""
        advantage = dense(self.num_actions * self.num_atoms, VALUE_GAIN, "advantage")(features)
        advantage = advantage.reshape(*features.shape[:-1], self.num_actions, self.num_atoms)
        if not self.dueling:
            return advantage
        value = dense(self.num_atoms, VALUE_GAIN, "value")(features)[..., None, :]
        return value + advantage - jnp.mean(advantage, axis=-2, keepdims=True)


class ScalarHead(nn.Module):
    """One value [...]."""

    @nn.compact
    def __call__(self, features: Array) -> Array:
        return dense(1, VALUE_GAIN, "value")(features)[..., 0]


# -- networks ---------------------------------------------------------------------------------------------------------


class _Joint(nn.Module):
    """Torso, then an MLP over its features and other inputs (an action), then a head.

    The MLP comes after the concatenation, so that the image's features and the action can interact.
    """

    torso: nn.Module
    hidden: tuple[int, ...]
    activation: ActivationName
    precision: Precision
    layer_norm: bool
    head: nn.Module

    @nn.compact
    def __call__(self, observation: Tree, *others: Array) -> tuple[Any, Array]:
        """Return the head's outputs, and the features that it reads."""
        features = [self.torso(observation), *others]
        joined = features[0] if len(features) == 1 else jnp.concatenate(features, axis=-1)
        joined = MLP(self.hidden, self.activation, self.precision, self.layer_norm)(joined)
        return self.head(joined), joined


def _joint(config: NetworkConfig, spec: EnvSpec, head: nn.Module) -> nn.Module:
    if config.core != "none" or config.shared:
        raise ConfigError(
            f"networks with core={config.core!r} and shared={config.shared} do not fit here: policy and critics are "
            "feed-forward and have weights of their own; leave both options out (r2d2 is the recurrent off-policy agent)"
        )
    check_features(config, spec)
    inside = int(config.torso == "entities")  # the first size is that of an embedding, inside the torso
    torso = make_torso(dataclasses.replace(config, hidden=config.hidden[:inside]), observation_leaves(spec))
    hidden = tuple(config.hidden[inside:])
    return _Joint(torso, hidden, config.activation, config.precision, config.layer_norm, head)


def _blank(spec: EnvSpec, *leading: int) -> Tree:
    return jax.tree.map(lambda leaf: jnp.zeros((*leading, *leaf.shape), leaf.dtype), spec.observation)


def policy_network(config: NetworkConfig, spec: EnvSpec, *, deterministic: bool = False) -> Network:
    """Return a policy: (weights, observation) -> logits, (mean, log_std), or an action in [-1, 1] (deterministic)."""
    match spec.action:
        case Discrete(num_actions=num_actions):
            head: nn.Module = LogitsHead(num_actions)
        case Continuous(low=low):
            options: Any = {"num_dims": len(low), "log_std_init": config.log_std_init}
            if deterministic:
                head = TanhHead(len(low))
            elif config.noise_period is None:
                head = ConditionalGaussianHead(**options)
            else:
                head = StateNoiseHead(**options, learn_features=True, max_mean=2.0)
        case _:
            raise ConfigError(f"{spec.name} has actions {spec.action!r}; expected Discrete or Continuous ones")
    module = _joint(config, spec, head)

    @jax.jit
    def init(key: Array) -> Tree:
        return first_weights(config, weights_of(module.init(key, _blank(spec, 1))), key)

    def read(weights: Tree, observation: Tree) -> Any:
        return module.apply({"params": weights}, observation)

    return Network(init, lambda weights, observation: read(weights, observation)[0], read)


def critic_network(config: NetworkConfig, spec: EnvSpec, *, num_critics: int) -> Network:
    """Return an ensemble of E critics with separate weights.

    Continuous actions: (weights, observation, action [..., A] in [-1, 1]) -> values [E, ...].
    Discrete actions: (weights, observation) -> values of all actions [E, ..., A].
    """
    of_all_actions = isinstance(spec.action, Discrete)
    head = LogitsHead(spec.action.num_actions) if isinstance(spec.action, Discrete) else ScalarHead()
    module = _joint(config, spec, head)
    blank = (_blank(spec, 1),) if of_all_actions else (_blank(spec, 1), jnp.zeros((1, *spec.action.array.shape)))

    @jax.jit
    def init(key: Array) -> Tree:
        def one(key: Array) -> Tree:
            return first_weights(config, weights_of(module.init(key, *blank)), key)

        return jax.vmap(one)(jax.random.split(key, num_critics))

    def read(weights: Tree, *inputs: Any) -> Any:
        return jax.vmap(lambda w: module.apply({"params": w}, *inputs))(weights)

    return Network(init, lambda weights, *inputs: read(weights, *inputs)[0], read)


class _Values(nn.Module):
    """Torso, core and the head of action values."""

    torso: nn.Module
    core: Any
    head: nn.Module
    core_norm: Any = None

    def __call__(self, observation: Tree, is_first: Array, core: Tree) -> tuple[Array, Tree]:
        features = self.torso(observation)
        if self.core is not None:
            features, core = remember(self.core, self.core_norm, features, is_first, core)
        return self.head(features), core


def value_network(config: NetworkConfig, spec: EnvSpec, *, dueling: bool = False, num_atoms: int = 1) -> ValueNetwork:
    """Return a network of action values with `num_atoms` outputs per action."""
    if not isinstance(spec.action, Discrete):
        other = "sac, td3 or ddpg" if isinstance(spec.action, Continuous) else "ppo or impala"
        raise ConfigError(
            f"{spec.name} has actions {spec.action!r}, but values of all actions need Discrete ones; use {other}"
        )
    recurrent = config.core != "none"
    head = ValuesHead(spec.action.num_actions, num_atoms, dueling)
    check_features(config, spec)
    torso = make_torso(config, observation_leaves(spec))
    module = _Values(torso, make_core(config), head, make_core_norm(config))

    def initial_core(batch_size: int) -> Tree:
        return core_type(config.core).initial(batch_size, config.core_size) if recurrent else ()

    @jax.jit
    def init(key: Array) -> Tree:
        variables = module.init(key, _blank(spec, 1, 1), jnp.zeros((1, 1), bool), initial_core(1))
        return first_weights(config, weights_of(variables), key)

    def apply(weights: Tree, observation: Tree, is_first: Array, core: Tree) -> tuple[Array, Tree]:
        outputs: Any = module.apply({"params": weights}, observation, is_first, core)
        return outputs

    return ValueNetwork(init, initial_core, apply)
