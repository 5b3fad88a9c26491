"""Self-play against a pool of frozen versions: delta-uniform, and prioritised fictitious self-play (PFSP)."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from jsrl.directors.base import (
    Bookkeeping,
    State,
    check_policies,
    learning_policies,
    of_players,
    players_of,
)
from jsrl.directors.draws import Draws
from jsrl.directors.messages import LATEST, Assignment, Command, Freeze, Outcome, Player
from jsrl.directors.payoff import Payoff
from jsrl.errors import ConfigError
from jsrl.fields import NonNegativeInt, PositiveInt, UnitFloat, option, suggesting

Weighting = Literal["squared", "capped", "variance"]


def weigh(win_rates: Sequence[float], weighting: Weighting) -> list[float]:
    """Return PFSP's weights of opponents, from the win rates against them.

    squared: (1 - w)^2, prefers the hardest. capped: min(0.5, 1 - w), all that are not beaten. variance: w (1 - w), opponents
    at one's own level. If all weights are 0, because all opponents are beaten, all become 1.

    Source: Vinyals et al. (2019), Methods, "Prioritized fictitious self-play", and pfsp() of the pseudocode.
    """
    if weighting == "squared":
        weights = [(1.0 - rate) ** 2 for rate in win_rates]
    elif weighting == "capped":
        weights = [min(0.5, 1.0 - rate) for rate in win_rates]
    else:
        weights = [rate * (1.0 - rate) for rate in win_rates]
    return weights if sum(weights) > 1e-12 else [1.0] * len(weights)


def points_of(director: Any, record: State, outcome: Outcome) -> float | None:
    """Return the first player's points, None for a discarded game."""
    if outcome.discarded:
        return None
    if outcome.result is None:
        raise ConfigError(
            f"{type(director).__name__} counts wins, but assignment {outcome.assignment} ended without a result; let the "
            "environment say who won, or use a director that needs no winners (Fixed, LatestSelfPlay, Stages, PLR)"
        )
    return of_players(record, outcome.result)[0]


def end_match(payoff: Payoff, director: Any, record: State, outcome: Outcome) -> None:
    """Add the outcome of a match of two to a payoff table."""
    home, away = players_of(record)
    points = points_of(director, record, outcome)
    returns = of_players(record, outcome.returns) if outcome.returns and not outcome.discarded else (0.0, 0.0)
    payoff.end(outcome.assignment, home, away, points, returns)


