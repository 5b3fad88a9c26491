"""Trained policies against each other: load them, play matches or a tournament, from a notebook or for `jsrl evaluate`."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from jsrl.envs.faults import refuse_endless
from jsrl.envs.make import make_game
from jsrl.errors import ConfigError
from jsrl.experiment import Experiment
from jsrl.matches.match import Match, MatchScore, Table
from jsrl.matches.players import Contestant, SeatPolicy, find_sides, places_of_sides, seatings, tables
from jsrl.matches.standings import Standings
from jsrl.services.runs.runs import RunFolder, split_tag
from jsrl.services.snapshots.players import PLAYERS_FOLDER, PlayerStore
from jsrl.tools.policy import Policy, has_rivals, load_policy, policies_in, stream_of, whole_experiment
from jsrl.types import Array, EnvSpec, GameSpec, Tree, named_leaves

STEP_S = 0.5  # seconds between reports of progress
Progress = Callable[[str, int, int], Any]


class LoadedPlayer(NamedTuple):
    """The policies of a `RUN@TAG`, and the experiment that trained the first of them."""

    name: str
    policies: tuple[Policy, ...]

    @property
    def experiment(self) -> Experiment:
        return self.policies[0].experiment


def load_player(text: str, *, runs_dir: str | os.PathLike[str] = "runs") -> LoadedPlayer:
    """Load the player that `RUN@TAG` or `RUN@POLICY/TAG` names; without a policy, all policies of the run that have the tag.

    If several policies play the same seats, the first one plays.

    Args:
      text: RUN as for `load_policy`. TAG: best (the default), latest, final, or a frozen player such as frozen-3.
    """
    run, tag = split_tag(text)
    folder, tag = RunFolder.open(run, runs_dir), tag or "best"
    run, several = os.fspath(folder.path), [] if "/" in tag else list(policies_in(folder))
    found, refusals = list[Policy](), list[ConfigError]()
    for each in [f"{name}/{tag}" for name in several] or [tag]:
        try:
            policy = load_policy(run, each, runs_dir=os.fspath(runs_dir))
            if not any(set(policy.seats) & set(other.seats) for other in found):  # of rivals for seats the first plays
                found.append(policy)
        except ConfigError as error:
            refusals.append(error)
    if not found:
        raise refusals[0]
    if any(policy.view is None for policy in found):
        raise ConfigError(
            f"{text} was trained in {found[0].spec.name!r}, which has one agent; opponents need an environment with "
            "several seats."
        )
    return LoadedPlayer(text, tuple(found))


def frozen_players(run: str | os.PathLike[str], *, runs_dir: str | os.PathLike[str] = "runs") -> list[str]:
    """Return `RUN@NAME` of all frozen players of a run, in the order of their versions, then `RUN@latest`.

    If several policies play the same seats, as in a league, these are `RUN@POLICY/NAME` and `RUN@POLICY/latest` of each; the
    latest params of the first policy are the last.
    """
    folder = RunFolder.open(run, runs_dir)
    folder.use_source()
    whole = whole_experiment(folder)
    policies, rivals = list(whole.policies), has_rivals(whole)
    versions: dict[str, int] = {}
    for number, policy in enumerate(policies or [""]):
        store = PlayerStore(folder.path / PLAYERS_FOLDER / (policy if number else ""))  # the first one has no subfolder
        for name, version in store.names().items():
            versions.setdefault(f"{policy}/{name}" if rivals else name, version)
    if not versions:
        raise ConfigError(
            f"{folder.name} has no frozen players (a director freezes them); name two or more players: --tournament A B C."
        )
    latest = [f"{policy}/latest" for policy in reversed(policies)] if rivals else ["latest"]
    return [f"{run}@{name}" for name in (*sorted(versions, key=lambda name: versions[name]), *latest)]


def located(text: str, runs_dir: str | os.PathLike[str]) -> str:
    """Return `RUN@TAG` with the path of the run: loading it may make an environment that changes the working directory."""
    run, tag = split_tag(text)
    return f"{RunFolder.open(run, runs_dir).path}@{tag or 'best'}"


class Arena:
    """An environment in which trained players meet: the evaluation environment of the first player.

    Args:
      players: `RUN@TAG`, `RUN@POLICY/TAG`, or loaded ones. num_envs: environments stepped together. seed: of
        the environments and of sampled actions.
      greedy: take the most likely actions instead of sampling.

    Attributes:
      names: of the players. spec: of the environment.

    Raises:
      ConfigError: one cannot be loaded, or was trained in another environment.
    """

    def __init__(
        self,
        players: Sequence[str | LoadedPlayer],
        *,
        runs_dir: str | os.PathLike[str] = "runs",
        num_envs: int = 20,
        seed: int = 12345,
        greedy: bool = False,
    ) -> None:
        places = [located(one, runs_dir) if isinstance(one, str) else "" for one in players]
        loaded = [
            load_player(place)._replace(name=one) if isinstance(one, str) else one
            for one, place in zip(players, places, strict=True)
        ]
        self.names = [player.name for player in loaded]
        self._num_envs, self._seed = num_envs, seed
        self._env, self._max_steps = loaded[0].experiment.evaluation_env, loaded[0].experiment.evaluator.max_steps
        game = make_game(self._env, 1, seed)
        self.spec: GameSpec = game.spec
        game.close()
        for player in loaded[1:]:
            check_same(loaded[0].name, loaded[0].experiment, player, self.spec)
        streams = range(stream_of(seed), stream_of(seed) + len(loaded))
        self._contestants = [contestant_of(*one, greedy) for one in zip(loaded, streams, strict=True)]

    def _check(self, games: Table) -> None:
        """Refuse to play on if a game seems to have no end."""
        if games.endless:
            refuse_endless(self.spec.name, self._max_steps)

    def can_play(self, home: int, away: int) -> bool:
        """Return whether two players have the seats for a match."""
        try:
            find_sides(self.spec, self._contestants[home], self._contestants[away])
        except ConfigError:
            return False
        return True

    def play(self, home: int, away: int, games: int, progress: Progress = lambda match, played, of: None) -> MatchScore:
        """Play a match of two players, by their numbers; sides are swapped where both can take them.

        Args:
          progress: called now and then with (names, games played, games).

        Raises:
          ConfigError: the two players cannot fill the seats.
        """
        one, other = self._contestants[home], self._contestants[away]
        find_sides(self.spec, one, other)
        env = make_game(self._env, min(self._num_envs, games), self._seed)
        try:
            match = Match(env, one, other, games, max_steps=self._max_steps)
            while not match.advance(STEP_S):
                self._check(match)
                progress(f"{one.name} against {other.name}", len(match.score.games), games)
            return match.score
        finally:
            env.close()

    def standings(
        self,
        games: int,
        pairs: Iterable[tuple[int, int]] | None = None,
        progress: Progress = lambda match, played, of: None,
    ) -> Standings:
        """Play a match of each pair of players (None: all pairs); return table and ratings.

        In an environment with more than two sides each game has as many players as sides, and `games` is the number of games
        of each such combination. Each pair of players meets. They change sides from game to game.

        Raises:
          ConfigError: no pair, or no combination, has the seats for a match; or pairs are given, but there are more than two
            sides.
        """
        sides = len(places_of_sides(self.spec))
        if sides > 2:
            self._check_two_sides(pairs)
            return self._of_tables(tables(len(self.names), sides), sides, games, progress)
        every = list(itertools.combinations(range(len(self.names)), 2) if pairs is None else pairs)
        possible = [pair for pair in every if self.can_play(*pair)]
        if not possible:
            find_sides(self.spec, self._contestants[every[0][0]], self._contestants[every[0][1]])
        scores = []
        for number, (home, away) in enumerate(possible):
            tell = functools.partial(_tell, progress, number, len(possible))
            scores.append(self.play(home, away, games, tell))
        return self.table(possible, scores)

    def _of_tables(self, every: Sequence[tuple[int, ...]], sides: int, games: int, progress: Progress) -> Standings:
        """Play at each table; those whose players cannot fill the sides are left out, but not all."""
        possible, refusal = list[tuple[tuple[int, ...], list[tuple[int, ...]]]](), ConfigError("")
        for players in every:
            try:
                possible.append((players, seatings(self.spec, self._seated(players), self._seed)))
            except ConfigError as error:
                refusal = error
        if not possible:
            raise refusal
        standings = Standings(self.names, sides)
        for number, (players, orders) in enumerate(possible):
            env = make_game(self._env, min(self._num_envs, games), self._seed + number)
            try:
                table = Table(env, self._seated(players), orders, games, max_steps=self._max_steps)
                while not table.advance(STEP_S):
                    self._check(table)
                    names = ", ".join(self.names[player] for player in players)
                    _tell(progress, number, len(possible), names, len(table.finished), games)
            finally:
                env.close()
            standings.add_table(players, table.finished)
        return standings

    def _seated(self, players: Sequence[int]) -> list[Contestant]:
        return [self._contestants[player] for player in players]

    def table(self, pairs: Sequence[tuple[int, int]], scores: Sequence[MatchScore]) -> Standings:
        """Return table and ratings of matches that were played, by pair.

        Raises:
          ConfigError: the game has more than two sides, so that a loss is not the other's win.
        """
        self._check_two_sides(pairs)
        standings = Standings(self.names)
        for (home, away), score in zip(pairs, scores, strict=True):
            standings.add(home, away, score)
        return standings

    def _check_two_sides(self, pairs: object) -> None:
        sides = len(places_of_sides(self.spec))
        if sides > 2 and pairs is not None:
            raise ConfigError(
                f"{self.spec.name!r} has {sides} sides, so matches of pairs give no table; call `standings` without pairs: it "
                f"plays games of {sides} players."
            )


def _tell(progress: Progress, number: int, matches: int, names: str, played: int, games: int) -> None:
    progress(f"match {number + 1} of {matches}, {names}", played, games)


def contestant_of(player: LoadedPlayer, number: int, greedy: bool) -> Contestant:
    """Return a `Contestant` of a loaded player, with recurrent states and random numbers of its own.

    Args:
      number: different for each player of a match. greedy: take the most likely actions instead of sampling.
    """
    parts = []
    for policy in player.policies:
        assert policy.view is not None
        facts = (policy.experiment, policy.spec, policy.params, policy.version, policy.meta, policy.view, policy.seats)
        own = Policy(*facts, stream=number)
        parts.append(SeatPolicy(policy.view.places, functools.partial(_act, own, greedy)))
    return Contestant(player.name, tuple(parts))


def _act(policy: Policy, greedy: bool, observation: Tree, is_first: Array) -> np.ndarray:
    return policy(observation, is_first, greedy=greedy, raw=True)


def check_same(name: str, experiment: Experiment, other: LoadedPlayer, spec: GameSpec) -> None:
    """Refuse a player that was trained in another environment.

    Args:
      name: the player or run that owns the environment. experiment: its experiment. spec: its environment.
    """
    here, there = experiment.env.id, other.experiment.env.id
    if here != there:
        raise ConfigError(
            f"{name} was trained in {here!r}, {other.name} in {there!r}; a match needs equal environments."
        )
    for policy in other.policies:
        if reason := why_unfit(policy, spec):
            raise ConfigError(
                f"{other.name} cannot play in the environment of {name}, {spec.name!r}: {reason}. Their options "
                "(env.kwargs) differ."
            )


def why_unfit(policy: Policy, spec: EnvSpec | GameSpec) -> str:
    """Return why a policy cannot play in an environment: seats, or spaces, other than in training; empty: it can."""
    own: EnvSpec | None = None
    if isinstance(spec, EnvSpec):
        own = spec if policy.view is None else None
    elif set(policy.seats) <= set(spec.names) and policy.view is not None:
        own = spec.view(policy.seats) if spec.index(policy.seats) == policy.view.places else None
    if own is None:
        there = f"the seats {', '.join(spec.names)}" if isinstance(spec, GameSpec) else "one agent"
        return f"it plays {', '.join(policy.seats) or 'alone'}, and that environment has {there}"
    before, now = (dict(named_leaves({"observation": s.observation, "action": s.action})) for s in (policy.spec, own))
    unlike = [leaf for leaf in {**before, **now} if before.get(leaf) != now.get(leaf)]
    return f"{unlike[0]} is {now.get(unlike[0])} there and {before.get(unlike[0])} in training" if unlike else ""
