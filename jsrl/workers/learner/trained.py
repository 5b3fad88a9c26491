"""The agent that a learner trains: the config's, with the director's hyperparameters in its state."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from jsrl.agents.base import Agent
from jsrl.agents.hyperparameters import with_hyperparameters
from jsrl.directors.base import explored_names
from jsrl.experiment import Experiment
from jsrl.experiment.building import build_agent, resolved_agent
from jsrl.types import EnvSpec


def trained_agent(config: Any, spec: EnvSpec, hyperparameters: Mapping[str, float]) -> Agent:
    """Return the agent of a config; `hyperparameters`: name of a field -> its value in a new state."""
    return with_hyperparameters(config, functools.partial(build_agent, spec=spec), hyperparameters)


def agent_of(experiment: Experiment, spec: EnvSpec) -> Agent:
    """Return the agent that an experiment trains, for existing states."""
    return trained_agent(resolved_agent(experiment), spec, dict.fromkeys(explored_names(experiment.director), 0.0))
