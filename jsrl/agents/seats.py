"""What agents for several seats read: observations with the seat's number, and what the whole group knows."""

from __future__ import annotations

import dataclasses
import math

import jax.numpy as jnp

from jsrl.agents.normalization import ACTION_MASK
from jsrl.types import Array, ArraySpec, EnvSpec, Trajectory, Tree, named_leaves

AGENT = "agent"  # the leaf that is added to observations: the seat's number, one-hot


def as_dict(observation: Tree) -> dict[str, Tree]:
    """Return an observation, or its schema, as a dict of leaves."""
    return observation if isinstance(observation, dict) else {"observation": observation}


def numbered_spec(spec: EnvSpec, agent_ids: bool) -> EnvSpec:
    """Return the spec with observations as a dict, with the number of the seat where `agent_ids`."""
    n = spec.num_agents or 1
    ids = {AGENT: ArraySpec((n, n), "float32")} if agent_ids else {}
    return dataclasses.replace(spec, observation={**as_dict(spec.observation), **ids})


def numbered(observation: Tree, num_agents: int, agent_ids: bool, *leading: int) -> dict[str, Tree]:
    """Return observations [*leading, N, ...] as `numbered_spec` describes them."""
    ids = {AGENT: jnp.broadcast_to(jnp.eye(num_agents), (*leading, num_agents, num_agents))} if agent_ids else {}
    return {**as_dict(observation), **ids}


def own_size(spec: EnvSpec) -> int:
    """Return how many numbers one seat's observation has, action mask excluded."""
    return sum(size(leaf) // leaf.shape[0] for path, leaf in named_leaves(spec.observation) if path != ACTION_MASK)


def own_vector(trajectory: Trajectory) -> Array:
    """Return each seat's observation as one vector, float32 [T+1, B, N, F], action mask excluded."""
    leaves = [leaf for path, leaf in named_leaves(trajectory.observation) if path != ACTION_MASK]
    return jnp.concatenate([leaf.reshape(*trajectory.acts.shape, -1).astype(jnp.float32) for leaf in leaves], -1)


def state_vector(trajectory: Trajectory) -> Array | None:
    """Return the environment's global state as one vector, float32 [T+1, B, F]; None: it has none."""
    leaves = [leaf for _, leaf in named_leaves(trajectory.state)]
    if not leaves:
        return None
    return jnp.concatenate([leaf.reshape(*trajectory.acts.shape[:2], -1).astype(jnp.float32) for leaf in leaves], -1)


def size(leaf: ArraySpec) -> int:
    """Return how many numbers an array of this spec has."""
    return math.prod(leaf.shape)
