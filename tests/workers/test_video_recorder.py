"""The video recorder writes due videos with captions of return and version, survives a lost one, and ends with the last."""

from __future__ import annotations

import time
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from jsrl.agents.base import ActOutput, ActParams, Agent, AgentState, UpdateOutput
from jsrl.envs.base import EnvStep, Episode
from jsrl.experiment import VideoConfig
from jsrl.services.recordings.video import Captions
from jsrl.services.recordings.video_shelf import Video, VideoShelf
from jsrl.services.runs.control_bodies import Command
from jsrl.types import ArraySpec, Discrete, EnvSpec, make_version
from jsrl.workers.play import PlayedPolicy, PlayerSettings
from jsrl.workers.video_recorder.worker import VideoRecorder
from tests.decoded import decode
from tests.workers.event_recorder import EventRecorder, taken

ENV = EnvSpec(ArraySpec((2,), "float32"), Discrete(2))
LENGTH = 6


def init(key) -> AgentState:
    return AgentState(ActParams({"w": jnp.zeros(())}), (), (), (), jnp.int32(0))


def act(params, key, observation, is_first, core, *, greedy=False):
    """Play action 1 where the weight is positive and actions are greedy."""
    rows = observation.shape[0]
    action = jnp.full(rows, jnp.where(params.weights["w"] > 0, 1, 0) * greedy, jnp.int32)
    return ActOutput(action, jnp.zeros(rows)), core


def update(state, trajectory, key, *, axis_name=None):
    return state, UpdateOutput({})


AGENT = Agent(init, lambda rows: (), act, update)


class Painted:
    """An episode of LENGTH steps; reward 2 for action 1; its frames get lighter step by step."""

    spec, num_envs, fps = ENV, 1, 4.0

    def __init__(self) -> None:
        self.closed, self.drawn, self.broken = False, 0, False

    def _step(self, first: bool, reward: float, episodes: list[Episode]) -> EnvStep:
        ones = np.ones(1, np.float32)
        return EnvStep(
            np.zeros((1, 2), np.float32), np.array([first]), ones * reward, ones, ones.astype(np.uint8), episodes
        )

    def reset(self) -> EnvStep:
        self.clock, self.total = 0, 0.0
        return self._step(True, 0.0, [])

    def step(self, action) -> EnvStep:
        if self.clock == LENGTH:
            return self.reset()
        self.clock += 1
        self.total += 2.0 * action[0]
        episodes = [Episode(0, self.total, LENGTH, True)] if self.clock == LENGTH else []
        return self._step(False, 2.0 * float(action[0]), episodes)

    def picture(self) -> np.ndarray:
        self.drawn += 1
        size = 32 if self.broken and self.clock == 3 else 64
        return np.full((size, 64, 3), 30 * self.clock, np.uint8)

    def close(self) -> None:
        self.closed = True


class Params:
    newest: tuple[int, list[np.ndarray]] | None = None

    def publish(self, updates: int, weight: float = 1.0) -> None:
        self.newest = (make_version(0, updates), [np.float32(weight)])

    def poll(self, policy: int = 0):
        newest, self.newest = self.newest, None
        return newest

    def close(self) -> None: ...


class Rig:
    def __init__(self, folder: Path, **changes) -> None:
        values = {"seed": 1, "period_updates": 10, "env_steps_per_batch": 100} | changes
        self.env, self.params, self.heard = Painted(), Params(), EventRecorder()
        self.folder = folder
        settings = PlayerSettings(**taken(values, PlayerSettings))
        config = VideoConfig(**taken(values, VideoConfig))
        self.worker = VideoRecorder(
            [PlayedPolicy(AGENT, ENV, lambda: self.params, 1)],
            settings,
            config,
            lambda n, seed: self.env,
            lambda: VideoShelf(folder, 2),
            self.heard,
            **values,
        )
        self.worker.setup()

    def film(self) -> None:
        for _ in range(50):
            if not self.worker.due:
                return
            self.worker.step()
        raise AssertionError("it never ends")

    @property
    def videos(self) -> list[Video]:
        return self.worker._shelf.videos

    def frames(self, number: int = -1) -> tuple[np.ndarray, float]:
        return decode(self.folder / self.videos[number].file)


