"""EnvPool's Procgen and football: the environment contract, rendering, and missing libraries."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest

from jsrl.envs.check import check_env
from jsrl.envs.config import EnvConfig
from jsrl.envs.make import make
from jsrl.envs.rendering import make_rendered
from jsrl.envs.rows import slot_seeds
from jsrl.errors import ConfigError, EnvironmentFault, MissingExtra

COINRUN = EnvConfig("envpool:CoinrunEasy-v0")
FOOTBALL = EnvConfig("envpool:gfootball/academy_3_vs_1_with_keeper-v1")
pytestmark = pytest.mark.skipif(not find_spec("envpool"), reason="needs the extra envpool")


@pytest.mark.slow
def test_coinrun_passes_check_env_and_renders() -> None:
    try:
        report = check_env(COINRUN, steps=150, num_envs=4, max_seconds=4)
    except MissingExtra as error:
        pytest.skip(str(error))
    assert report.spec.observation.shape == (64, 64, 3) and "start differently" in str(report)
    env = make_rendered(COINRUN, 0)
    seen = env.reset().observation[0]
    np.testing.assert_array_equal(env.picture(), seen)
    env.close()


def test_unknown_environment_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="nearest: CartPole-v1"):
        make(EnvConfig("envpool:CartPol-v1"), 2, 0)


def test_games_of_several_players_are_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"'envpool:TicTacToe-v1' has 2 players, and jsrl plays only EnvPool's .* for one"
    ):
        make(EnvConfig("envpool:TicTacToe-v1"), 2, 0)


def test_a_fault_names_the_seed_of_its_slot(monkeypatch) -> None:
    env = make(EnvConfig("envpool:CartPole-v1"), 2, 0)
    env.reset()
    step = env._env.step

    def broken(action):
        observation, *rest = step(action)
        return np.where([[False], [True]], np.float32("nan"), observation), *rest

    monkeypatch.setattr(env._env, "step", broken)
    with pytest.raises(EnvironmentFault, match=f"slot 1, .*seed {slot_seeds(0, 0, 2)[1]}"):
        env.step(np.zeros(2, np.int32))


def test_missing_system_library_is_named(monkeypatch) -> None:
    def make(*args, **kwargs):
        raise ImportError("needs the system Qt 5 runtime")

    monkeypatch.setattr("envpool.make", make)
    with pytest.raises(MissingExtra, match=r"'envpool:CoinrunEasy-v0' needs a library of the system: .*Qt 5"):
        check_env(COINRUN)


@pytest.mark.nightly
def test_football_passes_check_env_and_renders() -> None:
    report = check_env(FOOTBALL, steps=150, num_envs=2, max_seconds=60)
    assert report.episodes > 0 and report.spec.action.num_actions == 19
    env = make_rendered(FOOTBALL, 0)
    env.reset()
    picture = env.picture()
    shades = {tuple(colour) for colour in picture.reshape(-1, 3).tolist()}
    assert picture.shape == (288, 384, 3) and {(240, 220, 60), (255, 255, 255)} < shades
    env.close()


def test_football_renders_from_its_planes() -> None:
    """One plane for each side, then the ball, then the controlled player."""
    from jsrl.envs.adapters.envpool import _Football

    class Pool:
        observation_space = type("Space", (), {"shape": (72, 96, 4), "dtype": np.uint8})()
        action_space = None

        def reset(self):
            planes = np.zeros((1, 72, 96, 4), np.uint8)
            for place, plane in ((10, 0), (20, 1), (10, 3), (20, 2)):
                planes[0, 5, place, plane] = 255
            return planes, {}

    env = _Football(Pool(), 1)
    env.reset()
    picture = env.render()[0]
    assert picture.shape == (288, 384, 3) and picture[0, 0].tolist() == [40, 130, 50]
    assert picture[23, 43].tolist() == [230, 60, 60] and picture[20, 80].tolist() == [255, 255, 255]
