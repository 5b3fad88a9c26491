"""Seats of an environment: which of them one policy may play."""

from __future__ import annotations

import pytest

from jsrl.errors import ConfigError
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
