"""Seats of an environment: which of them one policy may play."""

from __future__ import annotations

import numpy as np
import pytest

from jsrl.envs.base import EnvStep, Episode
from jsrl.envs.seats import finite_actions
from jsrl.errors import AgentFault, ConfigError
from jsrl.types import ArraySpec, Discrete, GameSpec, Seat


def seat(name: str, size: int = 3, actions: int = 2) -> Seat:
    return Seat(name, {"place": ArraySpec((size,), "float32")}, Discrete(actions))


GAME = GameSpec(
    (seat("a"), seat("b", size=4), seat("c"), seat("d", actions=5)), "game", state=ArraySpec((2,), "float32")
)


def test_equal_seats_are_stacked_in_the_given_order() -> None:
    assert GAME.index(("c", "a")) == (2, 0)
    view = GAME.view(("c", "a"))
    assert view.observation == {"place": ArraySpec((2, 3), "float32")}
    assert (view.num_agents, view.action, view.state) == (2, Discrete(2), ArraySpec((2,), "float32"))
    assert GAME.view(("b",)).num_agents == 1


@pytest.mark.parametrize(("other", "leaf"), [("b", "observation/place"), ("d", "action is")])
def test_different_seats_are_refused_with_the_differing_leaf(other: str, leaf: str) -> None:
    with pytest.raises(ConfigError, match=rf"the seats a and {other} of 'game' cannot be played by one policy: {leaf}"):
        GAME.view(("a", other))


def test_seat_names_are_unique() -> None:
    with pytest.raises(ConfigError, match=r"has the seats \['a', 'a'\]; give at least one, each with a unique name"):
        GameSpec((seat("a"), seat("a")), "game")


def test_only_actions_that_count_must_be_finite():
    """Slot 0 acts, slot 1 has ended, and in slot 2 only the first seat acts."""
    acts = np.array([[1, 1], [1, 1], [1, 0]], np.uint8)
    zeros, first = np.zeros((3, 2), np.float32), np.zeros(3, bool)
    part = EnvStep(zeros, first, zeros, zeros, acts, [Episode(1, 0.0, 1, True)])
    action = np.zeros((3, 2, 1), np.float32)
    action[1, 0] = action[2, 1] = np.nan
    assert finite_actions(action, part) is action
    action[2, 0] = -np.inf
    with pytest.raises(AgentFault, match=r"chose \[-inf\] for slot 2; expected finite actions"):
        finite_actions(action, part)
