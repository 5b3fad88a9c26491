"""The network of an actor-critic agent: from a config and an environment's spec to pure functions.

Weights are plain nested dicts: policy_weights {torso, core, head}, value_weights {torso, head}, without missing parts
(no core; a value torso only when it is separate). A value function with its own recurrent core has torso and
core, {value_torso, value_core}, among policy_weights: acting carries the state of both cores from row to row.
"""

from __future__ import annotations

import difflib
import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import flax.linen as nn
import jax
import jax.numpy as jnp

from jsrl.errors import ConfigError
from jsrl.fields import FiniteFloat, PositiveInt, option, suggesting
from jsrl.networks.kernels.products import Precision
from jsrl.networks.torsos import ActivationName, Encoder, Leaf, dense
from jsrl.references.importing import import_target
from jsrl.types import (
    ActionSpec,
    Array,
    Continuous,
    Discrete,
    EnvSpec,
    MultiDiscrete,
    Tree,
    is_image,
    named_leaves,
    own_leaves,
)

TorsoName: TypeAlias = Literal["auto", "mlp", "nature_cnn", "impala_resnet", "entities"]
CoreName: TypeAlias = Literal["none", "gru", "lstm"]
ACTION_MASK = "action_mask"
# imported where a network has such a part
PARTS = {
    "nature_cnn": "jsrl.networks.images:NatureCNN",
    "impala_resnet": "jsrl.networks.images:ImpalaResNet",
    "entities": "jsrl.networks.entities:make_entity_torso",
    "gru": "jsrl.networks.cores:GRU",
    "lstm": "jsrl.networks.cores:LSTM",
}
MIN_NATURE_SIDE = 36  # below this the input of the Nature CNN's third convolution is too small
POLICY_GAIN = 0.01
VALUE_GAIN = 1.0


@suggesting
@dataclass(frozen=True)
class EntityConfig:
    """Inputs and options of the torso `entities`."""

    # fmt: off
    leaves: tuple[str, ...] = option((), "sets of entities: a leaf [k, F] of the observation, with its mask [k] (1: "
        "read the entity) if it has one, as in `box_obs:mask_ab_obs`; a mask is bool. Leaves that the observation "
        "lacks are ignored, but one must exist.")
    value_leaves: tuple[str, ...] = option((), "the same for a value function with a torso of its own, which may see "
        "more; (): as `leaves`.")
    rays: tuple[str, ...] = option((), "leaves [n] around a circle, such as a lidar's. Leaves that the observation "
        "lacks are ignored.")
    heads: PositiveInt = option(4, "attention heads. Their number divides the first entry of the network's `hidden`, "
        "the size of an embedding; the other entries are layers after the pooling.")
    # fmt: on

    def __post_init__(self) -> None:
        for entry in (*self.leaves, *self.value_leaves):
            if not entry.partition(":")[0] or entry.count(":") > 1:
                raise ConfigError(
                    f"entities.leaves has {entry!r}; write LEAF or LEAF:MASK, such as box_obs:mask_ab_obs"
                )


