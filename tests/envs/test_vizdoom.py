"""ViZDoom's screens: small, grey, stacked; the time limit truncates; nothing is written into the working folder."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest

from jsrl.envs.adapters.vizdoom import GreyScreens
from jsrl.envs.check import check_env
from jsrl.envs.config import EnvConfig
from jsrl.envs.rendering import make_rendered

SCREENS = EnvConfig(
    "VizdoomHealthGathering-v1",
    kwargs={"frame_skip": 4, "screen_resolution": "RES_160X120"},
    wrappers=("jsrl.envs.adapters.vizdoom:GreyScreens",),
)


class Doom(gymnasium.Env):
    """Shows its step number as a colour; its third step returns the given result, with a black screen."""

    observation_space = gymnasium.spaces.Dict(
        screen=gymnasium.spaces.Box(0, 255, (5, 6, 3), np.uint8),
        gamevariables=gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32),
    )
    action_space = gymnasium.spaces.Discrete(2)
    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    frame_skip = 5

    def __init__(self, truncated: bool):
        self.truncated, self.steps, self.settings = truncated, 0, ""
        self.game = SimpleNamespace(set_doom_config_path=lambda path: setattr(self, "settings", path))

    def _seen(self) -> dict[str, Any]:
        screen = np.zeros((5, 6, 3), np.uint8)
        if self.steps < 3:
            screen[::2] = 40 * (self.steps + 1)
        return {"screen": screen, "gamevariables": np.array([self.steps % 3], np.float32)}

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return self._seen(), {}

    def step(self, action):
        self.steps += 1
        return self._seen(), 1.0, self.steps == 3, self.steps == 3 and self.truncated, {}


@pytest.mark.parametrize("truncated", [False, True])
def test_screens_are_averaged_and_stacked_and_the_last_one_is_kept(truncated: bool) -> None:
    env = GreyScreens(Doom(truncated), shrink=2, frames=3)
    assert env.observation_space["screen"].shape == (2, 3, 3) and env.metadata["render_fps"] == 7.0
    seen = [env.reset()[0]]
    for _ in range(2):
        seen.append(env.step(0)[0])
    assert [[int(x) for x in each["screen"][1, 2]] for each in seen] == [[20, 20, 20], [20, 20, 40], [20, 40, 60]]
    last, _, terminated, cut, _ = env.step(0)
    np.testing.assert_array_equal(last["screen"], seen[-1]["screen"])
    assert [float(each["variables"][0]) for each in (*seen, last)] == [0, 1, 2, 2]
    assert (terminated, cut) == (not truncated, truncated)
    folder = Path(env.unwrapped.settings).parent  # type: ignore[attr-defined]
    assert folder.is_dir()
    env.close()
    assert not folder.exists()


@pytest.mark.slow
def test_health_gathering_passes_check_env(tmp_path, monkeypatch) -> None:
    pytest.importorskip("vizdoom", reason="needs the extra vizdoom")
    monkeypatch.chdir(tmp_path)  # its engine leaves an empty folder
    report = check_env(SCREENS, steps=130, num_envs=2, max_seconds=120)
    assert report.episodes > 0 and report.spec.observation["screen"].shape == (60, 80, 4)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    env = make_rendered(SCREENS, 0)
    env.reset()
    assert env.picture().shape == (120, 160, 3) and env.fps == 35 / 4
    env.close()
