"""Videos show the trained environment: the same observations with frames; otherwise a refusal with the reason."""

from __future__ import annotations

import re

import gymnasium
import numpy as np
import pytest

from jsrl.control.status_writer import frames_per_step
from jsrl.envs import rendering
from jsrl.envs.config import AtariConfig, EnvConfig
from jsrl.envs.make import import_modules, make
from jsrl.envs.rendering import check_rendered, make_rendered
from jsrl.errors import ConfigError, EnvironmentFault, MissingExtra
from jsrl.extras import install_command
from tests.marks import nightly


class Painted(gymnasium.Env):
    """Renders its clock as a grey value."""

    observation_space = gymnasium.spaces.Box(0.0, 100.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 7}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None):
        self.render_mode, self.clock = render_mode, 0

    def reset(self, *, seed=None, options=None):
        self.clock = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.clock += 1
        return np.array([self.clock], np.float32), 1.0, self.clock >= 5, False, {}

    def render(self):
        return np.full((6, 8, 3), self.clock, np.uint8) if self.render_mode == "rgb_array" else None


class NoRenderMode(Painted):
    """Does not accept render_mode."""

    def __init__(self):
        super().__init__()


HERE = f"{__name__}:"


def test_user_class_renders_at_its_own_frame_rate():
    env = make_rendered(EnvConfig(HERE + "Painted"), 0)
    env.reset()
    assert env.fps == 7
    shades = []
    for _ in range(7):
        env.step(np.zeros(1, np.int32))
        shades.append(int(env.picture()[0, 0, 0]))
    assert shades == [1, 2, 3, 4, 5, 0, 1], "the last observation of an episode is rendered, then the first of the next"
    env.close()


def test_an_id_that_a_module_registers_is_made_and_drawn():
    config = EnvConfig("tests.envs.registering:tests/Registered-v0")
    import_modules(config)
    env = make(config, 2, 0)
    assert env.spec.observation.shape == make(EnvConfig(HERE + "Painted"), 2, 0).spec.observation.shape
    drawn = make_rendered(config, 0)
    drawn.reset()
    assert drawn.picture().dtype == np.uint8
    drawn.close()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "tests.envs.registering:tests/Registred-v0",
            "registered as 'tests/Registred-v0'; nearest: tests/Registered-v0",
        ),
        ("tests.envs.registring:tests/Registered-v0", "no module 'registring'; nearest: registering"),
        ("Unheard-of-v0", "an id that a module registers as module:ID"),
    ],
)
def test_an_id_that_no_module_registers_is_refused(name, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        make(EnvConfig(name), 1, 0)


@pytest.mark.slow
def test_pool_renders_the_playing_environment():
    pytest.importorskip("envpool")
    config = EnvConfig("envpool:CartPole-v1")
    played, shown = make(config, 1, 3), make_rendered(config, 3)
    np.testing.assert_array_equal(played.reset().observation, shown.reset().observation)
    before = shown.picture().copy()
    for _ in range(5):
        steps = [env.step(np.ones(1, np.int32)) for env in (played, shown)]
        np.testing.assert_array_equal(*(step.observation for step in steps))
    assert before.shape == (400, 600, 3) and (shown.picture() != before).any()
    played.close()
    shown.close()


def test_environment_that_renders_nothing_is_refused():
    env = make_rendered(EnvConfig(HERE + "NoRenderMode"), 0)
    env.reset()
    with pytest.raises(ConfigError, match=r"shows NoneType; expected a picture"):
        env.picture()
    env.close()


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("probe:memory", "nothing to show"),
        ("openspiel:hanabi", "draw no pictures"),
        ("gymnax:CartPole-v1", "environments in JAX draw no pictures"),
    ],
)
def test_environments_that_cannot_render_are_refused_at_once(name, why):
    with pytest.raises(ConfigError, match=why) as caught:
        check_rendered(EnvConfig(name))
    assert "video.enabled" in str(caught.value)


def test_a_missing_renderer_names_the_extra(monkeypatch):
    monkeypatch.setattr("jsrl.extras.find_spec", lambda name: None)
    for name, extra in (("CartPole-v1", "video"), ("HalfCheetah-v5", "mujoco")):
        with pytest.raises(MissingExtra) as caught:
            check_rendered(EnvConfig(name))
        assert str(caught.value).endswith(install_command(extra))


def test_renderer_missing_at_render_time_names_the_extra():
    class Lacking:
        spec, num_envs = None, 1

        def render(self, slot):
            raise gymnasium.error.DependencyNotInstalled("pygame is not installed")

    env = rendering.RenderedEnv(Lacking(), EnvConfig("CartPole-v1"), 30.0)  # type: ignore[arg-type]
    with pytest.raises(MissingExtra, match=re.escape(install_command("video"))):
        env.picture()


