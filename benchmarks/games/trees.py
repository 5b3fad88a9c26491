"""Small zero-sum games of two players with hidden cards, exactly: values, best responses, NashConv, CFR.

The whole tree is stored as arrays in order of depth, so that a pass over it is a few NumPy calls per depth.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

CHANCE, END = -1, 2


class Rules(Protocol):
    """The rules of a game. States are hashable values."""

    num_actions: int

    def initial(self) -> Any:
        """Return the first state."""

    def player(self, state: Any) -> int:
        """Return the player to move: 0, 1, CHANCE or END."""

    def actions(self, state: Any) -> Sequence[int]:
        """Return the legal actions of the player to move, or chance's outcomes."""

    def probability(self, state: Any, outcome: int) -> float:
        """Return the probability of an outcome of chance."""

    def step(self, state: Any, action: int) -> Any:
        """Return the next state."""

    def value(self, state: Any) -> float:
        """Return player 0's payoff at the end, which player 1 pays."""

    def information(self, state: Any) -> Hashable:
        """Return the information of the player to move, with perfect recall."""

    def observation(self, state: Any) -> np.ndarray:
        """Return the same as numbers [D], for networks."""


@dataclass(frozen=True)
class Tree:
    """A game as arrays: N nodes, I information sets of both players, A actions.

    A policy is an array [I, A] of probabilities, for both players at once; rows of the player that is not queried
    are ignored. In `parent`, `owner`, `edge_set`, `edge_action` and `chance` an entry describes the edge into a node.

    Attributes:
      depths: for each depth the slice of its nodes.
      parent: [N]. owner: [N], the player of the move: 0, 1 or CHANCE. edge_set, edge_action: [N], where and which.
      chance: [N], the probability of a chance edge, else 1. value: [N], player 0's at ends, else 0.
      information: the key of each information set, in order. player: [I]. legal: bool [I, A].
      node_of_set: [I], a node of each information set. observations: float32 [I, D], network inputs of each set.
    """

    depths: tuple[slice, ...]
    parent: np.ndarray
    owner: np.ndarray
    edge_set: np.ndarray
    edge_action: np.ndarray
    chance: np.ndarray
    value: np.ndarray
    information: tuple[Hashable, ...]
    player: np.ndarray
    legal: np.ndarray
    node_of_set: np.ndarray
    observations: np.ndarray

    def uniform(self) -> np.ndarray:
        """Return the policy [I, A] that plays legal actions uniformly."""
        return self.legal / self.legal.sum(axis=1, keepdims=True)

    def query(self, policy: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> np.ndarray:
        """Return the policy [I, A] of a function of (observations [I, D], legal bool [I, A]), called once.

        Raises:
          ValueError: the result is not a set of probabilities of legal actions.
        """
        shares = np.asarray(policy(self.observations, self.legal), np.float64)
        if (
            shares.shape != self.legal.shape
            or shares[~self.legal].any()
            or np.abs(shares.sum(axis=1) - 1.0).max() > 1e-4
        ):
            raise ValueError(
                f"a policy gave {shares.shape} for {len(self.legal)} information sets; expected probabilities "
                f"{self.legal.shape} of legal actions that sum to 1"
            )
        return shares / shares.sum(axis=1, keepdims=True)

    def edges(self, policy: np.ndarray) -> np.ndarray:
        """Return the probability [N] of each edge."""
        return np.where(self.owner == CHANCE, self.chance, policy[self.edge_set, self.edge_action])

    def reach(self, edges: np.ndarray, counted: np.ndarray) -> np.ndarray:
        """Return the product [N] of the selected edges (bool [N]) on the way to each node."""
        reach = np.ones(len(self.parent))
        steps = np.where(counted, edges, 1.0)
        for nodes in self.depths[1:]:
            reach[nodes] = reach[self.parent[nodes]] * steps[nodes]
        return reach

    def values(self, edges: np.ndarray) -> np.ndarray:
        """Return player 0's expected value [N] at each node."""
        values = self.value.copy()
        for nodes in reversed(self.depths[1:]):
            np.add.at(values, self.parent[nodes], edges[nodes] * values[nodes])
        return values

    def expected(self, policy: np.ndarray) -> float:
        """Return player 0's expected payoff."""
        return float(self.values(self.edges(policy))[0])

    def best_response(self, policy: np.ndarray, player: int) -> tuple[float, np.ndarray]:
        """Return (value for `player`, pure policy [I, A]) of a best response to the other player; ties: first action."""
        edges, sign = self.edges(policy), 1.0 if player == 0 else -1.0
        weight = self.reach(edges, self.owner != player)
        values, gains = sign * self.value, np.where(self.legal, 0.0, -np.inf)
        best = np.zeros(len(self.legal), np.int64)
        for nodes in reversed(self.depths[1:]):
            parent, own = self.parent[nodes], self.owner[nodes] == player
            sets, actions = self.edge_set[nodes], self.edge_action[nodes]
            np.add.at(gains, (sets[own], actions[own]), weight[parent[own]] * values[nodes][own])
            best[sets[own]] = gains[sets[own]].argmax(axis=1)
            share = np.where(own, actions == best[sets], edges[nodes])
            np.add.at(values, parent, share * values[nodes])
        response = np.where((self.player == player)[:, None], np.eye(self.legal.shape[1])[best], policy)
        return float(values[0]), response

    def nash_conv(self, policy: np.ndarray) -> float:
        """Return the total gain of both players by best responses: 0 in an equilibrium, twice the exploitability."""
        gained = sum(self.best_response(policy, player)[0] for player in (0, 1))
        if gained < -1e-9:
            raise ArithmeticError(f"NashConv is {gained}; it cannot be negative, so the tree or the policy is wrong")
        return gained

    def mixture(self, policies: Sequence[np.ndarray], weights: Iterable[float], player: int) -> np.ndarray:
        """Return the policy [I, A] that plays like one of `policies`, drawn once per game.

        In each information set the policies are weighted by their reach probability, not by their mixture weights alone.
        """
        total, played = np.zeros((2, *self.legal.shape))
        for policy, weight in zip(policies, weights, strict=True):
            reach = self.reach(self.edges(policy), self.owner == player)[self.node_of_set]
            total += weight * reach[:, None] * policy
            played += weight * reach[:, None]
        return np.where(played > 0.0, total / np.where(played > 0.0, played, 1.0), self.uniform())

    def profile(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Return the policy [I, A] in which player 0 plays `first` and player 1 `second`."""
        return np.where((self.player == 0)[:, None], first, second)


def unfold(rules: Rules) -> Tree:
    """Return the whole tree of a game."""
    states, parent, owner, edge_set, edge_action, chance = [rules.initial()], [0], [CHANCE], [0], [0], [1.0]
    depths, value, legal, nodes_of_sets, depth_of, observations = [slice(0, 1)], [], [], [], [], []
    found: dict[tuple[int, Hashable], int] = {}
    players: list[int] = []
    begin = 0
    while begin < len(states):
        end = len(states)
        for node in range(begin, end):
            state = states[node]
            player = rules.player(state)
            value.append(rules.value(state) if player == END else 0.0)
            actions = () if player == END else rules.actions(state)
            number = 0
            if player in (0, 1):
                number = found.setdefault((player, rules.information(state)), len(found))
                if number == len(players):
                    players.append(player)
                    legal.append(np.isin(np.arange(rules.num_actions), actions))
                    nodes_of_sets.append(node)
                    observations.append(rules.observation(state))
                    depth_of.append(len(depths))
                assert depth_of[number] == len(depths), "an information set has nodes at several depths"
            for action in actions:
                states.append(rules.step(state, action))
                parent.append(node)
                owner.append(player)
                edge_set.append(number)
                edge_action.append(action if player != CHANCE else 0)
                chance.append(rules.probability(state, action) if player == CHANCE else 1.0)
        begin = end
        if len(states) > end:
            depths.append(slice(end, len(states)))
    return Tree(
        depths=tuple(depths),
        parent=np.array(parent),
        owner=np.array(owner),
        edge_set=np.array(edge_set),
        edge_action=np.array(edge_action),
        chance=np.array(chance),
        value=np.array(value),
        information=tuple(name for _, name in found),
        player=np.array(players),
        legal=np.array(legal),
        node_of_set=np.array(nodes_of_sets),
        observations=np.array(observations),
    )


def solve_by_cfr(tree: Tree, iterations: int) -> np.ndarray:
    """Return the average policy [I, A] of counterfactual regret minimisation, with players updated in turn.

    Source: Zinkevich et al., "Regret minimization in games with incomplete information" (2007), equations 7 and 8.
    """
    regrets, total = np.zeros((2, *tree.legal.shape))
    policy = tree.uniform()
    for _ in range(iterations):
        for player in (0, 1):
            edges = tree.edges(policy)
            others = tree.reach(edges, tree.owner != player)
            own = tree.reach(edges, tree.owner == player)[tree.node_of_set]
            values = (1.0 if player == 0 else -1.0) * tree.values(edges)
            mine = tree.owner == player
            mine[0] = False
            gains = others[tree.parent[mine]] * (values[mine] - values[tree.parent[mine]])
            np.add.at(regrets, (tree.edge_set[mine], tree.edge_action[mine]), gains)
            rows = (tree.player == player)[:, None]
            total += np.where(rows, own[:, None] * policy, 0.0)
            positive = np.where(tree.legal, np.maximum(regrets, 0.0), 0.0)
            sums = positive.sum(axis=1, keepdims=True)
            matched = np.where(sums > 0.0, positive / np.where(sums > 0.0, sums, 1.0), tree.uniform())
            policy = np.where(rows, matched, policy)
    sums = total.sum(axis=1, keepdims=True)
    return np.where(sums > 0.0, total / np.where(sums > 0.0, sums, 1.0), tree.uniform())