@suggesting
@dataclass(frozen=True)
class PoolDirector(Bookkeeping):
    """Base of directors whose policies play against frozen versions of their rivals.

    One policy: a symmetric game; it plays its own past, from a random side. Two: policy i plays side i against the
    other's past, in turns. While nothing is frozen, the opponent is the latest version.
    An opponent that is a latest version learns as well.
    """

    # fmt: off
    policies: tuple[str, ...] = option(("main",), "One policy, or one for each of the two sides.")
    freeze_env_steps: PositiveInt = option(1_000_000, "Env steps of a policy's training games between two frozen "
        "versions.")
    latest_share: UnitFloat = option(0.0, "Share of assignments against the latest version; 0.8 as in OpenAI Five.")
    pool_size: PositiveInt = option(1_000, "Frozen versions of one policy to choose from: the newest ones.")
    live: NonNegativeInt = option(0, "Frozen versions of one policy in play at a time, so that batches are divided "
        "among few; 0: all.")
    renew_games: PositiveInt = option(100, "Games after which one of the versions in play is replaced.")
    decay: UnitFloat = option(0.99, "Weight of a game's result after each newer game of the same pair.")
    # fmt: on

    def __post_init__(self) -> None:
        check_policies(self, self.policies, at_most=2)

    @abstractmethod
    def _weights(self, payoff: Payoff, home: Player, pool: list[Player]) -> list[float]:
        """Return the relative weight of each opponent of the pool, oldest first."""

    def _start(self) -> State:
        per_policy = {"num_frozen": 0, "env_steps": 0, "live_games": 0}
        return {"payoff": {}, "pools": {policy: {**per_policy, "frozen": [], "live": []} for policy in self.policies}}

    def payoff(self, state: State) -> Payoff:
        return Payoff(state["payoff"], self.decay)

    def results(self, state: State) -> tuple[list[Player], np.ndarray, np.ndarray]:
        frozen = [Player(policy, name) for policy, pool in state["pools"].items() for name in pool["frozen"]]
        players = [*map(Player, self.policies), *frozen]
        return players, *self.payoff(state).matrices(players)

    def _next(self, state: State, draws: Draws, cache: dict[Any, Any]) -> Assignment:
        side = state["assigned"] % len(self.policies)
        home, rival = Player(self.policies[side]), self.policies[(side + 1) % len(self.policies)]
        if home not in cache:
            pool = [Player(rival, name) for name in state["pools"][rival]["frozen"]]
            cache[home] = pool, self._weights(self.payoff(state), home, pool) if pool else []
        pool, weights = cache[home]
        against_latest = not pool or (self.latest_share > 0.0 and draws.uniform() < self.latest_share)
        away = Player(rival) if against_latest else self._draw(state["pools"][rival], pool, weights, draws)
        sides = draws.permutation(2) if len(self.policies) == 1 else [side, 1 - side]
        assignment = self._assign(state, draws, (home, away), (True, away.version == LATEST), sides)
        self.payoff(state).assign(assignment.id, home, away)
        return assignment

    def _draw(self, kept: State, pool: list[Player], weights: list[float], draws: Draws) -> Player:
        """Draw an opponent: by its weight, or uniformly from the versions in play, which were drawn by their weights."""
        if not 0 < self.live < len(pool):
            return pool[draws.choose(weights)]
        live = [name for name in kept["live"] if name in kept["frozen"]]
        kept["live_games"] += 1
        if kept["live_games"] >= self.renew_games:
            kept["live_games"], live = 0, live[1:]
        while len(live) < self.live:
            left = [0.0 if player.version in live else weight for player, weight in zip(pool, weights, strict=True)]
            if sum(left) <= 0.0:
                left = [float(player.version not in live) for player in pool]
            live.append(pool[draws.choose(left)].version)
        kept["live"] = live
        name = live[draws.choose([1.0] * len(live))]
        return next(player for player in pool if player.version == name)

    def _ended(self, state: State, record: State, outcome: Outcome) -> Iterator[Command]:
        end_match(self.payoff(state), self, record, outcome)
        for policy in () if outcome.discarded else learning_policies(record):
            pool = state["pools"][policy]
            pool["env_steps"] += outcome.length
            if pool["env_steps"] >= self.freeze_env_steps:
                yield self._freeze(state, policy)

    def _freeze(self, state: State, policy: str) -> Command:
        pool = state["pools"][policy]
        pool["env_steps"] = 0
        pool["num_frozen"] += 1
        name = f"frozen-{pool['num_frozen']}"
        pool["frozen"].append(name)
        if len(pool["frozen"]) > self.pool_size:
            self.payoff(state).forget(Player(policy, pool["frozen"].pop(0)))
        return Freeze(policy, name)


@suggesting
@dataclass(frozen=True)
class DeltaUniform(PoolDirector):
    """Opponents are drawn uniformly from the newest (1 - delta) of the frozen versions.

    0 is fictitious play over checkpoints, 0.5 the newer half, 1 only the newest version. With `latest_share=0.8` and
    delta 0 it is the self-play of OpenAI Five. `LatestSelfPlay` plays against the params in training.

    Source: Bansal et al. (2018), section 4.2; OpenAI (2019), "Dota 2 with large scale deep reinforcement learning", 3.2.
    Differs: the newest version is a frozen one, not the params in training; `latest_share` adds those.
    """

    # fmt: off
    delta: UnitFloat = option(0.0, "Share of the oldest frozen versions that is left out.")
    # fmt: on

    def _weights(self, payoff: Payoff, home: Player, pool: list[Player]) -> list[float]:
        newest = max(1, math.ceil((1.0 - self.delta) * len(pool) - 1e-9))
        return [0.0] * (len(pool) - newest) + [1.0] * newest


@suggesting
@dataclass(frozen=True)
class PFSP(PoolDirector):
    """Prioritised fictitious self-play: opponents are drawn by the win rate against them.

    Source: Vinyals et al. (2019), Methods, "Prioritized fictitious self-play".
    """

    # fmt: off
    weighting: Weighting = option("squared", "squared: (1 - w)^2. capped: min(0.5, 1 - w). variance: w (1 - w). w is "
        "the win rate.")
    # fmt: on

    def _weights(self, payoff: Payoff, home: Player, pool: list[Player]) -> list[float]:
        return weigh(payoff.win_rates(home, pool), self.weighting)