def test_opengl_failure_names_the_variable_to_set(monkeypatch):
    class Lacking:
        spec, num_envs = None, 1

        def render(self, slot):
            raise RuntimeError("no context")

    monkeypatch.setenv("MUJOCO_GL", "egl")
    env = rendering.RenderedEnv(Lacking(), EnvConfig("HalfCheetah-v5"), 30.0)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"no context.*MUJOCO_GL='egl'.*libosmesa6"):
        env.picture()


@pytest.mark.slow
def test_cartpole_renders_from_the_single_environment():
    """Its vectorised implementation can render too, but is seeded as a whole; the dynamics are the same."""
    config = EnvConfig("CartPole-v1")
    filmed = make_rendered(config, (3, 1))
    plain = make(EnvConfig("CartPole-v1", backend="sync"), 1, (3, 1))
    np.testing.assert_array_equal(filmed.reset().observation, plain.reset().observation)
    assert filmed.fps == 50
    before = filmed.picture()
    for step in range(30):
        action = np.array([step % 2], np.int32)
        one, two = filmed.step(action), plain.step(action)
        np.testing.assert_array_equal(one.observation, two.observation)
        np.testing.assert_array_equal(one.is_first, two.is_first)
    assert before.shape == (400, 600, 3)
    assert (before != filmed.picture()).any()
    filmed.close()
    plain.close()


@pytest.mark.slow
@pytest.mark.parametrize("sticky", [nightly(0.0), 0.25])
def test_atari_renders_in_colour_while_the_policy_sees_training_frames(sticky):
    atari = AtariConfig(repeat_action_probability=sticky)
    config = EnvConfig("ALE/Breakout-v5", atari=atari, max_episode_steps=150)
    filmed, plain = make_rendered(config, 5), make(config, 1, 5)
    rng = np.random.default_rng(0)
    np.testing.assert_array_equal(filmed.reset().observation, plain.reset().observation)
    seen, episodes = set(), 0
    for _ in range(400):
        action = rng.integers(0, 4, 1).astype(np.int32)
        one, two = filmed.step(action), plain.step(action)
        np.testing.assert_array_equal(one.observation, two.observation)
        assert (one.reward, one.is_first, one.discount) == (two.reward, two.is_first, two.discount)
        assert [e.return_ for e in one.episodes] == [e.return_ for e in two.episodes]
        episodes += len(one.episodes)
        picture = filmed.picture()
        seen.add(picture.tobytes())
    assert episodes >= 2
    assert picture.shape == (210, 160, 3)
    assert (picture[..., 0] != picture[..., 2]).any(), "grey"
    assert len(seen) > 100
    assert filmed.fps == 15
    # the policy's newest frame is the screen in grey and small
    grey = picture.astype(float) @ np.array([0.299, 0.587, 0.114])
    small = np.asarray(one.observation)[0, :, :, -1]
    assert np.corrcoef(grey[1::5, 1::4][:42, :40].ravel(), _small(small, 42, 40).ravel())[0, 1] > 0.8
    filmed.close()
    plain.close()


def _small(frame: np.ndarray, height: int, width: int) -> np.ndarray:
    rows = np.linspace(0, frame.shape[0] - 1, height).round().astype(int)
    columns = np.linspace(0, frame.shape[1] - 1, width).round().astype(int)
    return frame[rows][:, columns].astype(float)


@pytest.mark.slow
def test_atari_games_are_the_same_with_the_module_that_registers_them():
    pytest.importorskip("ale_py")
    plain, named = EnvConfig("ALE/Breakout-v5"), EnvConfig("ale_py:ALE/Breakout-v5")
    filmed, trained = make_rendered(named, 5), make(plain, 1, 5)
    np.testing.assert_array_equal(filmed.reset().observation, trained.reset().observation)
    assert filmed.fps == 15 and filmed.picture().shape == (210, 160, 3)
    assert frames_per_step(named) == frames_per_step(plain) == 4
    filmed.close()
    trained.close()


def test_diverging_emulators_raise():
    class Console:
        def __init__(self, reward: float):
            self.ale, self.reward = None, reward

        def step(self, action):
            flags = np.zeros(1, bool)
            return np.zeros((1, 1, 210, 160, 3), np.uint8), np.array([self.reward]), flags, flags, {}

    with pytest.raises(EnvironmentFault, match="diverged"):
        rendering._TwoConsoles(Console(1.0), Console(0.0), "ALE/Pong-v5").step(np.zeros(1, np.int64))


@pytest.mark.slow
def test_mujoco_renders_or_names_what_is_missing():
    """Without OpenGL the error names what to install; frames are never made up."""
    try:
        env = make_rendered(EnvConfig("InvertedPendulum-v5"), 0)
        env.reset()
        picture = env.picture()
    except ConfigError as error:
        assert "MUJOCO_GL" in str(error)
        return
    assert picture.shape == (480, 480, 3)
    assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 20
    env.close()
