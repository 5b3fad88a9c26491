"""AlphaStar's league: main players, main exploiters and league exploiters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from jsrl.directors.base import (
    Bookkeeping,
    State,
    check_policies,
    learning_policies,
    players_of,
)
from jsrl.directors.draws import Draws
from jsrl.directors.messages import LATEST, Assignment, Command, Freeze, Outcome, Player, Reset
from jsrl.directors.payoff import Payoff
from jsrl.directors.pools import end_match, weigh
from jsrl.errors import ConfigError
from jsrl.fields import PositiveInt, UnitFloat, option, suggesting


@suggesting
@dataclass(frozen=True)
class League(Bookkeeping):
    """A league of policies that all play the same symmetric game of two sides. Assignments go to them in turns.

    - Main players play all frozen players by PFSP (half of the games), check that no exploiter and no former self beats
      them (15%), and otherwise play the current main players (35%).
    - Main exploiters search for weaknesses of the current main players.
    - League exploiters search for weaknesses of the whole league.

    A policy is frozen when it beats each of its targets in more than 70% of the games, or after `max_env_steps`. A main
    exploiter then starts again from its initial params, a league exploiter does so with a probability of 25%.

    Source: Vinyals et al. (2019), Methods, "AlphaStar league", and supplementary pseudocode, classes MainPlayer,
    MainExploiter and LeagueExploiter.
    Differs: the frozen copy is taken before the reset; a reset policy forgets its win rates, and its earlier games
    are not counted; while nothing is frozen, policies play the current main players.
    """

    # fmt: off
    main: tuple[str, ...] = option(("main",), "Main players, the purpose of the league.")
    main_exploiters: tuple[str, ...] = option(("main_exploiter",), "Policies that exploit the current main players.")
    league_exploiters: tuple[str, ...] = option(("league_exploiter_1", "league_exploiter_2"), "Policies that exploit "
        "the whole league.")
    min_env_steps: PositiveInt = option(2_000_000, "Env steps of a policy's training games before it may be frozen "
        "(AlphaStar: 2e9).")
    max_env_steps: PositiveInt = option(4_000_000, "Env steps after which it is frozen in any case (AlphaStar: 4e9).")
    pfsp_share: UnitFloat = option(0.5, "Share of a main player's games against all frozen players.")
    verification_share: UnitFloat = option(0.15, "Share of a main player's games against players that it may have "
        "forgotten how to beat.")
    beaten: UnitFloat = option(0.7, "Win rate above which a target counts as beaten.")
    league_exploiter_reset: UnitFloat = option(0.25, "Probability that a league exploiter starts again when it is "
        "frozen.")
    decay: UnitFloat = option(0.99, "Weight of a game's result after each newer game of the same pair.")
    # fmt: on

    def __post_init__(self) -> None:
        check_policies(self, self.main)
        check_policies(self, self.policies)
        if self.pfsp_share + self.verification_share > 1.0:
            raise ConfigError(
                f"League has pfsp_share={self.pfsp_share} and verification_share={self.verification_share}; these are shares "
                "of the same games, so their sum must be at most 1"
            )
        if self.max_env_steps < self.min_env_steps:
            raise ConfigError(
                f"League has max_env_steps={self.max_env_steps}; it must be at least min_env_steps, {self.min_env_steps}"
            )

    @property
    def policies(self) -> tuple[str, ...]:
        return (*self.main, *self.main_exploiters, *self.league_exploiters)

    def _start(self) -> State:
        live = {policy: {"env_steps": 0, "num_frozen": 0, "life": 0} for policy in self.policies}
        return {"payoff": {}, "frozen": [], "live": live}

    def payoff(self, state: State) -> Payoff:
        return Payoff(state["payoff"], self.decay)

    def frozen(self, state: State, policies: tuple[str, ...] | None = None) -> list[Player]:
        """Return the frozen players, oldest first; of some policies, or all."""
        return [Player(*pair) for pair in state["frozen"] if policies is None or pair[0] in policies]

    def results(self, state: State) -> tuple[list[Player], np.ndarray, np.ndarray]:
        players = [*map(Player, self.policies), *self.frozen(state)]
        return players, *self.payoff(state).matrices(players)

    # -- matches -------------------------------------------------------------------------------------------------------

    def _next(self, state: State, draws: Draws, cache: dict[Any, Any]) -> Assignment:
        home = Player(self.policies[state["assigned"] % len(self.policies)])
        if home.policy in self.league_exploiters:
            away = self._by_rates(state, draws, home, self.frozen(state), "capped") or self._a_main(draws)
        elif home.policy in self.main_exploiters:
            away = self._current_or_past(state, draws, home, self._a_main(draws), 0.1)
        else:
            away = self._opponent_of_main(state, draws, home)
        learns = (True, away == home)
        life = state["live"][home.policy]["life"]
        assignment = self._assign(state, draws, (home, away), learns, draws.permutation(2), life=life)
        self.payoff(state).assign(assignment.id, home, away)
        return assignment

    def _opponent_of_main(self, state: State, draws: Draws, home: Player) -> Player:
        branch, away = draws.uniform(), None
        if branch < self.pfsp_share:
            away = self._by_rates(state, draws, home, self.frozen(state), "squared")
            if away is not None:
                return away
        target = self._a_main(draws)
        if self.pfsp_share <= branch < self.pfsp_share + self.verification_share:
            away = self._to_verify(state, draws, home, target)
        return away or self._current_or_past(state, draws, home, target, 0.3)

    def _to_verify(self, state: State, draws: Draws, home: Player, target: Player) -> Player | None:
        """Return a frozen main exploiter that beats `home`, or a former self of `target` that it no longer beats."""
        rate = self.payoff(state).win_rate
        exploiters = self.frozen(state, self.main_exploiters)
        if exploiters and min(rate(home, player) for player in exploiters) < 0.3:
            return self._by_rates(state, draws, home, exploiters, "squared")
        past = self.frozen(state, (target.policy,))
        past = without_falling_tail(past, lambda player: rate(home, player))
        if past and min(rate(home, player) for player in past) < 0.7:
            return self._by_rates(state, draws, home, past, "squared")
        return None

    def _current_or_past(self, state: State, draws: Draws, home: Player, target: Player, enough: float) -> Player:
        """Return the target, or one of its former selves while the target wins too often."""
        if self.payoff(state).win_rate(home, target) > enough:
            return target
        return self._by_rates(state, draws, home, self.frozen(state, (target.policy,)), "variance") or target

    def _by_rates(self, state: State, draws: Draws, home: Player, pool: list[Player], weighting: Any) -> Player | None:
        """Return an opponent by PFSP, None from an empty pool."""
        return pool[draws.choose(weigh(self.payoff(state).win_rates(home, pool), weighting))] if pool else None

    def _a_main(self, draws: Draws) -> Player:
        return Player(self.main[draws.below(len(self.main))])

    # -- outcomes ------------------------------------------------------------------------------------------------------

    def _ended(self, state: State, record: State, outcome: Outcome) -> Iterator[Command]:
        end_match(self.payoff(state), self, record, outcome)
        (policy,) = learning_policies(record)
        live = state["live"][policy]
        if not outcome.discarded and record["life"] == live["life"]:
            live["env_steps"] += outcome.length
            if self._is_ready(state, players_of(record)[0]):
                yield from self._freeze(state, Draws(state), policy)

    def _is_ready(self, state: State, home: Player) -> bool:
        """Return whether a policy has trained long enough, or has beaten all of its targets."""
        env_steps = state["live"][home.policy]["env_steps"]
        if env_steps < self.min_env_steps or env_steps >= self.max_env_steps:
            return env_steps >= self.max_env_steps
        exploits_main = home.policy in self.main_exploiters
        targets = [Player(policy) for policy in self.main] if exploits_main else self.frozen(state)
        rates = self.payoff(state).win_rates(home, targets)
        return bool(rates) and min(rates) > self.beaten

    def _freeze(self, state: State, draws: Draws, policy: str) -> Iterator[Command]:
        live = state["live"][policy]
        live["env_steps"] = 0
        live["num_frozen"] += 1
        name = f"frozen-{live['num_frozen']}"
        state["frozen"].append([policy, name])
        yield Freeze(policy, name)
        resets = policy in self.main_exploiters or (
            policy in self.league_exploiters and draws.uniform() < self.league_exploiter_reset
        )
        if resets:
            live["life"] += 1
            self.payoff(state).forget(Player(policy, LATEST))
            yield Reset(policy)


def without_falling_tail(players: list[Player], rate: Callable[[Player], float]) -> list[Player]:
    """Return the players, oldest first, without those at the end whose rates only fall; [] if all do.

    Newer versions are expected to be harder. An older version that is harder than a newer one was forgotten.
    Source: Vinyals et al. (2019), pseudocode, remove_monotonic_suffix.
    """
    rates = [rate(player) for player in players]
    rises = [index for index in range(1, len(rates)) if rates[index - 1] < rates[index]]
    return players[: rises[-1] + 1] if rises else []
