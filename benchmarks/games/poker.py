"""Kuhn poker and Leduc poker, as `Rules` of `benchmarks.games.trees`."""

from __future__ import annotations

from itertools import permutations
from typing import NamedTuple

import numpy as np

from benchmarks.games.trees import CHANCE, END


class Kuhn:
    """Three cards, one each, an ante of 1, one bet of 1. Actions: 0 pass, 1 bet.

    A state is None before the deal, then (the two cards, actions so far). 12 information sets.
    """

    num_actions = 2
    deals = tuple(permutations(range(3), 2))

    def initial(self):
        """Return the state before the deal."""
        return None

    def player(self, state) -> int:
        """Return the player to move."""
        if state is None:
            return CHANCE
        return END if state[1] in ("pp", "pbp", "pbb", "bp", "bb") else len(state[1]) % 2

    def actions(self, state):
        """Return pass and bet, or the deals."""
        return range(len(self.deals)) if state is None else (0, 1)

    def probability(self, state, outcome: int) -> float:
        """Return the probability of a deal."""
        return 1.0 / len(self.deals)

    def step(self, state, action: int):
        """Return the state after a deal or an action."""
        return (self.deals[action], "") if state is None else (state[0], state[1] + "pb"[action])

    def value(self, state) -> float:
        """Return player 0's winnings: a bet that is passed is lost, otherwise the higher card wins 1, or 2 after bets."""
        (first, second), played = state
        if played.endswith("bp"):
            return 1.0 if len(played) == 2 else -1.0
        return (1.0 if first > second else -1.0) * (2.0 if played.endswith("bb") else 1.0)

    def information(self, state) -> str:
        """Return the player's own card and the actions so far, in OpenSpiel's notation."""
        return f"{state[0][len(state[1]) % 2]}{state[1]}"

    def observation(self, state) -> np.ndarray:
        """Return float32 [11]: player, own card, and each action, one-hot; OpenSpiel's information_state_tensor."""
        cards, played = state
        own = cards[len(played) % 2]
        bits = [len(played) % 2, 2 + own, *(5 + 2 * turn + "pb".index(letter) for turn, letter in enumerate(played))]
        return _one_hot(11, bits)


FOLD, CALL, RAISE = 0, 1, 2


class LeducState(NamedTuple):
    """A state of Leduc poker.

    Attributes:
      cards: those dealt so far: player 0's, player 1's, the public one. stakes: of both players.
      rounds: the actions of each round, as letters f, c and r.
    """

    cards: tuple[int, ...] = ()
    stakes: tuple[int, int] = (1, 1)
    rounds: tuple[str, ...] = ("",)


class Leduc:
    """Six cards of three ranks, one each and a public one; two rounds with bets of 2 and 4, at most two raises each.

    Card c has rank c // 2. Actions: 0 fold (where there is something to call), 1 call or check, 2 raise. 936 information sets.
    Source: Southey et al., "Bayes' bluff: opponent modelling in poker" (2005).
    """

    num_actions = 3

    def initial(self) -> LeducState:
        """Return the state before the deal."""
        return LeducState()

    def player(self, state: LeducState) -> int:
        """Return the player to move; player 0 opens both rounds."""
        played = state.rounds[-1]
        if played.endswith("f") or (len(state.rounds) == 2 and _is_over(played)):
            return END
        return CHANCE if len(state.cards) < 1 + len(state.rounds) else len(played) % 2

    def actions(self, state: LeducState):
        """Return the legal actions, or the remaining cards."""
        if self.player(state) == CHANCE:
            return [card for card in range(6) if card not in state.cards]
        folds = [FOLD] if state.stakes[0] != state.stakes[1] else []
        return [*folds, CALL, *([RAISE] if state.rounds[-1].count("r") < 2 else [])]

    def probability(self, state: LeducState, outcome: int) -> float:
        """Return the probability of a card."""
        return 1.0 / (6 - len(state.cards))

    def step(self, state: LeducState, action: int) -> LeducState:
        """Return the state after a card or an action."""
        if self.player(state) == CHANCE:
            return state._replace(cards=(*state.cards, action))
        mover, rounds, stakes = len(state.rounds[-1]) % 2, list(state.rounds), list(state.stakes)
        rounds[-1] += "fcr"[action]
        if action != FOLD:
            stakes[mover] = stakes[1 - mover] + (2 * len(rounds) if action == RAISE else 0)
        if len(rounds) == 1 and _is_over(rounds[0]):
            rounds.append("")
        return LeducState(state.cards, (stakes[0], stakes[1]), tuple(rounds))

    def value(self, state: LeducState) -> float:
        """Return player 0's winnings: a pair with the public card, or the higher rank, wins the other one's stake."""
        if state.rounds[-1].endswith("f"):
            folded = (len(state.rounds[-1]) - 1) % 2
            return float(-state.stakes[0] if folded == 0 else state.stakes[1])
        first, second, public = (card // 2 for card in state.cards)
        strengths = [rank + 3 * (rank == public) for rank in (first, second)]
        return (
            0.0
            if strengths[0] == strengths[1]
            else float(state.stakes[1] if strengths[0] > strengths[1] else -state.stakes[0])
        )

    def information(self, state: LeducState) -> str:
        """Return the player's own card, the public one, and the actions of each round."""
        own = state.cards[len(state.rounds[-1]) % 2]
        public = state.cards[2] if len(state.cards) > 2 else "-"
        return f"{own} {public} {'/'.join(state.rounds)}"

    def observation(self, state: LeducState) -> np.ndarray:
        """Return float32 [30]: player, own card, public card, calls and raises; OpenSpiel's information_state_tensor."""
        mover = len(state.rounds[-1]) % 2
        bits = [mover, 2 + state.cards[mover], *(8 + card for card in state.cards[2:])]
        for number, played in enumerate(state.rounds):
            bits += [14 + 8 * number + 2 * turn + "cr".index(letter) for turn, letter in enumerate(played)]
        return _one_hot(30, bits)


def _one_hot(size: int, bits: list[int]) -> np.ndarray:
    """Return float32 [size] with ones at `bits`."""
    vector = np.zeros(size, np.float32)
    vector[bits] = 1.0
    return vector


def _is_over(played: str) -> bool:
    """Return whether the actions of a round end it: all players have called."""
    return len(played) >= 2 and played.endswith("c")
