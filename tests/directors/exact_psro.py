"""A full PSRO run with exact best responses and payoffs: no games are sampled and no policies trained."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from jsrl.directors.messages import INITIAL, Freeze, Outcome, Player, Stop
from jsrl.directors.psro import PSRO

OTHER_STEPS = 7  # env steps of a training game


def run_psro(
    director: PSRO,
    initial: dict[str, Any],
    respond: Callable[[str, list[Any], list[float]], Any],
    play: Callable[[list[Any]], tuple[float, float]],
    *,
    seed: int = 0,
    at_once: int = 3,
) -> tuple[dict[int, dict[str, tuple[list[Any], list[float]]]], list[Any]]:
    """Run a director until it stops.

    Args:
      initial: policy -> strategy. respond: (policy, opponent's strategies, mixture) -> best response.
      play: strategies by side -> returns by side. at_once: games that are proposed together.

    Returns:
      (population size -> policy -> (strategies, mixture)), and all commands.
    """
    state = director.init(seed)
    strategies = {Player(policy, INITIAL): strategy for policy, strategy in initial.items()}
    solved: dict[int, Any] = {}
    commands: list[Any] = []

    def mixtures() -> dict[str, tuple[list[Any], list[float]]]:
        return {
            policy: (
                [strategies[member] for member in director.population(state, policy)],
                director.mixture(state, policy),
            )
            for policy in director.policies
        }

    current = mixtures()
    while not any(isinstance(command, Stop) for command in commands):
        state, games = director.propose(json.loads(json.dumps(state)), at_once)
        for game in reversed(games):
            by_side = dict(zip(game.sides, game.players, strict=True))
            if any(game.learns):
                outcome = Outcome(game.id, OTHER_STEPS, (0.0, 0.0))
            else:
                outcome = Outcome(game.id, 1, play([strategies[by_side[side]] for side in (0, 1)]))
            state, given = director.report(state, [outcome])
            for command in given:
                if isinstance(command, Freeze):
                    rival = (
                        director.policies[1 - director.policies.index(command.policy)]
                        if len(initial) > 1
                        else command.policy
                    )
                    strategies[Player(command.policy, command.name)] = respond(command.policy, *current[rival])
            commands += given
            if given and state["phase"] == "train":
                current = mixtures()
                solved[len(current[director.policies[0]][0])] = current
    return solved, commands
