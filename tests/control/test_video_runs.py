"""Runs with a video recorder: refused before the start, planned, recorded in one process, and never ended by it."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from jsrl.cli.plan import describe
from jsrl.control.run import run
from jsrl.envs.config import EnvConfig
from jsrl.errors import ConfigError, MissingExtra
from jsrl.experiment import EvaluatorConfig, Experiment, VideoConfig
from jsrl.extras import install_command
from jsrl.graph.devices import process_environment
from jsrl.graph.plan import make_plan
from jsrl.services.recordings.video_shelf import read_index
from jsrl.services.runs.runs import Run, RunFolder
from jsrl.workers.video_recorder.worker import VideoRecorder
from tests.decoded import decode
from tests.marks import nightly
from tests.tiny_agent import STILL


def experiment(**changes) -> Experiment:
    values = {
        "agent": STILL,
        "env": EnvConfig("CartPole-v1", max_episode_steps=20),
        "num_envs": 8,
        "rollout_length": 16,
        "total_env_steps": 512,
        "placement": "serial",
        "evaluator": EvaluatorConfig(enabled=False),
        "video": VideoConfig(enabled=True, period_env_steps=128, keep_newest=2),
    }
    return Experiment(**(values | changes))


def test_the_plan_has_a_recorder_with_one_thread_and_no_gpu(tmp_path):
    e = experiment(placement="served", evaluator=EvaluatorConfig())
    plan = make_plan(e, str(tmp_path), tmp_path)
    assert [job.kind for job in plan.jobs] == ["learner", "inference", "actor", "evaluator", "video-recorder"]
    text = describe(plan, [])
    assert "video-recorder" in text
    assert "learner -> inference, evaluator, video-recorder params" in text
    variables = process_environment(plan, plan.jobs[-1], ["0"])
    assert (variables["CUDA_VISIBLE_DEVICES"], variables["OMP_NUM_THREADS"]) == ("", "1")
    assert "video-recorder" not in describe(make_plan(experiment(video=VideoConfig()), str(tmp_path), tmp_path), [])


def test_periods_and_environment():
    e = experiment(video=VideoConfig(enabled=True, env={"max_episode_steps": 7}), total_env_steps=12_800)
    assert e.filming_period == 10  # a tenth of the total, in updates of 128
    assert (e.filmed_env.max_episode_steps, e.evaluation_env.max_episode_steps) == (7, 20)


def test_an_unknown_option_of_the_filmed_environment_is_refused():
    message = "video.env has no option 'max_episode_step'; did you mean max_episode_steps"
    with pytest.raises(ConfigError, match=message):
        experiment(video=VideoConfig(enabled=True, env={"max_episode_step": 3}))


def test_missing_extras_and_non_rendering_environments_are_refused_before_the_start(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="nothing to show"):
        run(experiment(env=EnvConfig("probe:memory")), runs_dir=tmp_path, display="quiet")
    monkeypatch.setattr("jsrl.extras.find_spec", lambda name: None if name == "pygame" else object())
    with pytest.raises(MissingExtra, match=re.escape(install_command("video"))):
        run(experiment(), runs_dir=tmp_path, display="quiet")
    monkeypatch.setattr("jsrl.extras.find_spec", lambda name: None if name in ("imageio_ffmpeg", "PIL") else object())
    with pytest.raises(MissingExtra, match="imageio_ffmpeg and PIL"):
        make_plan(experiment(), str(tmp_path), tmp_path)


class VideoSink:
    """A sink that records videos."""

    def __init__(self):
        self.paths = []

    def write(self, row):
        pass

    def video(self, path):
        self.paths.append(path)


@pytest.mark.slow
def test_serial_run_records_videos_and_the_report_shows_them(tmp_path):
    films = VideoSink()
    result = run(experiment(), runs_dir=tmp_path, display="quiet", sinks=[films])
    assert films.paths[-1].is_file() and films.paths[-1].parent == result.folder / "videos"
    assert len(films.paths) >= 4
    videos = json.loads((result.folder / "videos" / "videos.json").read_text())["videos"]
    assert result.ended == "total_env_steps"
    assert videos[-1]["version_updates"] == result.updates == 4, "the last params are recorded"
    assert videos[-1]["env_steps"] == result.env_steps == 512
    assert sum(one["best"] for one in videos) == 1
    assert {path.name for path in (result.folder / "videos").glob("*.mp4")} == {one["file"] for one in videos}
    frames, fps = decode(result.folder / "videos" / videos[-1]["file"])
    assert (len(frames), fps) == (videos[-1]["frames"], 50.0)
    assert len(frames) == videos[-1]["return_mean"] + 25  # one frame per step, the last one held for half a second
    assert frames.shape[1:] == (videos[-1]["height"], videos[-1]["width"], 3)
    page = (result.folder / "report.html").read_text()
    assert all(f'<video controls preload="metadata" src="videos/{one["file"]}"' in page for one in videos)
    columns = Run(RunFolder.open(result.folder)).metrics
    filmed = columns["video_recorder/version_updates"]
    assert filmed[np.isfinite(filmed)].tolist() == [1, 2, 3, 4] or filmed[np.isfinite(filmed)].tolist() == [
        0,
        1,
        2,
        3,
        4,
    ]
    resumed = run(experiment(total_env_steps=640), runs_dir=tmp_path, resume=str(result.folder), display="quiet")
    known = read_index(resumed.folder / "videos")
    assert [one.version_updates for one in known[-2:]] == [4, 5], "a resumed run continues its list of videos"


@pytest.mark.slow
@pytest.mark.parametrize(
    "where",
    ["setup", nightly("_begin"), *(nightly(w) for w in ("begin_final", "close"))],
)
def test_failing_recorder_does_not_end_a_serial_run(tmp_path, monkeypatch, where):
    def fail(self, *_):
        raise RuntimeError("the screen fell down")

    monkeypatch.setattr(VideoRecorder, where, fail)
    result = run(experiment(), runs_dir=tmp_path, display="quiet")
    assert (result.ended, result.updates) == ("total_env_steps", 4)
    log = (result.folder / "logs" / "controller.log").read_text()
    assert "the screen fell down" in log
    assert "the run continues without the video recorder" in log
    assert np.nansum(Run(RunFolder.open(result.folder)).metrics["video_recorder/lost"]) >= 1


@pytest.mark.nightly
def test_recording_does_not_change_training(tmp_path):
    """A serial run is deterministic; with a video recorder it makes the same updates, bit for bit."""
    with_recorder = run(experiment(), runs_dir=tmp_path / "a", display="quiet")
    without = run(experiment(video=VideoConfig()), runs_dir=tmp_path / "b", display="quiet")
    for one, other in zip(_leaves(with_recorder.params), _leaves(without.params), strict=True):
        np.testing.assert_array_equal(one, other)


def _leaves(tree):
    import jax

    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]
