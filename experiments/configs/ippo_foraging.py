"""IPPO on level-based foraging (10x10, 3 agents, 3 foods): agents learn from their team's reward, and see distances"""

import dataclasses

import flax.linen as nn
import jax.numpy as jnp

from jsrl.configs import ippo
from jsrl.envs.config import EnvConfig
from jsrl.experiment import Experiment
from jsrl.types import Array


class Distances(nn.Module):
    """A torso that computes how far foods and agents are from each other, which rows and columns say less directly.

    Reads observations as `distances` does; for a policy the number of the seat is a separate leaf. Returns features [..., 64].
    """

    agents: int = 3

    @nn.compact
    def __call__(self, observation: Array | dict[str, Array]) -> Array:
        """Return the features."""
        if isinstance(observation, dict):
            observation = jnp.concatenate([observation["observation"], observation["agent"]], axis=-1)
        features = distances(observation, self.agents)
        for _ in range(2):
            features = nn.relu(nn.Dense(64, kernel_init=nn.initializers.orthogonal(jnp.sqrt(2.0)))(features))
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
    lead, foods = observation.shape[:-1], (observation.shape[-1] - agents) // 3 - agents
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


def config() -> Experiment:
    """Return the experiment `ippo` with the team's reward, less entropy and networks that read distances.

    Each seat sees the whole grid, so a central value function would know no more. Scores with sampled actions are shown as
    well: agents that block each other stay so if they choose the most likely actions, because they see the same again.
    """
    base = ippo.config()
    torso = "jsrl.configs.ippo_foraging:Distances"
    agent = dataclasses.replace(
        base.agent,
        rewards="team",
        entropy_coef=0.001,
        network=dataclasses.replace(base.agent.network, torso=torso),
        critic_network=dataclasses.replace(base.agent.critic_network, torso=torso),
    )
    return dataclasses.replace(
        base,
        name="ippo_foraging",
        env=EnvConfig("foraging:10x10-3p-3f"),
        agent=agent,
        evaluator=dataclasses.replace(base.evaluator, sampled_episodes=100),
    )