def test_the_best_video_is_that_of_the_highest_score(tmp_path):
    rig = Rig(tmp_path, scored=True)
    for updates, scored in ((0, None), (10, 0.9), (20, 0.4)):
        if scored is not None:
            rig.worker.command(Command("evaluated", {"return_mean": 0.0, "win_rate": scored, "updates": updates}))
        rig.params.publish(updates, weight=updates)
        rig.film()
    assert [(v.version_updates, v.score, v.best) for v in rig.videos] == [(10, 0.9, True), (20, 0.4, False)]


def test_videos_are_recorded_once_per_period_and_hold_the_whole_episode(tmp_path):
    rig = Rig(tmp_path)
    for updates in (0, 5, 12, 13, 25):
        rig.params.publish(updates, weight=updates)
        rig.film()
    assert [told["updates"] for told in rig.heard.named("filmed")] == [0, 12, 25]
    told = rig.heard.named("filmed")[1]
    assert told["env_steps"] == 1200
    assert told["metrics"]["video_recorder/return_mean"] == 12.0
    assert told["metrics"]["video_recorder/video_frames"] == LENGTH + 2  # the last frame is held for half a second
    assert [(v.version_updates, v.return_mean, v.best) for v in rig.videos] == [(12, 12.0, False), (25, 12.0, True)]
    frames, fps = rig.frames()
    assert (len(frames), fps) == (LENGTH + 2, 4.0)
    top = Captions(320, 2).height
    shades = frames[:, top + 20 : top + 200, 20:300].reshape(len(frames), -1).mean(1)
    assert np.abs(shades - 30 * np.array([0, 1, 2, 3, 4, 5, 6, 6])).max() < 6
    assert rig.worker.report()[0]["video_recorder/videos"] == 3
    rig.worker.close()
    assert rig.env.closed


def test_a_video_of_a_run_with_several_updates_per_env_step_has_the_number_of_its_env_steps(tmp_path):
    rig = Rig(tmp_path, env_steps_per_batch=0.25)
    rig.params.publish(12, weight=1.0)
    rig.film()
    assert rig.heard.named("filmed")[0]["env_steps"] == 3 and rig.videos[0].file.startswith("steps-000000000003-")


def test_return_and_version_are_in_the_caption(tmp_path):
    """Two videos of the same frames differ only above them, where return and version are written."""
    rig = Rig(tmp_path)
    for updates, weight in ((0, 0.0), (77, 1.0)):
        rig.params.publish(updates, weight)
        rig.film()
    (first, _), (second, _) = rig.frames(0), rig.frames(1)
    top = Captions(320, 2).height
    picture, strip = slice(top + 4, None), slice(0, top - 2)
    apart = np.abs(first.astype(int) - second.astype(int))
    assert apart[:, picture].max() < 12
    half = top // 2
    assert apart[-1, :half].max() > 80, "return 0.0 and 12.0 look the same"
    assert apart[0, half : strip.stop].max() > 80, "versions 0 and 77 look the same"
    assert apart[0, :half].max() < 40, "both start with return 0.0"
    rig.worker.close()


def test_video_length_is_bounded_and_returns_cover_full_episodes(tmp_path):
    rig = Rig(tmp_path, episodes=3, max_seconds=2.0, fps=5.0)
    drawn = rig.env.drawn
    rig.params.publish(1)
    rig.film()
    frames, fps = rig.frames()
    assert (len(frames), fps) == (10, 5.0)
    assert rig.env.drawn - drawn <= 10, "hidden values must not be drawn"
    assert rig.videos[0].return_mean == 12.0
    assert rig.heard.named("filmed")[0]["metrics"]["video_recorder/length_mean"] == LENGTH
    rig.worker.close()


