"""Tic-tac-toe and connect four on small boards, exactly: the best response to a policy that is queried in batches.

A game is stored as its positions (not its histories), ply by ply: 5,478 of tic-tac-toe, 161,029 of connect four on 4 x 4.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

Policy: TypeAlias = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""(boards int8 [P, rows, columns]: 1 the mover's, -1 the other's, 0 empty; legal bool [P, A]) -> probabilities [P, A]."""
MOST_ROWS = 8_192
"""Positions per call of a policy."""


def legal_shares(logits: np.ndarray, legal: np.ndarray) -> np.ndarray:
    """Return the probabilities [P, A] of logits [P, A] over the legal actions (bool [P, A])."""
    shares = np.where(legal, np.exp(logits - np.where(legal, logits, -np.inf).max(1, keepdims=True)), 0.0)
    return shares / shares.sum(1, keepdims=True)


@dataclass(frozen=True)
class Ply:
    """Non-terminal positions after the same number of moves. P positions, A actions.

    Attributes:
      own, other: [P], squares of the player to move and of the other one, as bits. legal: bool [P, A].
      child: [P, A], the position in the next ply, -1 where the move ends the game. reward: [P, A], the mover's at an end.
    """

    own: np.ndarray
    other: np.ndarray
    legal: np.ndarray
    child: np.ndarray
    reward: np.ndarray


@dataclass(frozen=True)
class Board:
    """A board game: two players place pieces in turn; `line` own pieces in a row win, a full board is a draw.

    Attributes:
      drops: an action is a column, and pieces fall down (connect four); false: an action is a square (tic-tac-toe).
      num_positions: all reachable ones, including terminal ones. plies: the non-terminal ones.
    """

    rows: int
    columns: int
    drops: bool
    plies: tuple[Ply, ...]
    num_positions: int

    def boards(self, ply: Ply, begin: int = 0, end: int | None = None) -> np.ndarray:
        """Return positions of a ply as int8 [P, rows, columns]: 1 the mover's pieces, -1 the other's; row 0 is on top."""
        squares = np.arange(self.rows * self.columns)
        own = (ply.own[begin:end, None] >> squares) & 1
        other = (ply.other[begin:end, None] >> squares) & 1
        return (own - other).astype(np.int8).reshape(-1, self.rows, self.columns)

    def query(self, policy: Policy, ply: Ply) -> np.ndarray:
        """Return a policy's probabilities [P, A] in all positions of a ply, queried in batches.

        Raises:
          ValueError: they are not probabilities of legal actions.
        """
        parts = []
        for begin in range(0, len(ply.own), MOST_ROWS):
            legal = ply.legal[begin : begin + MOST_ROWS]
            shares = np.asarray(policy(self.boards(ply, begin, begin + MOST_ROWS), legal), np.float64)
            if shares.shape != legal.shape or shares[~legal].any() or np.abs(shares.sum(axis=1) - 1.0).max() > 1e-4:
                raise ValueError(
                    f"a policy gave {shares.shape} for {len(legal)} positions; expected probabilities {legal.shape} of legal "
                    "actions that sum to 1"
                )
            parts.append(shares)
        return np.concatenate(parts)

    def best_response_value(self, policy: Policy, player: int) -> float:
        """Return the value of the best response as `player` (0 moves first) when the other one plays `policy`."""
        return self._value([policy, policy], player, {player})

    def expected(self, first: Policy, second: Policy) -> float:
        """Return the expected value for the first player."""
        return self._value([first, second], 0, set())

    def solved_value(self) -> float:
        """Return the value for the first player under perfect play."""
        return self._value([], 0, {0, 1})

    def nash_conv(self, policy: Policy) -> float:
        """Return the total gain of both players by best responses to a policy that plays both of them.

        The policy must depend on the position only. A mixture that draws one policy per game does not: the player's
        earlier moves reveal which policy was drawn. Its NashConv is not computed here.
        """
        gained = self.best_response_value(policy, 0) + self.best_response_value(policy, 1)
        if gained < -1e-9:
            raise ArithmeticError(f"NashConv is {gained}; it cannot be negative, so the policy is not a function")
        return gained

    def _value(self, policies: list[Policy], player: int, perfect: set[int]) -> float:
        """Return the value for `player`, where the players in `perfect` play perfectly and others follow their policies."""
        after = np.zeros(0)
        for number in range(len(self.plies) - 1, -1, -1):
            ply, mover = self.plies[number], number % 2
            sign = 1.0 if mover == player else -1.0
            following = np.append(after, 0.0)[ply.child]  # index -1 is the 0 at the end
            values = np.where(ply.child < 0, sign * ply.reward, following)
            if mover in perfect:
                after = sign * np.where(ply.legal, sign * values, -np.inf).max(axis=1)
            else:
                after = (self.query(policies[mover], ply) * np.where(ply.legal, values, 0.0)).sum(axis=1)
        return float(after[0])


