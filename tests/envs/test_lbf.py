"""Level-based foraging: joint actions, separate rewards, and a time limit that is not a termination."""

from __future__ import annotations

import numpy as np
import pytest

from jsrl.envs.check import check_env, random_actions
from jsrl.envs.config import EnvConfig
from jsrl.envs.make import make_game
from jsrl.errors import ConfigError

NAME = "lbf:Foraging-5x5-2p-1f-v3"


@pytest.fixture(scope="module", autouse=True)
def suite() -> None:
    """Import the package in the one test process that needs it: it registers a thousand environments."""
    pytest.importorskip("lbforaging")


@pytest.mark.slow
def test_passes_the_environment_contract() -> None:
    report = check_env(EnvConfig(NAME), steps=120, num_envs=2)
    assert [seat.name for seat in report.spec.seats] == ["agent_0", "agent_1"] and report.episodes > 0
    assert {seat.side for seat in report.spec.seats} == {"team"} and report.spec.symmetric


def test_rewards_and_endings_are_those_of_the_environment() -> None:
    game = make_game(EnvConfig(NAME), 6, 0, groups={"all": ("agent_0", "agent_1")})
    rng, step, closed, left = np.random.default_rng(0), game.reset(), [], []
    for _ in range(220):
        step = game.step(random_actions(game, step.observation, rng))
        for episode in step.episodes:
            env = game._envs[episode.slot]._env
            closed.append(episode)
            left.append(bool(env.field.any()))
            np.testing.assert_allclose(episode.returns, [player.score for player in _players(env)], atol=1e-6)
            assert (step.discount[episode.slot] == float(left[-1])).all()
    assert [episode.terminated for episode in closed] == [not food for food in left]
    assert {episode.length for episode, food in zip(closed, left, strict=True) if food} == {50}
    assert any(episode.terminated for episode in closed) and any(left)


def _players(env):
    """Its agents; `score` accumulates over the lifetime of the object, so it is read and cleared."""
    players = [type("Score", (), {"score": player.score})() for player in env.players]
    for player in env.players:
        player.score = 0
    return players


def test_assignment_of_food_does_not_depend_on_memory_addresses() -> None:
    """The second agent stands between two foods; it can lift the first one only together with the other agent."""
    kept, lifted = [], []
    for number in range(40):
        game = make_game(EnvConfig("lbf:Foraging-5x5-2p-2f-v3"), 1, 0)
        kept.append((game, [object() for _ in range(number * 7 % 13)]))
        game.reset()
        env = game._envs[0]._env
        env.field[:] = 0
        env.field[2, 3] = env.field[1, 2] = 2
        for player, position in zip(env.players, ((2, 4), (2, 2)), strict=True):
            player.position, player.level = position, 1
        env._gen_valid_moves()
        lifted.append(game.step({name: np.array([[5]]) for name in game.spec.names}).reward[0].tolist())
    assert lifted == [lifted[0]] * 40 and lifted[0][0] == lifted[0][1] > 0


def test_invalid_ids_and_options_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"registers no environment 'Foraging-8x8-2p-9f-v3'.*at most 4 foods"):
        make_game(EnvConfig("lbf:Foraging-8x8-2p-9f-v3"), 1, 0)
    with pytest.raises(ConfigError, match=r"could not be made with .*speed"):
        make_game(EnvConfig(NAME, kwargs={"speed": 3}), 1, 0)