def test_unwritable_video_warns_and_the_next_one_is_recorded(tmp_path):
    rig = Rig(tmp_path)
    rig.env.broken = True
    rig.params.publish(0)
    rig.film()
    (warning,) = rig.heard.named("warning")
    assert "a video was lost" in warning["text"]
    assert "(32, 64, 3)" in warning["text"]
    assert rig.worker.report()[0]["video_recorder/failed"] == 1
    assert not list(tmp_path.glob("*.mp4*"))
    rig.env.broken = False
    rig.params.publish(10)
    rig.film()
    assert [v.version_updates for v in rig.videos] == [10]
    rig.worker.close()


def test_last_params_are_recorded_at_the_end(tmp_path):
    rig = Rig(tmp_path)
    rig.params.publish(0)
    rig.film()
    rig.params.publish(3)
    rig.worker.command(Command("final"))
    assert not rig.heard.named("filmed finally")
    rig.film()
    assert len(rig.heard.named("filmed finally")) == 1
    assert [v.version_updates for v in rig.videos] == [0, 3]
    rig.worker.close()


@pytest.mark.parametrize(("last_params_s", "filmed"), [(60.0, [0, 9]), (0.0, [0, 3])])
def test_the_last_video_waits_for_the_last_params(last_params_s, filmed, tmp_path):
    rig = Rig(tmp_path, last_params_s=last_params_s)
    rig.params.publish(0)
    rig.film()
    rig.params.publish(3)
    rig.worker.command(Command("final", {"updates": {"": 9}}))
    for _ in range(20):
        rig.worker.step()
    rig.params.publish(9)
    rig.worker.step()
    rig.film()
    assert len(rig.heard.named("filmed finally")) == 1
    assert [v.version_updates for v in rig.videos] == filmed
    rig.worker.close()


def test_a_video_of_an_episode_without_an_end_is_cut(tmp_path):
    rig = Rig(tmp_path, max_steps=4)
    rig.params.publish(0)
    rig.film()
    assert "did not end within 4 steps" in rig.heard.named("warning")[0]["text"]
    assert rig.videos == [] and not list(tmp_path.glob("*.mp4*"))
    rig.params.publish(3)
    rig.worker.command(Command("final"))
    rig.film()
    assert len(rig.heard.named("filmed finally")) == 1
    rig.worker.close()


def test_videos_that_fall_behind_say_so(tmp_path):
    rig = Rig(tmp_path)
    for filmed, newest in ((0, 12), (30, 60), (60, 90)):
        rig.params.publish(filmed)
        rig.worker.due  # noqa: B018 (it takes the params)
        rig.worker._begin()
        rig.params.publish(newest)
        rig.film()
    told = [warning for warning in rig.heard.named("warning") if warning.get("once") == "behind"]
    assert len(told) == 2 and "update 30 was finished when training had made 30 more" in told[0]["text"]


def test_a_run_without_a_finished_video_says_what_gives_the_recorder_more_time(tmp_path):
    rig = Rig(tmp_path, episodes=100_000)
    rig.params.publish(10)
    assert rig.worker.due
    rig.worker.step()
    rig.worker.command(Command("final"))
    assert "--video.niceness 0" in str(rig.heard.named("warning"))
    rig.worker.close()


def test_final_video_is_not_recorded_twice(tmp_path):
    rig = Rig(tmp_path)
    rig.params.publish(4)
    rig.film()
    rig.worker.begin_final()
    assert len(rig.heard.named("filmed finally")) == 1
    assert not rig.worker.due
    assert len(rig.videos) == 1
    rig.worker.close()


def test_run_without_published_params_has_no_video(tmp_path):
    rig = Rig(tmp_path)
    rig.worker.begin_final()
    assert len(rig.heard.named("filmed finally")) == 1
    assert not rig.worker.due
    rig.worker.close()


def test_stopping_during_a_video_leaves_no_file(tmp_path):
    rig = Rig(tmp_path, episodes=100_000)
    rig.params.publish(1)
    assert rig.worker.due
    until_s = time.monotonic() + 30.0
    while (
        not list(tmp_path.glob("*.part")) and time.monotonic() < until_s
    ):  # the encoder, a separate process, creates the file
        rig.worker.step()
    assert list(tmp_path.glob("*.part"))
    rig.worker.close()
    assert not list(tmp_path.glob("*.mp4*"))
