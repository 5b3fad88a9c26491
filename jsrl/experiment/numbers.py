"""Numbers that follow each other: environments, batch, actors, groups and minibatches, where the user did not set them.

The checks of an experiment say what fits; here the values nearest to the preferred ones are tried in turn.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from jsrl.errors import ConfigError, NumbersDisagree
from jsrl.experiment.settings import LearnerConfig
from jsrl.fields import AUTO, NAMES

if TYPE_CHECKING:
    from jsrl.experiment import Experiment

NUM_ENVS = 16  # where neither the user nor the experiment says how many
OPEN: dict[str, Any] = {"num_envs": AUTO, "batch_envs": None, "num_actors": AUTO, "num_groups": None}
ALL = frozenset({*(name.replace("_", "-") for name in OPEN), "agent", "policies"})  # `given` where nothing may follow
WEIGHTS = (8, 2, 1, 1)  # environments and batches decide what is learned, actors and groups only who does the work
MAX_TRIED = 24  # values of one number


def followed(experiment: Experiment, changes: Mapping[str, Any], given: Collection[str]) -> tuple[Experiment, str]:
    """Return an experiment with changes, and a line about the numbers that follow from them; empty: none had to.

    Numbers that were not given are preferences: where they exclude the changes, the nearest that fit take their place.

    Args:
      changes: field -> value. given: names of the options that were given, such as num-actors.
    """
    changed = _tried(experiment, changes)
    if changed is not None and (fits(changed) or not fits(experiment)):
        return changed, ""
    free = {name for name in OPEN if _option(name) not in given}
    for values in _candidates({**_numbers(experiment), **changes}, free, _ranks(changes.values(), experiment)):
        trial = _tried(experiment, {**changes, **values})
        found = None if trial is None else _with_minibatches(trial, given)
        if found is not None:
            return found, _line(experiment, found, given)
    if changed is None:  # what was given contradicts itself: say so without the numbers that were not given
        changes = {**{name: OPEN[name] for name in free}, **changes}
    try:
        return dataclasses.replace(experiment, **changes), ""
    except NumbersDisagree as error:
        raise ConfigError(str(error)) from None


def with_changes(experiment: Any, changes: dict[str, Any], *, follow: bool = True) -> tuple[Any, str]:
    """Return an experiment with the fields in `changes` changed, and a line about numbers that follow from them."""
    for name in changes.keys() - {f.name for f in dataclasses.fields(experiment)}:
        raise ConfigError(f"an experiment has no field {name!r}{import_module(NAMES).unknown_field(name, experiment)}")
    return followed(experiment, changes, {_option(name) for name in changes} if follow else ALL)


def fitting_envs(experiment: Experiment) -> int:
    """Return the number of environments nearest to 16 that fits an experiment's other numbers; 16: none does."""
    wanted = {name: getattr(experiment, name) for name in OPEN} | {"num_envs": NUM_ENVS}
    for values in _candidates(wanted, {"num_envs"}, experiment.learner.num_ranks):
        trial = _tried(experiment, values)
        if trial is not None and fits(trial):
            return values["num_envs"]
    return NUM_ENVS


def fits(experiment: Experiment) -> bool:
    """Return whether the minibatches of every agent divide the batch."""
    return all(_agent_fits(agent, experiment) for agent in _agents(experiment).values())


def device_columns(experiment: Experiment) -> int:
    """Return the environments in the part of a batch that one device gets."""
    return experiment.batch_columns // experiment.learner.num_ranks // (experiment.learner.num_devices or 1)


def _tried(experiment: Experiment, changes: Mapping[str, Any]) -> Experiment | None:
    """Return an experiment with changes; None: its numbers exclude each other."""
    try:
        return dataclasses.replace(experiment, **changes)
    except NumbersDisagree:
        return None


def _ranks(changes: Iterable[Any], experiment: Experiment) -> int:
    return next((part for part in changes if isinstance(part, LearnerConfig)), experiment.learner).num_ranks


def _numbers(experiment: Experiment) -> dict[str, Any]:
    return {name: getattr(experiment, name) for name in OPEN} | {"num_envs": experiment.envs}


def _option(name: str) -> str:
    return name.replace("_", "-")


