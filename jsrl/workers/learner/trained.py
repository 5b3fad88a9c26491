"""The agent that a learner trains: the config's, with the director's hyperparameters in its state."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import jax.numpy as jnp

from jsrl.agents.base import Agent, AgentState, Update, UpdateOutput
from jsrl.agents.hyperparameters import with_hyperparameters
from jsrl.directors.base import explored_names
from jsrl.envs.config import EnvConfig
from jsrl.experiment import Experiment
from jsrl.experiment.building import build_agent, resolved_agent
from jsrl.types import Array, EnvSpec, Trajectory


def trained_agent(experiment: Experiment, spec: EnvSpec, hyperparameters: Mapping[str, float]) -> Agent:
    """Return the agent that an experiment trains; `hyperparameters`: name of a field -> its value in a new state."""
    build = functools.partial(build_agent, spec=spec)
    return with_rewards(with_hyperparameters(resolved_agent(experiment), build, hyperparameters), experiment.env)


def agent_of(experiment: Experiment, spec: EnvSpec) -> Agent:
    """Return the agent that an experiment trains, for existing states."""
    return trained_agent(experiment, spec, dict.fromkeys(explored_names(experiment.director), 0.0))


def with_rewards(agent: Agent, env: EnvConfig) -> Agent:
    """Return the agent whose updates scale and clip rewards as the environment's options say; in rows they are raw."""
    scale, clip = env.reward_scale, env.reward_clip
    if scale == 1.0 and clip is None:
        return agent

    def learning(update: Update) -> Update:
        def learn(
            state: AgentState, trajectory: Trajectory, key: Array, *, axis_name: str | None = None
        ) -> tuple[AgentState, UpdateOutput]:
            reward = trajectory.reward * scale
            reward = reward if clip is None else jnp.clip(reward, -clip, clip)
            return update(state, trajectory._replace(reward=reward), key, axis_name=axis_name)

        return learn

    split = agent.split and agent.split._replace(
        policy=learning(agent.split.policy), critic=learning(agent.split.critic)
    )
    return agent._replace(update=learning(agent.update), split=split)