@suggesting
@dataclass(frozen=True)
class NetworkConfig:
    """Options of an actor-critic network."""

    # fmt: off
    torso: Any = option("auto", "auto, mlp, nature_cnn, impala_resnet, entities, a flax module, or its `module:Class`. "
        "auto reads images by nature_cnn, or by impala_resnet where they are smaller than 36 pixels, and all else by "
        "an mlp. entities is attention over sets of entities (jsrl.networks.entities). A module maps observations "
        "[..., *shape] to features [..., F]; given by name, it needs no arguments. Of flax.nnx it is a class or a "
        "functools.partial of one, called with `rngs`.")
    hidden: tuple[PositiveInt, ...] = option((64, 64), "layer sizes of the MLP that reads all leaves that are not "
        "images.")
    activation: ActivationName = option("tanh", "of the layers of that MLP.")
    entities: EntityConfig = option(help="what the torso `entities` reads; its `hidden` are the size of an embedding "
        "and of the layers after it.", factory=EntityConfig, in_python=True)
    layer_norm: bool = option(False, "layer normalisation before each activation of the torso; `entities` has its own.")
    core: CoreName = option("none", "recurrent core: none, gru or lstm.")
    core_size: PositiveInt = option(128, "units of the core.", needs=("core gru", "core lstm"))
    core_norm: bool = option(False, "layer normalisation of the core's outputs.", in_python=True)
    shared: bool | None = option(None, "share torso and core between policy and value. None: share them for images and "
        "recurrent networks. With a core and False each has its own core, and actors compute both.")
    log_std_init: FiniteFloat = option(0.0, "initial log standard deviation of continuous actions.")
    noise_period: PositiveInt | None = option(None, "explore by noise that is a linear function of the features (gSDE), "
        "drawn anew at the start of an episode and after so many rows, for continuous actions of feed-forward networks; "
        "log_std_init is then that of the function's weights. None: independent noise in each row.")
    init: Literal["orthogonal", "uniform"] = option("orthogonal", "first weights: orthogonal, heads of policies small; "
        "or uniform in +-1/sqrt(inputs) in every layer, biases too, as PyTorch does.")
    precision: Precision = option("float32", "float32, or bfloat16: the torso's layers multiply in bfloat16 and sum in "
        "float32, except the first layer of inputs that are not images. Weights, optimizer, core and heads stay in "
        "float32.")
    # fmt: on

    def __post_init__(self) -> None:
        if isinstance(self.torso, str) and ":" not in self.torso:
            check_name("torso", self.torso, get_args(TorsoName), " or module:Class of a flax module")
        elif self.precision != "float32":
            raise ConfigError(
                f"network precision={self.precision!r} is for the torsos of jsrl, and torso is {self.torso!r}; leave "
                "precision out and set the precision inside that module"
            )
        if self.noise_period is not None and self.core != "none":
            raise ConfigError(f"noise_period={self.noise_period} is for feed-forward networks, got core={self.core!r}")


class ActorCritic(NamedTuple):
    """A network as pure functions.

    Attributes:
      init: (key) -> (policy_weights, value_weights); policy_weights is all that acting needs.
      initial_core: (batch_size) -> core, a tree of [B, ...]; () when feed-forward.
      policy: (policy_weights, observation [T, B, ...], is_first bool [T, B], core) -> (head outputs [T, B, ...], features
        [T, B, F], new core). For feed-forward networks any leading axes work.
      value: (value_weights, observation [T, B, ...], features [T, B, F]) -> value [T, B] in normalised units. Reads
        features where torsos are shared, or there is a core, else the observation. Features are those of the value
        function where it has a core of its own.
      value_head: path in value_weights of the last linear layer (kernel [F, 1], bias [1]), which PopArt rescales.
      shared: whether policy and value share torso and core.
      noise_period: that of the config; the policy's head is then a `StateNoiseHead`.
    """

    init: Callable[[Array], tuple[Tree, Tree]]
    initial_core: Callable[[int], Tree]
    policy: Callable[[Tree, Tree, Array, Tree], tuple[Any, Array, Tree]]
    value: Callable[[Tree, Tree, Array], Array]
    value_head: tuple[str, ...] = ("head",)
    shared: bool = False
    noise_period: int | None = None


class _Policy(nn.Module):
    """Torso, core and policy head; also torso and core of the value function if they are separate and recurrent."""

    torso: nn.Module
    core: Any
    head: nn.Module
    core_norm: Any = None
    value_torso: Any = None
    value_core: Any = None
    value_core_norm: Any = None

    def __call__(self, observation: Tree, is_first: Array, core: Tree) -> tuple[Any, Array, Tree]:
        features = self.torso(observation)
        if self.core is None:
            return self.head(features), features, core
        if self.value_core is None:
            features, core = remember(self.core, self.core_norm, features, is_first, core)
            return self.head(features), features, core
        features, own = remember(self.core, self.core_norm, features, is_first, core["policy"])
        of_value = self.value_torso(observation)
        of_value, values = remember(self.value_core, self.value_core_norm, of_value, is_first, core["value"])
        return self.head(features), of_value, {"policy": own, "value": values}


