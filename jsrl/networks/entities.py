"""A torso that attends over sets of entities: other agents, objects or other rows of an observation, with masks.

Each entity is embedded together with the agent's own features. The entities attend to each other in one residual layer of
masked self-attention, and their masked mean is concatenated with the agent's own embedding. Masked rows have no effect.
The order of the rows does not matter, except with normalize_observations, which has moments for each row.

Source: Baker et al., 2020, arXiv 1909.07528, section 5 and appendix B.7.
Differs: weights are initialised orthogonally, except the attention's; the layer that reads entities is split into its part for
the agent's own numbers and its part for the entity's, which are summed: the same layer, but the former is read once.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from jsrl.errors import ConfigError
from jsrl.networks.kernels.products import Precision, rounded_dense
from jsrl.networks.model import EntityConfig
from jsrl.networks.orthogonal import orthogonal
from jsrl.networks.torsos import ACTIVATIONS, ActivationName, Leaf, as_vector, dense
from jsrl.types import Array, Tree, named_leaves

LEFT_OUT = -1e10  # logit of an absent entity
RAY_FILTERS = 9


class EntitySet(NamedTuple):
    """A leaf [k, F] of entities and its mask [k]; empty: all are present."""

    leaf: str
    mask: str


class EntityAttention(nn.Module):
    """Encode observations [..., *shape] with sets of entities into features [..., hidden[-1]].

    Attributes:
      sets: of entities. rays: leaves [n] around a circle. own: the other leaves, flattened: the agent's own features.
      hidden: size of an embedding, then of the layers after the pooling. heads: of the attention.
      activation, precision: of the linear layers; the first layers multiply in float32 for every precision.
    """

    sets: tuple[EntitySet, ...]
    rays: tuple[str, ...]
    own: tuple[Leaf, ...]
    hidden: tuple[int, ...] = (128, 256)
    heads: int = 4
    activation: ActivationName = "relu"
    precision: Precision = "float32"

    @nn.compact
    def __call__(self, observation: Tree) -> Array:
        arrays, act, size = dict(named_leaves(observation)), ACTIVATIONS[self.activation], self.hidden[0]
        own = self._read_own(arrays)
        me = act(dense(size, name="me")(own))
        embedded, masks = [me[..., None, :]], [jnp.ones((*own.shape[:-1], 1), bool)]
        for leaf, mask in self.sets:
            entities = arrays[leaf].astype(jnp.float32)
            name = leaf.replace("/", "_")
            seen = dense(size, 1.0, name=name)(entities)
            context = nn.Dense(size, use_bias=False, kernel_init=orthogonal(1.0), name=f"{name}_me")(own)
            embedded.append(act(seen + context[..., None, :]))
            masks.append(arrays[mask] > 0 if mask else jnp.ones(entities.shape[:-1], bool))
        x, there = jnp.concatenate(embedded, axis=-2), jnp.concatenate(masks, axis=-1)
        x = self._attend(x, there)
        count = jnp.sum(there, axis=-1, keepdims=True)
        pooled = jnp.sum(jnp.where(there[..., None], x, 0.0), axis=-2) / count
        x = nn.LayerNorm(name="joined")(jnp.concatenate([me, pooled], axis=-1))
        for i, features in enumerate(self.hidden[1:]):
            x = nn.LayerNorm(name=f"after_{i}_norm")(
                act(dense(features, name=f"after_{i}", precision=self.precision)(x))
            )
        return x

    def _read_own(self, arrays: dict[str, Array]) -> Array:
        """Return the embedding of the agent's own features, [..., F]; rays are read by a circular convolution."""
        parts = []
        for leaf in self.own:
            x = arrays[leaf.path]
            parts.append(as_vector(x, x.ndim - len(leaf.shape)))
        for leaf_name in self.rays:
            x = arrays[leaf_name].astype(jnp.float32)
            near = jnp.stack([jnp.roll(x, shift, axis=-1) for shift in (1, 0, -1)], axis=-1)
            read = jax.nn.relu(dense(RAY_FILTERS, name=f"{leaf_name.replace('/', '_')}_rays")(near))
            parts.append(read.reshape(*x.shape[:-1], x.shape[-1] * RAY_FILTERS))
        return jnp.concatenate(parts, axis=-1)

    def _attend(self, x: Array, there: Array) -> Array:
        """Let entities x [..., K, E] attend to the present ones, `there`: bool [..., K]; return [..., K, E]."""
        size = x.shape[-1]
        init = nn.initializers.normal(math.sqrt(0.125 / size))
        product = rounded_dense if self.precision == "bfloat16" else None
        normal = nn.LayerNorm(name="before_attention")(x)
        joint = nn.Dense(3 * size, kernel_init=init, name="query_key_value", dot_general=product)(normal)
        query, key, value = (
            part.reshape(*part.shape[:-1], self.heads, size // self.heads) for part in jnp.split(joint, 3, axis=-1)
        )
        logits = jnp.einsum("...qhd,...khd->...hqk", query, key) / math.sqrt(size // self.heads)
        weights = jax.nn.softmax(jnp.where(there[..., None, None, :], logits, LEFT_OUT), axis=-1)
        weights = jnp.where(there[..., None, None, :], weights, 0.0)
        mixed = jnp.einsum("...hqk,...khd->...qhd", weights, value).reshape(x.shape)
        out = nn.Dense(size, kernel_init=init, name="attended", dot_general=product)(mixed)
        return nn.LayerNorm(name="after_attention")(x + out)


def make_entity_torso(
    config: EntityConfig,
    leaves: tuple[Leaf, ...],
    hidden: tuple[int, ...],
    activation: ActivationName,
    precision: Precision,
    *,
    value: bool,
) -> EntityAttention:
    """Return the torso that reads these leaves; `value`: that of a value function."""
    shapes = {leaf.path: leaf.shape for leaf in leaves}
    entries = _entries((config.value_leaves if value else ()) or config.leaves)
    sets = tuple(entry for entry in entries if entry.leaf in shapes)
    rays = tuple(path for path in config.rays if path in shapes)
    taken = {name for entry in _entries((*config.leaves, *config.value_leaves)) for name in entry} | set(rays)
    own = tuple(leaf for leaf in leaves if leaf.path not in taken)
    _check_sets(config, sets, leaves)
    _check_vectors(sets, rays, own, leaves)
    if not hidden or hidden[0] % config.heads:
        raise ConfigError(f"torso='entities' needs hidden[0], here {hidden}, in {config.heads} heads; give a multiple")
    return EntityAttention(sets, rays, own, hidden, config.heads, activation, precision)


def _entries(names: tuple[str, ...]) -> list[EntitySet]:
    return [EntitySet(*name.partition(":")[::2]) for name in names]


def _shapes_text(leaves: tuple[Leaf, ...]) -> str:
    return ", ".join(f"{leaf.path} {leaf.shape}" for leaf in leaves)


def _check_sets(config: EntityConfig, sets: tuple[EntitySet, ...], leaves: tuple[Leaf, ...]) -> None:
    """Refuse no set of entities, sets of another shape than [k, F] with a mask [k], and masks of numbers."""
    shapes = {leaf.path: leaf.shape for leaf in leaves}
    numbers = {leaf.path: leaf.dtype for leaf in leaves if leaf.dtype != "bool"}
    if not sets:
        raise ConfigError(
            f"torso='entities' needs sets of entities, and entities.leaves names {', '.join(config.leaves) or 'none'}; the "
            f"observation has {_shapes_text(leaves)}. Name its leaves [k, F], with their masks: LEAF:MASK"
        )
    for leaf, mask in sets:
        if len(shapes[leaf]) != 2 or (mask and shapes.get(mask) != shapes[leaf][:1]):
            raise ConfigError(
                f"entities.leaves has {leaf}:{mask}; expected a leaf [k, F] and a mask [k], and the observation has "
                f"{_shapes_text(leaves)}"
            )
        if mask in numbers:
            raise ConfigError(
                f"entities.leaves has {leaf}:{mask}, and the mask {mask} is {numbers[mask]}: normalize_observations would "
                "turn the mask of an entity that is always present into 0. Use bool (in Gymnasium and PettingZoo a Box of 0 "
                "and 1 of dtype uint8 or bool)"
            )


def _check_vectors(
    sets: tuple[EntitySet, ...], rays: tuple[str, ...], own: tuple[Leaf, ...], leaves: tuple[Leaf, ...]
) -> None:
    """Refuse leaves that are named twice, rays that are no vectors, images, and an observation without any vector."""
    shapes = {leaf.path: leaf.shape for leaf in leaves}
    read = [entry.leaf for entry in sets] + list(rays)
    wrong = [path for path in rays if len(shapes[path]) != 1] + [path for path in read if read.count(path) > 1]
    if wrong:
        raise ConfigError(
            f"entities.leaves and entities.rays name {wrong[0]}; expected each leaf once, and rays [n]. The observation has "
            f"{_shapes_text(leaves)}"
        )
    if any(leaf.is_image for leaf in own) or not (own or rays):
        raise ConfigError(
            "torso='entities' reads sets of entities and vectors, at least one of each and no images; the observation has "
            f"{_shapes_text(leaves)}"
        )
