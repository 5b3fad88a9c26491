"""Building the video recorder."""

from __future__ import annotations

from pathlib import Path

from jsrl.envs.rendering import RenderedEnv, make_rendered
from jsrl.recordings.video_shelf import FOLDER, VideoShelf
from jsrl.workers.base import Reporter
from jsrl.workers.jobs import Job
from jsrl.workers.kinds import make_meter
from jsrl.workers.players import common_player_settings, played_policies
from jsrl.workers.video_recorder.worker import VideoRecorder, VideoRecorderSettings

FILMED = 1  # added to the seed: films show other episodes than evaluations


def build_video_recorder(job: Job, reporter: Reporter) -> VideoRecorder:
    e = job.experiment
    settings = VideoRecorderSettings(
        episodes=e.video.episodes,
        fps=e.video.fps,
        max_seconds=e.video.max_seconds,
        niceness=None if job.in_process else e.video.niceness,
        period_updates=e.filming_period,
        scored=e.evaluator.enabled,
        last_params_s=e.deadlines.snapshot_s / 2,  # half of the time that the run waits for the last video
        **common_player_settings(job),
    )

    def make_env(num_envs: int, seed: int) -> RenderedEnv:
        return make_rendered(e.filmed_env, (seed, FILMED), job.seat_groups or None)

    def open_shelf() -> VideoShelf:
        return VideoShelf(Path(job.folder, FOLDER, job.policy_folder), e.video.keep_newest)

    return VideoRecorder(played_policies(job), settings, make_env, open_shelf, reporter, make_meter(job))