def remember(core: nn.Module, norm: Any, features: Array, is_first: Array, state: Tree) -> tuple[Array, Tree]:
    """Return a core's outputs, normalised if there is a `norm`, and its state after the last row."""
    features, state = core(features, is_first, state)
    return (features if norm is None else norm(features)), state


class _Value(nn.Module):
    """Value head, with its own torso if there is one."""

    torso: Any
    head: nn.Module

    def __call__(self, observation: Tree, features: Array) -> Array:
        return self.head(features if self.torso is None else self.torso(observation))[..., 0]


def actor_critic(config: NetworkConfig, spec: EnvSpec) -> ActorCritic:
    """Return the network that `config` describes, for observations and actions of `spec`."""
    check_features(config, spec)
    leaves = observation_leaves(spec)
    recurrent = config.core != "none"
    shared = config.shared if config.shared is not None else recurrent or any(leaf.is_image for leaf in leaves)
    both = recurrent and not shared  # two cores: acting computes both
    noise_period = config.noise_period if isinstance(spec.action, Continuous) else None
    policy = _Policy(
        make_torso(config, leaves),
        *(make_core(config), policy_head(spec.action, config), make_core_norm(config)),
        *((make_torso(config, leaves, value=True), make_core(config), make_core_norm(config)) if both else ()),
    )
    value = _Value(None if shared or recurrent else make_torso(config, leaves, value=True), value_head())

    def initial_core(batch_size: int) -> Tree:
        if both:
            return {name: core_type(config.core).initial(batch_size, config.core_size) for name in ("policy", "value")}
        return core_type(config.core).initial(batch_size, config.core_size) if recurrent else ()

    @jax.jit
    def init(key: Array) -> tuple[Tree, Tree]:
        policy_key, value_key = jax.random.split(key)
        observation = jax.tree.map(lambda leaf: jnp.zeros((1, 1, *leaf.shape), leaf.dtype), spec.observation)
        is_first = jnp.zeros((1, 1), bool)
        (_, features, _), variables = policy.init_with_output(policy_key, observation, is_first, initial_core(1))
        of_policy, of_value = weights_of(variables), weights_of(value.init(value_key, observation, features))
        return first_weights(config, of_policy, policy_key), first_weights(config, of_value, value_key)

    def run_policy(weights: Tree, observation: Tree, is_first: Array, core: Tree) -> tuple[Any, Array, Tree]:
        outputs: Any = policy.apply({"params": weights}, observation, is_first, core)
        return outputs

    def run_value(weights: Tree, observation: Tree, features: Array) -> Array:
        return value.apply({"params": weights}, observation, features)

    return ActorCritic(init, initial_core, run_policy, run_value, ("head",), shared, noise_period)


def core_type(name: CoreName) -> Any:
    return import_target(PARTS[name])


def make_core(config: NetworkConfig) -> Any:
    """Return the recurrent core; None: the network is feed-forward."""
    return core_type(config.core)(config.core_size, parent=None) if config.core != "none" else None


def make_core_norm(config: NetworkConfig) -> Any:
    """Return the layer that normalises the core's outputs; None: there is no such layer."""
    return nn.LayerNorm(parent=None) if config.core != "none" and config.core_norm else None


def weights_of(variables: Tree) -> Tree:
    """Return the parameters among a module's variables."""
    others = sorted(set(variables) - {"params"})
    if others:
        raise ConfigError(
            f"the torso has flax variables besides 'params': {', '.join(others)}; networks are pure functions of their "
            "parameters: use LayerNorm or GroupNorm in place of BatchNorm, and no mutable state"
        )
    return dict(variables["params"])


