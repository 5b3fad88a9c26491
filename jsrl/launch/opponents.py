"""Whom evaluations play against: opponents are looked for before the start, and a score that says nothing is named."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path

from jsrl.directors.messages import INITIAL
from jsrl.errors import ConfigError
from jsrl.experiment import Experiment
from jsrl.matches.players import Contestant, SeatPolicy, find_sides, places_of_sides
from jsrl.runs.runs import RunFolder
from jsrl.snapshots.players import PLAYERS_FOLDER, PlayerStore
from jsrl.types import EnvSpec, GameSpec


def found_opponents(experiment: Experiment, runs_dir: str | os.PathLike[str]) -> Experiment:
    """Return an experiment whose opponents of other runs, `RUN@TAG`, are named by the paths of these runs.

    Raises:
      ConfigError: there is no such run.
    """
    names = experiment.evaluator.against
    if not any("@" in name for name in names):
        return experiment
    found = []
    for name in names:
        run, at, tag = name.rpartition("@")
        found.append(f"{RunFolder.open(run, runs_dir).path}@{tag or 'best'}" if at else name)
    return dataclasses.replace(experiment, evaluator=dataclasses.replace(experiment.evaluator, against=tuple(found)))


def check_scores(experiment: Experiment, spec: EnvSpec | GameSpec, seats: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Check that evaluations can play against the opponents of an experiment; return warnings.

    Args:
      spec: of the environment. seats: policy -> the seats that it plays: name -> place.

    Raises:
      ConfigError: an opponent cannot play, or `stop_at_return` would wait for a mean return that says nothing.
    """
    e = experiment
    if e.evaluator.against:
        _check_opponents(e, spec, seats)
        return []
    if not (isinstance(spec, GameSpec) and spec.zero_sum and e.evaluator.enabled) or e.director is not None:
        return []
    what = (
        f"{spec.name!r} is zero-sum: the mean return of policies that play each other's newest versions says nothing of how "
        "good they are"
    )
    if e.stop_at_return is not None:
        raise ConfigError(
            f"{what}, so that it is no goal. Add --evaluator.against initial: the score is then a win rate."
        )
    return [f"{what}, and the snapshot `best` is chosen by it. Add --evaluator.against initial, or have a director."]


def _check_opponents(e: Experiment, spec: EnvSpec | GameSpec, seats: Mapping[str, Mapping[str, int]]) -> None:
    if not isinstance(spec, GameSpec):
        raise ConfigError(
            f"environment {spec.name!r} has one agent and no seats, so evaluator.against has nobody to seat; leave it out."
        )
    everybody = Contestant("this run", (_of(range(len(spec.seats))),))
    for name in e.evaluator.against:
        away = _opponent(name, e, spec, seats)
        for own in seats.values():
            sides = [side for side, places in enumerate(places_of_sides(spec)) if places & set(own.values())]
            find_sides(spec, everybody, away, sides)


def _of(places: Mapping[str, int] | range) -> SeatPolicy:
    return SeatPolicy(tuple(places.values() if isinstance(places, Mapping) else places), lambda seen, is_first: seen)


def _opponent(name: str, e: Experiment, spec: GameSpec, seats: Mapping[str, Mapping[str, int]]) -> Contestant:
    """Return the opponent of a name, with all its seats, that shall not act."""
    from jsrl.contest import check_same, load_player

    if "@" in name:
        player = load_player(name)
        check_same("this run", e, player, spec)
        return Contestant(name, tuple(_of(spec_places(spec, policy.seats)) for policy in player.policies))
    policy, _, _ = name.rpartition("/")
    if policy and policy not in seats:
        raise ConfigError(f"evaluator.against names {name}, but the policies of this run are {', '.join(seats)}.")
    return Contestant(name, tuple(_of(own) for own in ([seats[policy]] if policy else seats.values())))


def spec_places(spec: GameSpec, names: tuple[str, ...]) -> dict[str, int]:
    """Return the places of seats by name."""
    return dict(zip(names, spec.index(names), strict=True))


def check_initial(experiment: Experiment, folder: Path, policy_folders: list[str]) -> None:
    """Check that a run that goes on has the player `initial`, if evaluations want it.

    Raises:
      ConfigError: it froze none.
    """
    for name in experiment.evaluator.against:
        if name.rpartition("/")[2] != INITIAL or "@" in name:
            continue
        for policy in policy_folders:
            if INITIAL not in PlayerStore(folder / PLAYERS_FOLDER / policy).names():
                raise ConfigError(
                    f"{folder.name} has no frozen player {INITIAL}: it began without --evaluator.against {INITIAL}. Name a "
                    "snapshot of another run: RUN@TAG."
                )
