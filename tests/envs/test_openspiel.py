"""OpenSpiel's card and board games as rows: turns, simultaneous moves, chance, final rewards."""

from __future__ import annotations

import numpy as np
import pytest

from jsrl.envs.adapters.openspiel import SpielGame
from jsrl.envs.check import check_env
from jsrl.envs.config import EnvConfig
from jsrl.envs.make import make_game
from jsrl.errors import ConfigError, EnvironmentFault
from tests.marks import slow

pytest.importorskip("pyspiel")
PLAYERS = ("player_0", "player_1")


@pytest.mark.parametrize(
    ("name", "kwargs", "waits"),
    [
        ("kuhn_poker", {}, True),
        slow("kuhn_poker", {"players": 3}, True),
        ("leduc_poker", {"tensor": "observation"}, True),
        ("tic_tac_toe", {}, True),
        slow("goofspiel(num_cards=4,imp_info=True)", {}, False),
        ("coop_box_pushing", {"horizon": 5}, False),
        slow("hanabi", {}, True),
    ],
)
def test_passes_the_environment_contract(name: str, kwargs: dict, waits: bool) -> None:
    report = check_env(EnvConfig(f"openspiel:{name}", kwargs=kwargs), steps=60, num_envs=3)
    assert report.episodes > 0 and ("no seat waited, so that was not seen" in report.notes) is not waits
    assert len(report.spec.seats) == kwargs.get("players", 2)
    shared = name in ("coop_box_pushing", "hanabi")
    assert report.spec.zero_sum is not shared
    assert {seat.side for seat in report.spec.seats} == ({"team"} if shared else {""})


def test_games_that_draw_by_themselves_get_the_seeds_of_their_slots() -> None:
    def deals(seed: int, **kwargs) -> list:
        step = make_game(EnvConfig("openspiel:negotiation", kwargs=kwargs), 3, seed).reset()
        return step.observation["player_0"]["observation"].tolist()

    assert deals(0) == deals(0) and len({str(deal) for seed in (0, 1) for deal in deals(seed)}) == 6
    assert deals(0, rng_seed=5) == deals(1, rng_seed=5)


def test_kuhn_poker_by_hand() -> None:
    """Pass, bet, bet: the higher card wins two; pass, bet, pass: the second player wins one."""
    game = make_game(EnvConfig("openspiel:kuhn_poker"), 12, 0, groups={"all": PLAYERS})
    opened = game.reset()
    cards = opened.observation["all"]["observation"][:, :, 2:5].argmax(axis=2)
    assert len({tuple(pair) for pair in cards.tolist()}) > 2 and (cards[:, 0] != cards[:, 1]).all()
    assert opened.acts.tolist() == [[1, 0]] * 12
    last = np.arange(12) % 2  # every other slot calls at the end
    for move, acts in ((0, [0, 1]), (1, [1, 0])):
        step = game.step({"all": np.full((12, 2), move)})
        assert step.acts.tolist() == [acts] * 12 and not step.reward.any() and not step.episodes
    step = game.step({"all": np.stack([last, last], axis=1)})
    stake = np.where(last == 1, np.where(cards[:, 0] > cards[:, 1], 2.0, -2.0), -1.0)
    np.testing.assert_array_equal(step.reward, np.stack([stake, -stake], axis=1))
    assert not step.discount.any() and [episode.returns for episode in step.episodes] == list(
        zip(stake, -stake, strict=True)
    )
    assert {(episode.length, episode.terminated) for episode in step.episodes} == {(3, True)}
    again = game.step({"all": np.full((12, 2), 1)})
    assert again.is_first.all()
    dealt = again.observation["all"]["observation"][:, :, 2:5].argmax(axis=2)
    assert (dealt != cards).any()


def test_tic_tac_toe_by_hand() -> None:
    game = make_game(EnvConfig("openspiel:tic_tac_toe"), 1, 0, groups={"all": PLAYERS})
    step, rows = game.reset(), []
    for move in [0, 3, 1, 4, 2]:
        masks = step.observation["all"]["action_mask"][0]
        mover = int(step.acts[0].argmax())
        assert masks[1 - mover].all() and masks[mover].sum() == 9 - len(rows)
        step = game.step({"all": np.array([[move, move]])})
        rows.append((step.reward[0].tolist(), step.discount[0].tolist()))
    assert rows == [([0, 0], [1, 1])] * 4 + [([1, -1], [0, 0])]


def test_unsupported_games_are_refused() -> None:
    for name, kwargs, told in (
        ("kuhn_pocker", {}, "no game 'kuhn_pocker'.*kuhn_poker"),
        ("kuhn_poker", {"players": 99}, "could not load"),
        ("tic_tac_toe", {"tensor": "information"}, r"it has \['observation'\]"),
    ):
        with pytest.raises(ConfigError, match=told):
            make_game(EnvConfig(f"openspiel:{name}", kwargs=kwargs), 1, 0)
    game = make_game(EnvConfig("openspiel:tic_tac_toe"), 1, 0, groups={"all": PLAYERS})
    game.reset()
    game.step({"all": np.array([[4, 0]])})
    with pytest.raises(EnvironmentFault, match=r"given action 4 by player_1; legal are \[0, 1, 2, 3, 5, 6, 7, 8\]"):
        game.step({"all": np.array([[0, 4]])})


def test_each_step_of_a_repeated_game_has_its_own_reward() -> None:
    """Mutual defection, and one betrayal: payoffs 1 and (0, 10) of the prisoners' dilemma."""
    name = "openspiel:repeated_game(stage_game=matrix_pd(),num_repetitions=3)"
    game = make_game(EnvConfig(name, kwargs={"tensor": "observation"}), 1, 0, groups={"all": PLAYERS})
    game.reset()
    steps = [game.step({"all": np.array([moves])}) for moves in ([1, 1], [0, 1], [1, 1])]
    assert [step.reward[0].tolist() for step in steps] == [[1.0, 1.0], [0.0, 10.0], [1.0, 1.0]]
    assert [step.discount[0].tolist() for step in steps] == [[1.0, 1.0], [1.0, 1.0], [0.0, 0.0]]
    assert steps[-1].episodes[0].returns == (2.0, 12.0)


class Rolls:
    """A state of many chance nodes, at each of which 1 has a tenth of the probability."""

    def __init__(self, count: int) -> None:
        self.left, self.rolled = count, []

    def is_chance_node(self) -> bool:
        return self.left > 0

    def chance_outcomes(self) -> list[tuple[int, float]]:
        return [(0, 0.9), (1, 0.1)]

    def apply_action(self, outcome: int) -> None:
        self.left, self.rolled = self.left - 1, [*self.rolled, outcome]


def test_chance_has_the_probabilities_of_the_game() -> None:
    import pyspiel

    game = SpielGame(pyspiel, pyspiel.load_game("kuhn_poker"), "information")
    game.reset(0)
    game._state = rolls = Rolls(500)
    game._draw()
    assert len(rolls.rolled) == 500 and 25 < sum(rolls.rolled) < 75  # a standard deviation is 7
