"""PSRO: best responses to a mixture of the population; each of them leads to a new mixture."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np

from jsrl.directors.base import Bookkeeping, State, check_policies, learning_policies, of_players
from jsrl.directors.draws import Draws
from jsrl.directors.messages import INITIAL, Assignment, Command, Freeze, Outcome, Player, Reset, Stop, parse_player
from jsrl.directors.payoff import Payoff
from jsrl.directors.pools import end_match
from jsrl.directors.solvers import SOLVERS
from jsrl.errors import ConfigError
from jsrl.fields import PositiveInt, Range, option, suggesting


@suggesting
@dataclass(frozen=True)
class PSRO(Bookkeeping):
    """Policy-space response oracles: train against a mixture of the population, freeze, fill the payoff table, solve.

    One policy: a symmetric game, of which it plays either side. Two: policy i plays side i, and each has its own
    population. A population starts with the initial params. Two phases alternate:

    - `train`: the latest version plays opponents drawn from the mixture of the rival's population. After
      `oracle_env_steps` of each policy all are frozen.
    - `fill`: frozen players play each other, `games_per_cell` in each new cell of the payoff table. Then the table is
      solved for new mixtures, and the next training starts.

    While the last games of a table are open, the latest version continues training.

    Source: Lanctot et al. (2017), algorithm 1.
    """

    # fmt: off
    policies: tuple[str, ...] = option(("main",), "One policy (zero-sum games only), or one for each of the two "
        "sides.")
    oracle_env_steps: PositiveInt = option(1_000_000, "Env steps of training games of each policy before it is "
        "frozen.")
    games_per_cell: PositiveInt = option(1_000, "Games of each pair of frozen players: the standard error of a win "
        "rate is 0.5 / sqrt(games), 0.016 for 1,000.")
    solver: Literal["uniform", "nash", "replicator", "alpha_rank"] = option("nash", "Meta-solver of the mixture. "
        "nash: zero-sum games only. uniform is often better while the population is small.")
    value: Literal["return", "result"] = option("return", "Values of the payoff table: mean returns, or wins (1), "
        "draws (0) and losses (-1).")
    oracle: Literal["initial", "latest"] = option("initial", "First params of each best response.")
    max_population: Annotated[int, Range(ge=2)] | None = option(None, "Number of members at which the run stops, once "
        "the table is solved; None: no limit.")
    # fmt: on

    def __post_init__(self) -> None:
        check_policies(self, self.policies, at_most=2)

    def _start(self) -> State:
        members = {policy: {"versions": [INITIAL], "mixture": [1.0], "env_steps": 0} for policy in self.policies}
        return {"phase": "train", "iteration": 0, "members": members, "payoff": {}, "missing": []}

    def payoff(self, state: State) -> Payoff:
        """Return the payoff table in a state: games of frozen players only."""
        return Payoff(state["payoff"])

    def population(self, state: State, policy: str) -> list[Player]:
        """Return the members of a policy's population, oldest first."""
        return [Player(policy, version) for version in state["members"][policy]["versions"]]

    def mixture(self, state: State, policy: str) -> list[float]:
        """Return the probability of each member; while a table is filled, new members are missing."""
        return list(state["members"][policy]["mixture"])

    def results(self, state: State) -> tuple[list[Player], np.ndarray, np.ndarray]:
        players = [player for policy in self.policies for player in self.population(state, policy)]
        return players, *self.payoff(state).matrices(players)

    # -- games ---------------------------------------------------------------------------------------------------------

    def _next(self, state: State, draws: Draws, cache: dict[Any, Any]) -> Assignment:
        for home, away in (map(parse_player, pair) for pair in state["missing"]):
            counts = self.payoff(state).counts(home, away)
            if counts["finished"] + counts["open"] < self.games_per_cell:
                return self._cell_game(state, draws, home, away, swapped=counts["assigned"] % 2 == 1)
        side = state["assigned"] % len(self.policies)
        home, rival = Player(self.policies[side]), self.policies[(side + 1) % len(self.policies)]
        members = state["members"][rival]
        away = Player(rival, members["versions"][draws.choose(members["mixture"])])
        sides = draws.permutation(2) if len(self.policies) == 1 else [side, 1 - side]
        return self._assign(state, draws, (home, away), (True, False), sides, iteration=state["iteration"])

    def _cell_game(self, state: State, draws: Draws, home: Player, away: Player, *, swapped: bool) -> Assignment:
        """Return a game of two frozen players; in symmetric games each one plays both sides in turns."""
        sides = [1, 0] if swapped and len(self.policies) == 1 else [0, 1]
        iteration = state["iteration"]
        players = (home, away)
        game = self._assign(state, draws, players, (False, False), sides, iteration=iteration)
        self.payoff(state).assign(game.id, home, away)
        return game

    # -- outcomes ------------------------------------------------------------------------------------------------------

    def _ended(self, state: State, record: State, outcome: Outcome) -> Iterator[Command]:
        trained = learning_policies(record)
        if not trained:
            if self.value == "return" and not outcome.discarded:  # winners are not needed: the higher return wins
                first, second = of_players(record, outcome.returns)
                won = tuple(0.5 + 0.5 * np.sign(gain - (first + second) / 2.0) for gain in outcome.returns)
                outcome = dataclasses.replace(outcome, result=outcome.result or tuple(map(float, won)))
            end_match(self.payoff(state), self, record, outcome)
            if self._is_filled(state):
                yield from self._solve(state)
        elif not outcome.discarded and record["iteration"] == state["iteration"] and state["phase"] == "train":
            state["members"][trained[0]]["env_steps"] += outcome.length
            if all(members["env_steps"] >= self.oracle_env_steps for members in state["members"].values()):
                yield from self._freeze(state)

    def _freeze(self, state: State) -> Iterator[Command]:
        """Freeze all policies, and list the missing cells."""
        for policy, members in state["members"].items():
            name = f"frozen-{len(members['versions'])}"
            members["versions"].append(name)
            yield Freeze(policy, name)
        first, last = (self.population(state, policy) for policy in (self.policies[0], self.policies[-1]))
        if len(self.policies) == 1:
            pairs = [(home, away) for number, away in enumerate(last) for home in first[:number]]
        else:
            pairs = [(home, away) for home in first for away in last]
        counts = [self.payoff(state).counts(*pair) for pair in pairs]
        missing = [pair for pair, count in zip(pairs, counts, strict=True) if count["finished"] < self.games_per_cell]
        state["missing"] = [list(map(str, pair)) for pair in missing]
        state["phase"] = "fill"

    def _is_filled(self, state: State) -> bool:
        """Return whether the table is complete; forget complete cells."""
        pairs = [tuple(map(parse_player, pair)) for pair in state["missing"]]
        counts = [self.payoff(state).counts(home, away) for home, away in pairs]
        left = [
            pair
            for pair, count in zip(state["missing"], counts, strict=True)
            if count["finished"] < self.games_per_cell
        ]
        state["missing"] = left
        return not left and state["phase"] == "fill"

    def _solve(self, state: State) -> Iterator[Command]:
        """Compute new mixtures and start the next training."""
        mixtures = SOLVERS[self.solver](*self.matrices(state))
        for policy, mixture in zip(self.policies, mixtures, strict=False):
            state["members"][policy] |= {"mixture": [float(share) for share in mixture], "env_steps": 0}
        state["phase"] = "train"
        state["iteration"] += 1
        size = len(state["members"][self.policies[0]]["versions"])
        if self.max_population is not None and size >= self.max_population:
            yield Stop(f"the population has {size} members")
        elif self.oracle == "initial":
            yield from (Reset(policy, INITIAL) for policy in self.policies)

    def matrices(self, state: State) -> tuple[np.ndarray, np.ndarray]:
        """Return the payoffs of the row player and of the column player, float64 [R, C] each; unplayed cells are 0."""
        first, last = (self.population(state, policy) for policy in (self.policies[0], self.policies[-1]))
        payoff, tables = self.payoff(state), np.zeros((2, len(first), len(last)))
        for i, home in enumerate(first):
            for j, away in enumerate(last):
                if self.value == "return":
                    tables[:, i, j] = payoff.mean_returns(home, away)
                else:
                    won = 2.0 * payoff.win_rate(home, away) - 1.0
                    tables[:, i, j] = won, -won
        total = np.abs(tables.sum(axis=0)).max()
        if len(self.policies) == 1 and total > 1e-6 * (1.0 + np.abs(tables).max()):
            raise ConfigError(
                f"PSRO with one policy needs a zero-sum game: a member is taken to get 0 against itself, but the returns of "
                f"a cell sum to {total:g}. Name a policy for each side, or choose value='result'"
            )
        return tables[0], tables[1]