def first_weights(config: NetworkConfig, weights: Tree, key: Array) -> Tree:
    """Return weights as the modules draw them, or uniform ones, if the config says so."""
    return weights if config.init == "orthogonal" else _uniform(weights, key)


def _uniform(weights: Tree, key: Array) -> Tree:
    """Return weights with each layer's kernel [..., in, out] and bias drawn from +-1/sqrt(inputs); others unchanged."""
    if not isinstance(weights, dict):
        return weights
    keys = zip(sorted(weights), jax.random.split(key, len(weights)), strict=True)
    if "kernel" not in weights:
        return {name: _uniform(weights[name], key) for name, key in keys}
    bound = math.prod(weights["kernel"].shape[:-1]) ** -0.5
    return {name: jax.random.uniform(key, weights[name].shape, minval=-bound, maxval=bound) for name, key in keys}


# -- torsos -----------------------------------------------------------------------------------------------------------


def observation_leaves(spec: EnvSpec) -> tuple[Leaf, ...]:
    """Return the leaves that a network reads, with the kind of each; a dict's `action_mask` is not among them."""
    leaves = [
        Leaf(path, leaf.shape, is_image(leaf), leaf.dtype) for path, leaf in own_leaves(spec) if path != ACTION_MASK
    ]
    if not leaves:
        raise ConfigError(
            f"the observation of {spec.name} is only an action mask; give the network something to read as well"
        )
    return tuple(leaves)


def make_torso(config: NetworkConfig, leaves: tuple[Leaf, ...], *, value: bool = False) -> nn.Module:
    """Return the torso module that reads these leaves; `value`: for a separate value function."""
    if not isinstance(config.torso, str):
        return _own_torso(config.torso, config.torso)
    if ":" in config.torso:
        return _own_torso(import_target(config.torso), config.torso)
    images = [leaf for leaf in leaves if leaf.is_image]
    shapes = ", ".join(f"{leaf.path or 'observation'} {leaf.shape}" for leaf in leaves)
    kind = config.torso
    if kind == "entities":
        hidden, entities = tuple(config.hidden), config.entities
        make_entity_torso = import_target(PARTS[kind])
        return make_entity_torso(entities, leaves, hidden, config.activation, config.precision, value=value)
    if kind in ("nature_cnn", "impala_resnet") and not images:
        kind_of_image = "images are uint8 [H, W, C], stacks [k, H, W, C]"
        raise ConfigError(f"torso={kind!r} needs an image ({kind_of_image}), but there is only {shapes}; use 'mlp'")
    small = [leaf for leaf in images if _side(leaf) < MIN_NATURE_SIDE]
    if kind == "nature_cnn" and small:
        raise ConfigError(
            f"torso='nature_cnn' needs images of at least {MIN_NATURE_SIDE} x {MIN_NATURE_SIDE}, got {shapes}; "
            "use 'impala_resnet'"
        )
    if kind == "mlp":
        leaves = tuple(leaf._replace(is_image=False) for leaf in leaves)
    read_image = None
    if any(leaf.is_image for leaf in leaves):
        image_torso = import_target(PARTS[("impala_resnet" if small else "nature_cnn") if kind == "auto" else kind])
        read_image = partial(image_torso, precision=config.precision, layer_norm=config.layer_norm)
    return Encoder(leaves, read_image, tuple(config.hidden), config.activation, config.precision, config.layer_norm)


def _side(leaf: Leaf) -> int:
    return min(leaf.shape[-2:] if leaf.channels_first else leaf.shape[-3:-1])


