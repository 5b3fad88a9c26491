"""Inputs of agents for several seats: observations with the seat's number, and what the whole group observes."""

from __future__ import annotations

import dataclasses
import math

import jax.numpy as jnp

from jsrl.agents import actor_critic as ac
from jsrl.agents.normalization import ACTION_MASK
from jsrl.networks.torsos import as_vector
from jsrl.types import ACTING, VALUE_ONLY, WAITING, Array, ArraySpec, EnvSpec, Trajectory, Tree, named_leaves

AGENT = "agent"  # the added observation leaf: the seat's number, one-hot


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
    ids = (
        {AGENT: jnp.broadcast_to(jnp.eye(num_agents, dtype=jnp.float32), (*leading, num_agents, num_agents))}
        if agent_ids
        else {}
    )
    return {**as_dict(observation), **ids}


def own_size(spec: EnvSpec) -> int:
    """Return the number of values in one seat's observation, action mask excluded."""
    return sum(size(leaf) // leaf.shape[0] for path, leaf in named_leaves(spec.observation) if path != ACTION_MASK)


def own_vector(trajectory: Trajectory) -> Array:
    """Return each seat's observation as one vector, float32 [T+1, B, N, F], action mask excluded."""
    leaves = [leaf for path, leaf in named_leaves(trajectory.observation) if path != ACTION_MASK]
    return jnp.concatenate([as_vector(leaf, trajectory.acts.ndim) for leaf in leaves], -1)


def state_vector(trajectory: Trajectory) -> Array | None:
    """Return the environment's global state as one vector, float32 [T+1, B, F]; None: it has none."""
    leaves = [leaf for _, leaf in named_leaves(trajectory.state)]
    if not leaves:
        return None
    return jnp.concatenate([as_vector(leaf, 2) for leaf in leaves], -1)


# -- the seats of a group as one team ---------------------------------------------------------------------------------


def team_rows(trajectory: Trajectory, num_agents: int) -> Trajectory:
    """Return the rows [T+1, B, N] of a group of seats as the rows of one player, its team: [T+1, B].

    reward: the mean over all seats of the group (equal to the team's reward where all seats get that). discount: 0 where
    it is 0 for all seats. acts: 1 where any seat acts, 2 where all seats are dead and others of their side play on, else the
    team waits. observation and action: of the seats,
    [T+1, B, N, ...]; on rows that are not the seat's own they become 0, as in `fold_agents`.
    """
    clean = ac.fold_agents(trajectory, num_agents)
    acting = jnp.any(trajectory.acts == ACTING, axis=-1)
    dead = jnp.all(trajectory.acts == VALUE_ONLY, axis=-1)
    return trajectory._replace(
        observation=ac.unfold(clean.observation, 1, num_agents),
        action=ac.unfold(clean.action, 1, num_agents),
        reward=jnp.mean(trajectory.reward, axis=-1),
        discount=jnp.max(trajectory.discount, axis=-1),
        acts=jnp.where(acting, ACTING, jnp.where(dead, VALUE_ONLY, WAITING)).astype(trajectory.acts.dtype),
        log_prob=(),
        extras=(),
        version=(),
        core=(),
        state=(),
    )


def team_vector(trajectory: Trajectory) -> Array:
    """Return what a team observes, float32 [T+1, B, F]: the state or the acting seats' observations, and which seats act."""
    acts = (trajectory.acts == ACTING).astype(jnp.float32)
    state = state_vector(trajectory)
    if state is None:
        state = jnp.where(acts[..., None] > 0, own_vector(trajectory), 0.0).reshape(*acts.shape[:2], -1)
    return jnp.concatenate([state, acts], axis=-1)


def team_size(spec: EnvSpec) -> int:
    """Return F, the size of `team_vector`."""
    n = spec.num_agents or 1
    state = n * own_size(spec) if spec.state is None else sum(size(leaf) for _, leaf in named_leaves(spec.state))
    return state + n


def size(leaf: ArraySpec) -> int:
    return math.prod(leaf.shape)
