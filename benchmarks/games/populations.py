"""NashConv of populations of exact best responses, by mixing rule: the best result that a population can reach.

`python benchmarks/games/populations.py kuhn --sizes 3,5,7,11`
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.games.poker import Kuhn, Leduc
from benchmarks.games.trees import Tree, unfold
from jsrl.directors.solvers import SOLVERS, Mixtures

Rule = Callable[[np.ndarray], Mixtures]
"""Payoffs [K, K] of player 0 -> mixtures [K] of both players."""


def zero_sum(solver: Callable[[np.ndarray, np.ndarray], Mixtures]) -> Rule:
    """Return the rule of a solver that takes the payoffs of both players."""
    return lambda payoff: solver(payoff, -payoff)


def latest(payoff: np.ndarray) -> Mixtures:
    """Return the newest member only."""
    newest = np.eye(len(payoff))[-1]
    return newest, newest


def newest_half(payoff: np.ndarray) -> Mixtures:
    """Return the newer half of the population with equal weights: delta-uniform with delta 0.5."""
    kept = (np.arange(len(payoff)) >= len(payoff) // 2).astype(float)
    return kept / kept.sum(), kept / kept.sum()


RULES: dict[str, Rule] = {
    **{name: zero_sum(solver) for name, solver in SOLVERS.items()},
    "latest": latest,
    "newest half": newest_half,
}


def grow(tree: Tree, rule: Rule, sizes: Sequence[int]) -> dict[int, float]:
    """Return the NashConv of the mixture at each population size; members are exact best responses to the previous mixture.

    Args:
      tree: the game. rule: how members are mixed. sizes: of the populations, the uniform policy included.
    """
    members = ([tree.uniform()], [tree.uniform()])
    payoff, found = np.array([[tree.expected(tree.uniform())]]), {}
    while True:
        mixed = [
            tree.mixture(own, weights, player)
            for player, (own, weights) in enumerate(zip(members, rule(payoff), strict=True))
        ]
        profile, size = tree.profile(*mixed), len(payoff)
        if size in sizes:
            found[size] = tree.nash_conv(profile)
        if size >= max(sizes):
            return found
        for player in (0, 1):
            members[player].append(tree.best_response(profile, player)[1])
        grown = np.zeros((size + 1, size + 1))
        grown[:size, :size] = payoff
        for number in range(size + 1):
            grown[number, size] = tree.expected(tree.profile(members[0][number], members[1][size]))
            grown[size, number] = tree.expected(tree.profile(members[0][size], members[1][number]))
        payoff = grown


def main() -> int:
    """Print a table: a line for each rule, a column for each size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("game", choices=("kuhn", "leduc"))
    parser.add_argument("--sizes", default="3,5,7,11,16", help="comma-separated population sizes")
    parser.add_argument("--rules", default=",".join(RULES), help="comma-separated rules")
    words = parser.parse_args()
    sizes = [int(size) for size in words.sizes.split(",")]
    tree = unfold(Kuhn() if words.game == "kuhn" else Leduc())
    print(f"{words.game}, uniform policy: NashConv {tree.nash_conv(tree.uniform()):.4f}")
    print("rule".ljust(14), *(str(size).rjust(8) for size in sizes))
    for name in words.rules.split(","):
        found = grow(tree, RULES[name], sizes)
        print(name.ljust(14), *(f"{found[size]:8.3f}" for size in sizes), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
