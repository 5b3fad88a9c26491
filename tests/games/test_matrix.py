"""Games given by payoff arrays: the rewards of each joint action, and the rows of their episodes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from jsrl.envs.config import EnvConfig
from jsrl.envs.make import make_game
from jsrl.errors import ConfigError, EnvironmentFault
from jsrl.games.matrix import NAMES


def game_of(name: str, num_envs: int = 1, groups=None, **kwargs):
    return make_game(EnvConfig(f"matrix:{name}", kwargs=kwargs), num_envs, 0, groups=groups)


def joint(game, *actions):
    return {f"player_{i}": np.array([[action]] * game.num_envs) for i, action in enumerate(actions)}


def table(name: str, actions: int, **kwargs) -> np.ndarray:
    """Return [2, A, A]: the players' rewards in one round of each joint action."""
    found = np.zeros((2, actions, actions))
    for one, two in itertools.product(range(actions), repeat=2):
        game = game_of(name, **kwargs)
        game.reset()
        step = game.step(joint(game, one, two))
        found[:, one, two] = step.reward[0]
        assert step.episodes[0].terminated and (step.discount == 0).all()
    return found


def test_payoffs_of_the_named_games() -> None:
    biased = table("biased_rps", 3)
    np.testing.assert_array_equal(biased[0], -biased[1])
    nash = np.array([0.25, 0.5, 0.25])
    np.testing.assert_allclose(biased[0] @ nash, 0.0, atol=1e-12)  # no deviation gains against the equilibrium
    uniform = np.full(3, 1 / 3)
    assert (biased[0] @ uniform).max() + (biased[1].T @ uniform).max() == pytest.approx(2 / 3)  # NashConv
    assert np.abs(table("rps", 3)[0] @ uniform).max() < 1e-12
    climbing, penalty = table("climbing", 3), table("penalty", 3, k=-25)
    assert climbing.max() == climbing[1, 0, 0] == 11 and climbing.min() == -30
    assert penalty[0].tolist() == [[-25, 0, 10], [0, 2, 0], [10, 0, -25]]
    assert table("payoffs", 2, payoffs=[[[1, 2], [3, 4]], [[5, 6], [7, 8]]])[1].tolist() == [[5, 6], [7, 8]]


def test_the_two_step_game() -> None:
    returns = {}
    for first, one, two in itertools.product(range(2), repeat=3):
        game = game_of("two_step")
        opened = game.reset()
        assert opened.observation["player_0"].tolist() == [[[1, 0, 0]]] and opened.state.tolist() == [[1, 0, 0]]
        middle = game.step(joint(game, first, two))
        assert not middle.reward.any() and (middle.discount == 1).all() and not middle.episodes
        assert middle.state.argmax() == 1 + first
        returns[first, one, two] = game.step(joint(game, one, two)).episodes[0].returns
    assert {value for key, value in returns.items() if key[0] == 0} == {(7.0, 7.0)}
    assert [returns[1, one, two][0] for one, two in itertools.product(range(2), repeat=2)] == [0, 1, 1, 8]


def test_repeated_games_are_truncated_and_show_the_last_joint_action() -> None:
    game = game_of("climbing", 2, rounds=3, see_last=True, groups={"all": ("player_0", "player_1")})
    assert game.spec.symmetric is False and {seat.side for seat in game.spec.seats} == {"team"}
    step = game.reset()
    assert step.observation["all"].shape == (2, 2, 7) and step.state[0].tolist() == [1, 0, 0, 0, 0, 0, 0]
    for _ in range(3):
        step = game.step({"all": np.array([[2, 1], [0, 0]])})
        assert step.reward.tolist() == [[6, 6], [11, 11]] and (step.discount == 1).all()
        assert step.state[0].tolist() == [1, 0, 0, 1, 0, 1, 0]
    assert [(episode.length, episode.return_, episode.terminated) for episode in step.episodes] == [
        (3, 18, False),
        (3, 33, False),
    ]
    step = game.step({"all": np.array([[99, 99], [0, 0]])})  # ignored: an episode starts
    assert step.is_first.all() and not step.reward.any() and step.state[0].tolist() == [1, 0, 0, 0, 0, 0, 0]


def test_constant_sum_games_are_reported_as_zero_sum() -> None:
    assert game_of("rps").spec.zero_sum and game_of("biased_rps").spec.zero_sum
    assert not game_of("two_step").spec.zero_sum and not game_of("climbing").spec.zero_sum


def test_exchangeable_seats() -> None:
    assert game_of("rps").spec.symmetric and not game_of("two_step").spec.symmetric
    assert not game_of("payoffs", payoffs=[[[1, 2], [3, 4]], [[5, 6], [7, 8]]]).spec.symmetric
    three = game_of("payoffs", payoffs=np.arange(36).reshape(3, 2, 3, 2).tolist())
    assert [seat.action.num_actions for seat in three.spec.seats] == [2, 3, 2]
    three.reset()
    assert three.step(joint(three, 1, 2, 0)).reward.tolist() == [[10, 22, 34]]


@pytest.mark.parametrize(
    ("name", "kwargs", "told"),
    [
        ("climbin", {}, "no matrix game 'climbin'.*climbing"),
        ("climbing", {"k": 3}, "does not take k; it takes rounds, see_last"),
        ("two_step", {"rounds": 5}, "rounds=5"),
        ("payoffs", {}, r"shape \[\]; expected"),
        ("payoffs", {"payoffs": [[[1, 2], [3]]]}, r"shape \[\]; expected"),
        ("payoffs", {"payoffs": [[[1, 2], [3, 4]]]}, r"shape \[1, 2, 2\]; expected"),
        ("payoffs", {"payoffs": [[1, float("nan")], [3, 4]]}, "nan.*give finite numbers"),
    ],
)
def test_invalid_options_are_refused(name: str, kwargs: dict, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        game_of(name, **kwargs)


def test_actions_are_checked() -> None:
    game = game_of("rps")
    game.reset()
    with pytest.raises(EnvironmentFault, match=r"given action 3 for seat 'player_1'\. Expected 0 to 2"):
        game.step(joint(game, 0, 3))
    assert "payoffs" in NAMES