def _candidates(wanted: Mapping[str, Any], free: Collection[str], ranks: int) -> Iterator[dict[str, Any]]:
    """Yield values of the free numbers that groups, actors and batches divide, nearest to the wanted ones first."""
    envs, batch, actors, groups = (wanted[name] for name in OPEN)
    fixed = [n for name, n in wanted.items() if name in ("num_actors", "num_groups") and name not in free]
    step = math.lcm(*(n for n in (ranks, *fixed) if isinstance(n, int) and n > 0))
    found: list[tuple[Any, ...]] = []
    for e in _nearest(envs, range(step, 2 * max(envs, step) + 1, step), batch) if "num_envs" in free else [envs]:
        divisors = [n for n in range(1, e + 1) if e % n == 0]
        batches = _nearest(batch, range(1, e + 1), e) if "batch_envs" in free and batch is not None else [batch]
        of_actors = divisors if "num_actors" in free and actors != AUTO else [actors]
        of_groups = [*([None] if groups is None else []), *divisors] if "num_groups" in free else [groups]
        for b, a, g in itertools.product(batches, of_actors, of_groups):
            if not g or (e % g == 0 and g % (a if isinstance(a, int) and a else 1) == 0 and (b or e) % (e // g) == 0):
                found.append((e, b, a, g))

    def distance(values: tuple[Any, ...]) -> float:
        terms = zip(values, (envs, batch, actors, groups), WEIGHTS, OPEN, strict=True)
        return sum(w * abs(math.log(n / (of or 1))) for n, of, w, name in terms if isinstance(n, int) and name in free)

    found.sort(key=distance)
    for values in found:
        yield {name: value for name, value in zip(OPEN, values, strict=True) if name in free}


def _nearest(wanted: int, numbers: Sequence[int], also: int | None = None) -> list[int]:
    """Return the numbers nearest to a wanted one, by their distance; of two, the larger first. `also`: another one."""
    found = heapq.nsmallest(MAX_TRIED, numbers, key=lambda n: (abs(n - wanted), -n))
    return [*found, *([] if also is None or also in found else [also])]


def _agents(experiment: Experiment) -> dict[str, Any]:
    """Return the agents by the names of their options."""
    policies = {f"policies.{_option(name)}.agent": policy.agent for name, policy in experiment.policies.items()}
    return policies or {"agent": experiment.agent}


def _with_agents(experiment: Experiment, agents: Mapping[str, Any]) -> Experiment:
    """Return an experiment with other agents, by the names of their options."""
    policies = {
        name: dataclasses.replace(policy, agent=agents[f"policies.{_option(name)}.agent"])
        for name, policy in experiment.policies.items()
    }
    return dataclasses.replace(experiment, policies=policies, agent=agents.get("agent"))


def _agent_fits(agent: Any, experiment: Experiment) -> bool:
    """Return whether an agent's minibatches divide a device's batch of one seat, and so that of several seats."""
    try:
        getattr(agent, "check_batch", lambda *_: None)(experiment.rollout_length, device_columns(experiment))
    except ConfigError:
        return False
    return True


def _with_minibatches(experiment: Experiment, given: Collection[str]) -> Experiment | None:
    """Return an experiment whose minibatches divide the batch: numbers that were not given follow; None: none fit."""
    agents = _agents(experiment)
    for name, agent in agents.items():
        if _agent_fits(agent, experiment):
            continue
        number: int | None = getattr(agent, "num_minibatches", None)
        if number is None or {f"{name}.num-minibatches", name.partition(".")[0]} & set(given):
            return None
        ways = (dataclasses.replace(agent, num_minibatches=n) for n in _nearest(number, range(1, 2 * number)))
        fitting = next((way for way in ways if _agent_fits(way, experiment)), None)
        if fitting is None:
            return None
        agents[name] = fitting
    return _with_agents(experiment, agents)


def _line(before: Experiment, found: Experiment, given: Collection[str]) -> str:
    """Return the options that follow from the given ones, as text."""
    values = [{_option(name): value for name, value in _numbers(e).items()} for e in (before, found)]
    for e, numbers in zip((before, found), values, strict=True):
        numbers |= {f"{n}.num-minibatches": getattr(a, "num_minibatches", None) for n, a in _agents(e).items()}
    old, new = values
    follow = [f"--{name} {value}" for name, value in new.items() if value != old[name] and name not in given]
    reasons = [f"--{name} {value}" for name, value in new.items() if name in given]
    return f"auto: {' '.join(follow)} (to fit {' '.join(reasons) or 'the other options'})"
