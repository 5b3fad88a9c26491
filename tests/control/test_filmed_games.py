"""Videos of games: all seats are visible, and captions name the players and returns."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from jsrl.cli import play
from jsrl.cli.record import record_policy
from jsrl.control.run import run
from jsrl.envs.base import Episode, GameStep
from jsrl.envs.config import EnvConfig
from jsrl.envs.rendering import Returns, make_rendered
from jsrl.envs.seats import SeatView
from jsrl.errors import ConfigError
from jsrl.experiment import EvaluatorConfig, Experiment, PolicyConfig, VideoConfig
from jsrl.graph.plan import make_plan
from jsrl.services.recordings.recordings import open_recording, read_chunk
from jsrl.services.recordings.video_shelf import captions
from jsrl.tools.policy import load_players
from jsrl.types import ArraySpec, Discrete, EnvSpec, GameSpec, Seat
from jsrl.workers.video_recorder import worker
from tests.decoded import decode
from tests.duel import Duel, MarkedConfig

ROLES = {"left_one": PolicyConfig(MarkedConfig(), "left"), "right_one": PolicyConfig(MarkedConfig(), "right")}


class Painted(Duel):
    """The duel; its grey value is the number of remaining steps."""

    metadata = {"render_fps": 4}  # noqa: RUF012

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def render(self):
        assert self.render_mode == "rgb_array"
        return np.full((64, 64, 3), 25 * self.left, np.uint8)


PAINTED = Experiment(
    env=EnvConfig("tests.control.test_filmed_games:Painted"),
    name="painted",
    policies=ROLES,
    num_envs=4,
    rollout_length=8,
    total_env_steps=4 * 32,
    placement="serial",
    evaluator=EvaluatorConfig(enabled=False),
    video=VideoConfig(enabled=True, period_env_steps=64, keep_newest=2),
)


def step_of(reward, is_first=False, returns=()):
    episodes = [Episode(0, float(np.mean(returns)), 3, True, returns=returns)] if returns else []
    reward = np.array([reward], np.float32)
    return GameStep({}, np.array([is_first]), reward, reward, reward, (), episodes)


def test_returns_are_reported_per_policy_or_side():
    def game(*sides):
        return GameSpec(tuple(Seat(f"s_{i}", ArraySpec((1,), "f4"), Discrete(2), side) for i, side in enumerate(sides)))

    two = [("a", SeatView("a", (0, 2))), ("b", SeatView("b", (1,)))]
    one = [("a", SeatView("a", (0, 1, 2)))]
    told = {
        "a 2.0   b 5.0": Returns(game("", "", ""), two),
        "red 2.0   s_1 5.0": Returns(game("red", "", "red"), one),
        "return 3.0": Returns(game("red", "red", "red"), one),
    }
    for text, returns in told.items():
        returns.see(step_of([7, 7, 7], is_first=True))
        returns.see(step_of([1, 2, 1]))
        returns.see(step_of([0, 3, 2]))
        assert str(returns) == text
    (returns, *_) = told.values()
    returns.see(step_of([0, 0, 0], returns=(1.0, -1.0, 3.0)))
    assert str(returns) == "a 2.0   b -1.0"
    single = Returns(EnvSpec(ArraySpec((1,), "f4"), Discrete(2)), [("", None)])
    single.see(step_of(4.0))
    assert str(single) == "return 4.0"


@pytest.mark.slow
def test_run_of_two_policies_records_both_with_names(tmp_path, monkeypatch):
    lines = []
    add = worker.VideoWriter.add
    monkeypatch.setattr(worker.VideoWriter, "add", lambda own, seen, text: (lines.append(text), add(own, seen, text)))
    result = run(PAINTED, runs_dir=tmp_path, name="one", display="quiet")
    videos = json.loads((result.folder / "videos" / "videos.json").read_text())["videos"]
    assert videos[-1]["players"] == "left_one, right_one" and videos[-1]["version_updates"] == 4
    assert not (result.folder / "videos" / "right_one").exists(), "one video shows all"
    frames, fps = decode(result.folder / "videos" / videos[-1]["file"])
    assert fps == 4.0 and len(frames) == videos[-1]["frames"] >= 3
    assert lines[-1][1].startswith("versions left_one 4, right_one 4   ")
    steps = (len(frames) - 2) * 4.0
    assert lines[-1][0] == f"left_one {steps:.1f}   right_one {steps:.1f}   step {len(frames) - 2}"
    (caption, *_) = captions(result.folder).values()
    assert "return of left_one" in caption and "left_one, right_one · version" in caption
    check_a_window(result.folder, monkeypatch)
    check_recordings(result.folder, tmp_path)


def check_recordings(run_folder, tmp_path):
    """The rows of one policy's seats, while the other plays along: left earned its actions, right has its own rows."""
    for tag, name in (("latest", "left"), ("right_one/latest", "right")):
        folder = tmp_path / name
        recorded = record_policy(run_folder, folder, tag=tag, episodes=6, num_envs=2, rollout_length=8)
        assert recorded.episodes >= 6
        recording = open_recording(folder)
        assert len(recording.chunks) >= 1
        for chunk in recording.chunks:  # leaves [C, T+1, B, ...]
            action, reward, first = read_chunk(recording, chunk, ["action", "reward", "is_first"])
            assert action.shape[-2:] == (1, 1) and (action[:, :-1] == 4.0).all()
            assert (reward[:, :-1][~first[:, 1:]] == 4.0).all() and not reward[:, :-1][first[:, 1:]].any()


def check_a_window(folder, monkeypatch):
    pytest.importorskip("pygame")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    policies = load_players(folder, "latest")
    env = make_rendered(PAINTED.env, 0, {policy.view.group: policy.seats for policy in policies})
    window, titles = play.Window(1e6, 16.0), []
    monkeypatch.setattr(window, "show", lambda picture, title: titles.append(title))
    try:
        assert len(play.play(policies, env, window, "one@latest", 2, True)) == 2
    finally:
        window.close()
        env.close()
    assert "left_one 0.0   right_one 0.0   step 0" in titles[0] and "left_one 4.0   right_one 4.0   step 1" in titles[1]


def test_one_recorder_has_the_params_of_all_policies(tmp_path):
    plan = make_plan(dataclasses.replace(PAINTED, placement="inline", num_actors=1), str(tmp_path), tmp_path)
    (filming,) = [job for job in plan.jobs if job.kind == "video-recorder"]
    assert [part.policy for part in filming.by_policy] == ["left_one", "right_one"]


@pytest.mark.parametrize("scheme", ["particle:simple_spread_v3", "matrix:rps"])
def test_games_that_cannot_render_are_refused_before_the_start(scheme, tmp_path):
    e = dataclasses.replace(PAINTED, env=EnvConfig(scheme), policies={}, agent=MarkedConfig())
    with pytest.raises(ConfigError, match="draw no pictures"):
        make_plan(e, str(tmp_path), tmp_path)
    with pytest.raises(ConfigError, match="expected a picture"):
        make_rendered(EnvConfig("tests.duel:Duel"), 0).picture()
