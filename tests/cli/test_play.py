"""A policy in a window: SDL's dummy driver replaces the display, keys are real events."""

import numpy as np
import pytest

from jsrl.cli import evaluate, play
from jsrl.envs.config import EnvConfig
from jsrl.envs.rendering import make_rendered
from jsrl.services.runs.runs import RunFolder


@pytest.fixture
def pygame():
    """Import it for the tests that need it; every test process would pay for it at collection."""
    return pytest.importorskip("pygame")


class Right:
    """A policy that always pushes right and counts its resets."""

    resets, view = 0, None

    def __call__(self, observation, is_first, *, greedy, raw):
        assert greedy and raw
        return np.ones(1, np.int64)

    def reset(self):
        self.resets += 1


@pytest.fixture
def window(monkeypatch, pygame):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    made = play.Window(1e6, 16.0)
    yield made
    made.close()


def press(pygame, key):
    pygame.event.post(pygame.event.Event(pygame.KEYDOWN, key=key))


def play_cartpole(window, episodes):
    env = make_rendered(EnvConfig("CartPole-v1"), 0)
    policy = Right()
    try:
        return play.play([policy], env, window, "a", episodes, True), policy
    finally:
        env.close()


def test_a_window_shows_every_episode_and_its_return(window, monkeypatch):
    titles = []
    show = window.show
    monkeypatch.setattr(window, "show", lambda picture, title: (titles.append(title), show(picture, title)))
    returns, _ = play_cartpole(window, 2)
    assert len(returns) == 2 and all(7 < each < 13 for each in returns)
    assert "episode 1   return 0.0   step 0" in titles[0] and "episode 2" in titles[-1]
    shown = [title.split("   ")[1:4] for title in titles]  # every row, including the first and last of an episode
    assert shown == [
        [f"episode {i + 1}", f"return {k:.1f}", f"step {k}"]
        for i, each in enumerate(returns)
        for k in range(int(each) + 1)
    ]


def test_keys_pause_skip_change_the_speed_and_end(window, pygame, monkeypatch):
    shown = []
    keys = {2: pygame.K_MINUS, 3: pygame.K_SPACE, 5: pygame.K_SPACE, 6: pygame.K_n, 8: pygame.K_ESCAPE}

    def show(picture, title):
        shown.append(title)
        if len(shown) in keys:
            press(pygame, keys[len(shown)])

    monkeypatch.setattr(window, "show", show)
    returns, policy = play_cartpole(window, None)
    steps = [int(title.split("step ")[1].split()[0]) for title in shown]
    assert steps == [0, 1, 2, 2, 2, 3, 0, 1] and "paused" in shown[3]
    assert returns == [] and policy.resets == 1 and window.speed == 8.0


def test_missing_display_prints_one_sentence_and_exits_2(monkeypatch, capsys, tmp_path):
    RunFolder.create(tmp_path, "a", "some_run")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    assert evaluate.main(["some_run", "--show", "--runs-dir", str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert "there is no display" in told and told.count("\n") == 1