def uniform(boards: np.ndarray, legal: np.ndarray) -> np.ndarray:
    """Return the policy that plays legal actions uniformly."""
    return legal / legal.sum(axis=1, keepdims=True)


def tic_tac_toe() -> Board:
    """Return tic-tac-toe: 3 x 3, three in a row."""
    return unfold(3, 3, 3, drops=False)


def connect_four(rows: int = 4, columns: int = 4, line: int = 4) -> Board:
    """Return connect four, by default on 4 x 4."""
    return unfold(rows, columns, line, drops=True)


def unfold(rows: int, columns: int, line: int, *, drops: bool) -> Board:
    """Return all positions of a game, ply by ply."""
    lines, squares = _lines(rows, columns, line), rows * columns
    if squares > 31:
        raise ValueError(f"a board of {rows} x {columns} has {squares} squares; at most 31 fit")
    own, other = np.zeros(1, np.int64), np.zeros(1, np.int64)
    plies, num_positions = [], 1
    while len(own):
        bits, legal = _moves(own | other, rows, columns, drops)
        moved = own[:, None] | bits
        won = legal & (moved[..., None] & lines == lines).any(axis=-1)
        full = legal & ((moved | other[:, None]) == (1 << squares) - 1)
        goes_on = legal & ~won & ~full
        # the squares of the next mover are those of the other player now
        keys = np.where(legal, (np.broadcast_to(other[:, None], moved.shape) << 32) | moved, -1)
        num_positions += len(np.unique(keys[legal]))
        following, index = np.unique(keys[goes_on], return_inverse=True)
        child = np.full(legal.shape, -1)
        child[goes_on] = index
        plies.append(Ply(own, other, legal, child, won.astype(np.float64)))
        own, other = following >> 32, following & ((1 << 32) - 1)
    return Board(rows, columns, drops, tuple(plies), num_positions)


def _moves(taken: np.ndarray, rows: int, columns: int, drops: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return (the bit that each action sets, whether it is legal), both [P, A]."""
    if not drops:
        bits = np.broadcast_to(1 << np.arange(rows * columns), (len(taken), rows * columns))
        return bits, (taken[:, None] & bits) == 0
    bits = np.zeros((len(taken), columns), np.int64)
    for row in range(rows):  # the lowest free square: rows further down overwrite
        square = 1 << (row * columns + np.arange(columns))
        bits = np.where((taken[:, None] & square) == 0, square, bits)
    return bits, bits > 0


def _lines(rows: int, columns: int, line: int) -> np.ndarray:
    """Return the squares of every winning line, as bits."""
    found = []
    for row in range(rows):
        for column in range(columns):
            for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
                if row + down * (line - 1) < rows and 0 <= column + right * (line - 1) < columns:
                    found.append(sum(1 << ((row + down * i) * columns + column + right * i) for i in range(line)))
    return np.array(found)