def check_features(config: NetworkConfig, spec: EnvSpec) -> None:
    """Refuse a torso of the user's that does not return features of the observations of `spec`."""
    if isinstance(config.torso, str) and ":" not in config.torso:
        return
    torso = make_torso(config, ())
    observation = jax.tree.map(lambda leaf: jnp.zeros((1, 1, *leaf.shape), leaf.dtype), spec.observation)
    found = jax.eval_shape(lambda key: torso.init_with_output(key, observation)[0], jax.random.key(0))
    shape = getattr(found, "shape", type(found).__name__)
    if len(shape) != 3 or shape[:2] != (1, 1):
        read = {name: leaf.shape for name, leaf in named_leaves(observation)}
        raise ConfigError(
            f"torso {config.torso!r} maps observations {read} to {shape}; expected features of shape (1, 1, F): keep the "
            "two leading axes, and flatten all others"
        )


def _own_torso(torso: Any, given: Any) -> nn.Module:
    made = torso.func if isinstance(torso, partial) else torso
    nnx: Any = sys.modules.get("flax.nnx")  # 0.4 s to import; who wrote such a class has
    if nnx is not None and isinstance(made, type) and issubclass(made, nnx.Module):
        torso = nnx.bridge.ToLinen(torso)
    elif isinstance(torso, type) and issubclass(torso, nn.Module):
        torso = torso()
    if not isinstance(torso, nn.Module):
        raise ConfigError(
            f"torso {given!r} is {type(torso).__name__}, not a flax.linen or flax.nnx module that maps observations "
            f"[..., *shape] to features [..., F]; pass a module of linen, a class, module:Class, or one of "
            f"{', '.join(get_args(TorsoName))}"
        )
    return torso.clone(parent=None, name=None)


def check_name(what: str, value: Any, choices: Iterable[str], also: str = "") -> None:
    choices = list(choices)
    if value in choices:
        return
    near = difflib.get_close_matches(str(value), choices, n=1, cutoff=0.4)
    hint = f"; did you mean {near[0]!r}?" if near else ";"
    raise ConfigError(f"unknown network {what} {value!r}{hint} Choose one of {', '.join(choices)}{also}")


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


class StateNoiseHead(nn.Module):
    """(mean, log_std) [..., A] of actions with noise that is a linear function of the features: features @ W.

    W [F, A] is drawn from N(0, exp(log_std)^2), with log_std [F, A] a parameter; so the deviation of a row depends on its
    features. learn_features: whether it trains them. max_mean: the mean is clipped to its negative and to it.

    Source: Raffin et al., 2020, arXiv 2005.05719, as in StateDependentNoiseDistribution of Stable-Baselines3.
    """

    num_dims: int
    log_std_init: float = 0.0
    learn_features: bool = False
    max_mean: float = math.inf

    @nn.compact
    def __call__(self, features: Array) -> tuple[Array, Array]:
        mean = dense(self.num_dims, POLICY_GAIN, "mean")(features)
        shape = (features.shape[-1], self.num_dims)
        log_std = self.param("log_std", nn.initializers.constant(self.log_std_init), shape, jnp.float32)
        read = features if self.learn_features else jax.lax.stop_gradient(features)
        variance = jnp.square(read) @ jnp.exp(2.0 * log_std)
        return jnp.clip(mean, -self.max_mean, self.max_mean), 0.5 * jnp.log(variance + 1e-6)


def policy_head(action: ActionSpec, config: NetworkConfig) -> Any:
    match action:
        case Discrete(num_actions=num_actions):
            return LogitsHead(num_actions)
        case MultiDiscrete(nums=nums):
            return LogitsHead(sum(nums))
        case Continuous(low=low):
            head = GaussianHead if config.noise_period is None else StateNoiseHead
            return head(len(low), config.log_std_init)
    raise TypeError(f"no head for the action spec {action!r}; expected Discrete, MultiDiscrete or Continuous")


def value_head() -> nn.Dense:
    """Return the value head: a linear layer to [..., 1], kernel [F, 1] and bias [1]."""
    return dense(1, VALUE_GAIN)
