"""Checks that a director fits a run: its policies, the sides of the environment, and existing frozen players."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from jsrl.directors.pbt import PBT, Range
from jsrl.errors import ConfigError
from jsrl.experiment import Experiment, PolicyConfig
from jsrl.experiment.building import agent_name
from jsrl.experiment.policies import wants_scores
from jsrl.workers.jobs import Sides

TRIED = 8  # assignments checked before the start


def check_director(experiment: Experiment, sides: Sides, seats: Mapping[str, Mapping[str, int]]) -> None:
    """Refuse a director whose first assignments cannot be played; its worker checks the later ones.

    Args:
      sides: of the environment. seats: policy -> its seats: name -> place.
    """
    director: Any = experiment.director
    unknown = [name for name in director.policies if name not in seats]
    if unknown:
        raise ConfigError(
            f"the director assigns the policy {unknown[0]!r}, which the run does not have; it has: {', '.join(seats)}. Give "
            f"{type(director).__name__} these names as `policies`."
        )
    if experiment.learner.split != "none":
        raise ConfigError(
            f"learner.split={experiment.learner.split} does not work with a director: its resets and copies replace a "
            "learner's state, which the updates in flight on two devices would undo; leave one of them out."
        )
    if wants_scores(director):
        _check_scored(experiment, director)
    if isinstance(director, PBT):
        _check_population(experiment, director)
    for one in director.propose(director.init(experiment.seed), TRIED)[1]:
        sides.check(one)
        if one.task is not None and experiment.env.tasks:
            raise ConfigError("the director assigns tasks, and env.tasks draws some as well; leave one of them out.")


def _check_population(experiment: Experiment, director: PBT) -> None:
    """Refuse members that cannot copy each other's state, and hyperparameters that cannot change during a run."""
    first, *others = director.policies
    agent = experiment.policies[first].agent if experiment.policies else experiment.agent
    if outside := [name for name in experiment.policies if name not in director.policies]:
        raise ConfigError(
            f"the policy {outside[0]!r} is not a member of the population; name it in PBT's policies as well."
        )
    for name in others:
        if experiment.policies[name].agent != agent:
            raise ConfigError(
                f"{first} and {name} have agents with different options, so that one cannot take the other's state; give all "
                "members the same agent, and name the options to vary in PBT's `hyperparameters`."
            )
    name = agent_name(agent)
    for option, allowed in director.hyperparameters.items():
        _check_explored(agent, name, option, allowed)


def _check_explored(agent: Any, name: str, option: str, allowed: Range) -> None:
    known = getattr(type(agent), "explorable", ())
    if option not in known:
        raise ConfigError(
            f"PBT explores {option!r}, which {name} cannot change during a run without recompiling; it can change: "
            f"{', '.join(known) or 'none (its config names them in `explorable`)'}."
        )
    if getattr(agent, option) is None:
        raise ConfigError(
            f"PBT explores {option!r}, which is off in the agent's options (None); give it a number there, which turns it on."
        )
    for value in (allowed.low, allowed.high):
        try:
            dataclasses.replace(agent, **{option: value})
        except ConfigError as error:
            raise ConfigError(f"PBT explores {option} from {allowed.low:g} to {allowed.high:g}, but {error}") from error


def _check_scored(experiment: Experiment, director: Any) -> None:
    """Refuse a director that needs scores of games if learners cannot give them."""
    name = type(director).__name__
    if any(policy.buffer is not None for policy in experiment.policies.values() or [experiment]):
        raise ConfigError(
            f"{name} needs scores of whole games, but replay trains on windows of them; use an agent without."
        )
    for policy in experiment.policies.values() or [PolicyConfig(experiment.agent)]:
        if not getattr(type(policy.agent), "scores_rows", False):
            raise ConfigError(
                f"{name} needs scores of games, which {agent_name(policy.agent)} does not give; ppo, mappo, ippo, happo and "
                "impala do (a config of your own says so with `scores_rows = True`, see jsrl.extend.UpdateOutput)."
            )
