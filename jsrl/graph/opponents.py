"""The opponents of evaluations: they are checked before the start, and meaningless scores are refused."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping

from jsrl.directors.messages import INITIAL
from jsrl.errors import ConfigError
from jsrl.experiment import Experiment
from jsrl.experiment.policies import opponents_of
from jsrl.matches.players import Contestant, SeatPolicy, find_sides, places_of_sides
from jsrl.services.runs.runs import RunFolder
from jsrl.tools.contest import check_same, load_player
from jsrl.types import EnvSpec, GameSpec


def found_opponents(experiment: Experiment, runs_dir: str | os.PathLike[str]) -> Experiment:
    """Return an experiment whose opponents from other runs, `RUN@TAG`, are named by these runs' paths."""

    def found(names: tuple[str, ...]) -> tuple[str, ...]:
        parts = [(name, *name.rpartition("@")) for name in names]
        return tuple(
            f"{RunFolder.open(run, runs_dir).path}@{tag or 'best'}" if at else name for name, run, at, tag in parts
        )

    evaluator = dataclasses.replace(experiment.evaluator, against=found(experiment.evaluator.against))
    policies = {
        name: dataclasses.replace(policy, against=found(policy.against)) for name, policy in experiment.policies.items()
    }
    return dataclasses.replace(experiment, evaluator=evaluator, policies=policies)


def check_scores(experiment: Experiment, spec: EnvSpec | GameSpec, seats: Mapping[str, Mapping[str, int]]) -> None:
    """Check that the score of each policy is meaningful, and that its opponents can play.

    Args:
      spec: of the environment. seats: policy -> its seats: name -> place.
    """
    for policy, own in seats.items():
        against = opponents_of(experiment, policy)
        for name in against:
            _check_opponent(name, own, experiment, spec, seats)
        if not against and isinstance(spec, GameSpec) and spec.zero_sum and experiment.evaluator.enabled:
            some = any(opponents_of(experiment, other) for other in seats)  # one option names those of all policies
            option = f"policies.{policy}.against" if some else "evaluator.against"
            raise ConfigError(
                f"{spec.name!r} is zero-sum: the mean return of policies that play each other's newest versions does not "
                f"measure how good they are, and cannot choose the snapshot `best`. Score by win rate: --{option} initial; "
                "or leave evaluations out: --evaluator.enabled false."
            )


def _check_opponent(
    name: str, own: Mapping[str, int], e: Experiment, spec: EnvSpec | GameSpec, seats: Mapping[str, Mapping[str, int]]
) -> None:
    """Refuse an opponent that cannot take a side against the policy of the seats `own`."""
    if not isinstance(spec, GameSpec):
        raise ConfigError(
            f"environment {spec.name!r} has one agent and no seats, so evaluator.against has no effect; leave it out."
        )
    everybody = Contestant("this run", (_of(range(len(spec.seats))),))
    sides = [side for side, places in enumerate(places_of_sides(spec)) if places & set(own.values())]
    find_sides(spec, everybody, _opponent(name, e, spec, seats), sides)


def _of(places: Mapping[str, int] | range) -> SeatPolicy:
    return SeatPolicy(tuple(places.values() if isinstance(places, Mapping) else places), lambda seen, is_first: seen)


def _opponent(name: str, e: Experiment, spec: GameSpec, seats: Mapping[str, Mapping[str, int]]) -> Contestant:
    """Return an opponent by name, with all its seats, that does not act."""
    if "@" in name:
        player = load_player(name)
        check_same("this run", e, player, spec)
        return Contestant(name, tuple(_of(spec_places(spec, policy.seats)) for policy in player.policies))
    policy, _, _ = name.rpartition("/")
    if policy and policy not in seats:
        raise ConfigError(f"evaluator.against names {name}, but the policies of this run are {', '.join(seats)}.")
    return Contestant(name, tuple(_of(own) for own in ([seats[policy]] if policy else seats.values())))


def spec_places(spec: GameSpec, names: tuple[str, ...]) -> dict[str, int]:
    return dict(zip(names, spec.index(names), strict=True))


def plays_initial(names: Iterable[str]) -> bool:
    """Return whether the first params of the run's policies are among these opponents."""
    return any(name.rpartition("/")[2] == INITIAL for name in names if "@" not in name)
