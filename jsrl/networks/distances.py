"""A torso for level-based foraging (jsrl.games.foraging): from rows and columns to distances."""

from __future__ import annotations

import flax.linen as nn
import jax.numpy as jnp

from jsrl.errors import ConfigError
from jsrl.networks.torsos import dense
from jsrl.types import Array


class Distances(nn.Module):
    """A torso that computes how far foods and agents are from each other, which rows and columns say less directly.

    Reads observations as `distances` does; for a policy the number of the seat is a separate leaf. Returns features [..., 64].
    """

    agents: int = 3

    @nn.compact
    def __call__(self, observation: Array | dict[str, Array]) -> Array:
        if isinstance(observation, dict):
            observation = jnp.concatenate([observation["observation"], observation["agent"]], axis=-1)
        features = distances(observation, self.agents)
        for _ in range(2):
            features = nn.relu(dense(64)(features))
        return features


def distances(observation: Array, agents: int) -> Array:
    """Return distances [..., 9 (F P + P - 1) + F + 2 P + 2] in foraging with F foods and P agents.

    They are those of each food from each agent (0 where there is no food), and of the other agents from the agent itself;
    then come its place, the levels, and its number.

    Args:
      observation: [..., 3 (F + P) + P]: row, column and level of the foods, the agent itself and the others; the number of
        its seat, one-hot.
      agents: P.
    """
    lead, size = observation.shape[:-1], observation.shape[-1]
    foods = (size - agents) // 3 - agents
    if size != 3 * (foods + agents) + agents or foods < 1:
        raise ConfigError(
            f"the torso of distances reads foraging with {agents} agents, and {size} numbers are not what they observe. Give "
            "policy and value function another one, such as network and critic_network with the torso mlp"
        )
    things, seat = observation[..., :-agents].reshape(*lead, -1, 3), observation[..., -agents:]
    places, levels = things[..., :2], things[..., 2]
    from_agents = _apart(places[..., :foods, None, :] - places[..., None, foods:, :])
    from_agents = jnp.where(levels[..., :foods, None, None] > 0, from_agents, 0.0)
    from_others = _apart(places[..., foods + 1 :, :] - places[..., foods : foods + 1, :])
    parts = [from_agents, from_others, places[..., foods, :] / 5, levels, seat]
    return jnp.concatenate([part.reshape(*lead, -1) for part in parts], axis=-1)


def _apart(steps: Array) -> Array:
    """Return for steps between two places, [..., 2], their numbers, sizes, directions, and whether they touch: [..., 9]."""
    size, way = jnp.abs(steps), jnp.sign(steps)
    touch = jnp.sum(size, axis=-1, keepdims=True) == 1
    return jnp.concatenate([steps / 5, size / 5, way, jnp.abs(way), touch], axis=-1)
