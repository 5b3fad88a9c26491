"""The task lock and return: rewards of a scripted agent, and its worlds."""

from __future__ import annotations

import numpy as np
import pytest

from jsrl.envs.check import check_env
from jsrl.envs.config import EnvConfig
from jsrl.envs.hide_and_seek.settings import settings_of
from jsrl.envs.make import make_game
from jsrl.errors import ConfigError
from tests.envs.hide_and_seek.scenes import EAST, act, centre, scene

pytest.importorskip("mujoco")

LOCK, EAST_AND_LOCK, WEST_AND_LOCK = (5, 5, 5, 0, 1), (8, 5, 5, 0, 1), (2, 5, 5, 0, 1)


def distance(game) -> float:
    return float(np.linalg.norm((centre(game, 0) - centre(game, 1))[:2]))


def task(*boxes):
    return scene([(2, 3, EAST)], boxes=boxes, scenario="lock_and_return", horizon=40)


def test_agent_earns_each_metre_to_the_box_its_lock_and_then_each_metre_back() -> None:
    game, locked = task((3.5, 3)), []
    for action in [EAST_AND_LOCK] * 6 + [WEST_AND_LOCK] * 4:
        to_box, to_start = distance(game), centre(game, 0)[0] - 2
        reward = float(act(game, action).reward[0, 0])
        closer = to_start - (centre(game, 0)[0] - 2) if any(locked) else to_box - distance(game)
        locked.append(bool(game.hands.locked.any()))
        assert reward == pytest.approx(0.5 * closer + 5 * (locked == [False] * (len(locked) - 1) + [True]), abs=1e-5)
    assert locked[0] is False and locked[-1] is True


def test_unlocking_costs_what_the_lock_earned_and_the_start_counts_once_every_box_is_locked() -> None:
    both, one = task((2.45, 3), (2, 4.5)), task((2.45, 3))
    assert float(act(both, LOCK).reward[0, 0]) == pytest.approx(5.0, abs=0.02)
    assert float(act(both).reward[0, 0]) == pytest.approx(-5.0, abs=0.02)  # near, and not locking it
    assert [float(act(one, LOCK).reward[0, 0]) for _ in range(3)] == pytest.approx([6.0, 1.0, 1.0], abs=0.02)


def test_worlds_have_six_rooms_and_one_agent_which_check_env_plays() -> None:
    config = EnvConfig("hide_and_seek:lock_and_return", kwargs={"horizon": 12})
    check_env(config, steps=40)
    game = make_game(config, 4, 0)
    assert game.spec.names == ("hider_0",)
    step, totals = game.reset(), np.zeros(4)
    assert step.observation["hider_0"]["mask_aa_obs_spoof"].sum() == 0
    for _ in range(12):
        step = game.step({"hider_0": np.full((4, 1, 5), (5, 5, 5, 0, 0))})
        totals += step.reward[:, 0]
    assert len(step.episodes) == 4 and np.abs(totals).max() < 0.01
    game.close()


def test_task_has_one_agent() -> None:
    with pytest.raises(ConfigError, match="n_hiders is 1 and n_seekers 1; lock_and_return is for one agent"):
        settings_of("lock_and_return", {"n_seekers": 1})
    with pytest.raises(ConfigError, match="n_seekers is 0; give 1, 2 or 3"):
        settings_of("empty", {"n_seekers": 0})
