"""The video recorder: films episodes of the newest params, and keeps the best video and the newest ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jsrl.envs.base import EnvStep, GameStep
from jsrl.envs.config import EnvConfig
from jsrl.envs.rendering import RenderedEnv, Returns, check_rendered, make_rendered
from jsrl.errors import VideoError
from jsrl.experiment import VideoConfig
from jsrl.intervals import score_of
from jsrl.services.metrics.metrics import Meter
from jsrl.services.metrics.phases import Phases
from jsrl.services.recordings.video import VideoWriter, require_video
from jsrl.services.recordings.video_shelf import Video, VideoShelf
from jsrl.services.runs.control_bodies import Command
from jsrl.services.runs.runs import VIDEOS
from jsrl.types import version_updates
from jsrl.workers.base import Reporter
from jsrl.workers.jobs import Job
from jsrl.workers.kinds import make_meter
from jsrl.workers.play import Play, PlayedPolicy, Player, PlayerSettings, played_policies, player_settings

HELD_S = 0.5  # how long the last picture of an episode is shown
BEHIND = 2  # periods of training during one video, from which on the user is told
TOO_SLOW = (
    "no video was finished while the run trained, so only the last params are filmed; --video.niceness 0 gives the video "
    "recorder more time on a busy machine, and a smaller --video.max-seconds makes videos shorter"
)


class OpenVideo:
    """One video in the making: receives every step of an environment, until the video has its full length.

    Args:
      version: the caption's second line: whose episodes these are. max_frames: pictures at most.
      returns: of the filmed policies.
    """

    def __init__(
        self,
        env: RenderedEnv,
        writer: VideoWriter,
        version: str,
        episodes: int,
        max_frames: int,
        phases: Phases,
        returns: Returns,
    ) -> None:
        self._env, self.writer, self._version, self._phases = env, writer, version, phases
        self._episodes, self._max_frames, self._returns = episodes, max_frames, returns
        self._episode, self._length = 1, 0

    def see(self, step: EnvStep | GameStep) -> None:
        """Add the picture after a step (or reset), with the returns and the length so far."""
        self._returns.see(step)
        self._length = 0 if step.is_first[0] else self._length + 1
        ended = step.episodes[0] if step.episodes else None
        if ended is not None:
            self._length = ended.length
        if self.writer.frames < self._max_frames:
            self._add(max(1, round(HELD_S * self.writer.fps)) if ended else 1)
        if ended is not None:
            self._episode += 1

    def _add(self, times: int) -> None:
        self._phases.enter("render")
        picture = self._env.picture()
        self._phases.enter("encode")
        number = f"episode {self._episode} of {self._episodes}   " if self._episodes > 1 else ""
        progress = f"{number}{self._returns}   step {self._length:,}"
        for _ in range(min(times, self._max_frames - self.writer.frames)):
            self.writer.add(picture, (progress, self._version))


class VideoRecorder(Player[RenderedEnv]):
    """A worker that films.

    Args:
      policies: that play. make_env: (1, seed) -> environment that renders pictures.
      open_shelf: () -> the run's videos. scored: evaluations score the policy; else the return of a video is its score.
    """

    def __init__(
        self,
        policies: Sequence[PlayedPolicy],
        settings: PlayerSettings,
        config: VideoConfig,
        make_env: Callable[[int, int], RenderedEnv],
        open_shelf: Callable[[], VideoShelf],
        reporter: Reporter,
        meter: Meter | None = None,
        *,
        scored: bool = False,
    ) -> None:
        super().__init__(settings.name or "video-recorder", policies, settings, make_env, reporter, meter)
        self._config, self._open_shelf, self._scored = config, open_shelf, scored
        self._film: OpenVideo | None = None
        self._path = Path()
        self._filmed_version: int | None = None
        self._score: float | None = None  # of the newest evaluation
        self._waits = False  # for the params of the last video

    def setup(self) -> None:
        require_video()
        self._shelf = self._open_shelf()
        self._set_up_player(1)
        env = self._env(1, 1)
        self._reporter.stage("drawing a first picture")
        with self._watched():
            env.reset()
            env.picture()  # rendering errors show before anything is filmed

    def _begin(self) -> None:
        assert self._params is not None
        self._begin_period()
        config, env = self._config, self._env(1, 1)
        updates = version_updates(self._params[0])
        env_steps = self._env_steps(updates)
        self._path = self._shelf.path(env_steps, updates)
        writer = VideoWriter(self._path, config.fps or env.fps)
        version = f"{self._whose(updates)}   {env_steps:,} env steps"
        max_frames = max(1, round(config.max_seconds * writer.fps))
        returns = Returns(env.spec, [(player.name, player.view) for player in self._players])
        self._film = OpenVideo(env, writer, version, config.episodes, max_frames, self._phases, returns)
        self._play = Play(self._seated(True, 1), env, config.episodes, camera=self._film.see, **self._options())

    def _whose(self, updates: int) -> str:
        """Return which versions play."""
        if len(self._players) == 1:
            return f"version {updates:,}"
        versions = [(player.name, player.params) for player in self._players]
        return "versions " + ", ".join(
            f"{name} {version_updates(params[0]):,}" for name, params in versions if params is not None
        )

    def _complete(self) -> None:
        assert self._play is not None and self._film is not None
        score, writer = self._play.score, self._film.writer
        self._phases.enter("encode")
        writer.finish()
        facts = score.facts()
        updates = version_updates(score.version)
        env_steps = self._env_steps(updates)
        width, height = writer.size
        episodes = self._config.episodes
        video = Video(
            self._path.name,
            updates,
            env_steps,
            facts["return_mean"],
            episodes,
            writer.frames,
            writer.fps,
            width,
            height,
            players=", ".join(player.name for player in self._players) if len(self._players) > 1 else "",
            score=self._score if self._scored else facts["return_mean"],
        )
        self._shelf.add(video)
        self._play = self._film = None
        self._filmed_version = score.version
        self._phases.enter("other")
        self.meter.count("videos")
        metrics = {
            "video_recorder/return_mean": facts["return_mean"],
            "video_recorder/length_mean": facts["length_mean"],
            "video_recorder/version_updates": float(updates),
            "video_recorder/video_frames": float(writer.frames),
        }
        self._reporter.event("filmed", updates=updates, env_steps=env_steps, metrics=metrics, file=video.file)
        if self._is_last:
            self._reporter.event("filmed finally")
        else:
            self._say_if_behind(updates)

    def _say_if_behind(self, filmed: int) -> None:
        """Say, once, that training made several periods of updates during one video."""
        self._take_newest()
        assert self._params is not None
        late = version_updates(self._params[0]) - filmed
        if late >= BEHIND * self._shared.period_updates:
            self._reporter.event(
                "warning",
                f"videos fall behind: the one of update {filmed:,} was finished when training had made {late:,} more, and a "
                f"video is due every {self._shared.period_updates:,}. --video.niceness 0 gives them more time, a smaller "
                "--video.max-seconds makes them shorter, a larger --video.period-env-steps rarer",
                once="behind",
            )

    def _advance(self) -> int:
        if self._waits:
            self._take_last()
        try:
            return super()._advance()
        except (VideoError, OSError) as error:  # the disk's, or the encoder's: the next video may succeed
            self._abandon()
            self.meter.count("failed")
            self._reporter.event(
                "warning", f"a video was lost (video_recorder/failed counts them): {error}", once="videos"
            )
            if self._is_last:
                self._players[0].params = None
                self._reporter.event("filmed finally")
            return 0

    def _cut(self, why: str) -> None:
        self._abandon()
        self._reporter.event("warning", f"a video was cut and dropped: {why}")
        if self._is_last:
            self._players[0].params = None
            self._reporter.event("filmed finally")

    def command(self, command: Command) -> None:
        """Execute `final`: film the last params; `evaluated`: take the policy's score."""
        if command.name == "final":
            self.begin_final(**command.facts)
        elif command.name == "evaluated":
            self._score = score_of(command.facts)

    def begin_final(self, updates: Mapping[str, int] | None = None) -> None:
        """Film the last params next, also in the middle of a video; report `filmed finally` afterwards.

        Args:
          updates: policy -> updates of its last params, which may still be on their way.
        """
        if self._film is not None and not self._shelf.videos:
            self._reporter.event("warning", TOO_SLOW, once="slow")
        self._abandon()
        self._begin_last(updates)
        self._waits = True
        self._take_last()

    def _take_last(self) -> None:
        """Let the last video begin if the last params of each policy are there, or have not come in time."""
        self._take_newest()
        if self._late and time.monotonic() < self._wait_until_s:
            return
        self._waits = False
        if self._params is None or self._params[0] == self._filmed_version:
            self._reporter.event("filmed finally")
            return
        self._next_updates = version_updates(self._params[0])

    @property
    def due(self) -> bool:
        if self._is_last and (self._params is None or self._params[0] == self._filmed_version):
            return False
        return not self._waits and super().due

    def _abandon(self) -> None:
        if self._film is not None:
            self._film.writer.abandon()
        self._play = self._film = None

    def close(self) -> dict[str, Any]:
        """Close; the open video is dropped."""
        self._abandon()
        self._close_player()
        return {}


FILMED = 1  # added to the seed: films show other episodes than evaluations


def build_video_recorder(job: Job, reporter: Reporter) -> VideoRecorder:
    e = job.experiment
    last_s = e.deadlines.snapshot_s / 2  # half of the time that the run waits for the last video
    settings = player_settings(job, e.filming_period, last_s, e.video.niceness)

    def make_env(num_envs: int, seed: int) -> RenderedEnv:
        return make_rendered(e.filmed_env, (seed, FILMED), job.seat_groups or None)

    def open_shelf() -> VideoShelf:
        return VideoShelf(Path(job.folder, VIDEOS, job.part.folder), e.video.keep_newest)

    meter, scored = make_meter(job), e.evaluator.enabled
    return VideoRecorder(played_policies(job), settings, e.video, make_env, open_shelf, reporter, meter, scored=scored)


def check_films(config: EnvConfig) -> None:
    """Check that videos of an environment can be made.

    Raises:
      ConfigError: it draws no pictures. MissingExtra: a package is not installed.
    """
    require_video()
    check_rendered(config)
