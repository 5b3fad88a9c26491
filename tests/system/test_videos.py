"""The video recorder in a run of processes: it records, and neither its death nor its failure ends the run."""

from __future__ import annotations

import pytest

from tests.decoded import decode
from tests.system.launched import FOREVER

pytestmark = pytest.mark.slow
FILM = ("--video.enabled", "--video.niceness", "0")


@pytest.mark.nightly
def test_a_run_leaves_videos_and_its_report_shows_them(launch) -> None:
    run = launch(
        *FOREVER, *FILM, "--video.period-env-steps", "200", "--stop-at-return", "none", experiment="ppo_cartpole"
    )
    run.until(lambda: [x for x in run.lines() if x.get("video_recorder/videos", 0) >= 2], "two videos", 100.0)
    run.popen.terminate()
    run.expect(130, 60.0)
    videos = sorted((run.folder / "videos").glob("*.mp4"))
    assert 1 <= len(videos) <= 6
    assert not list((run.folder / "videos").glob("*.part"))
    frames, fps = decode(videos[-1])
    assert fps == 50
    assert frames.shape[1:] == (478, 600, 3)
    page = (run.folder / "report.html").read_text()
    for video in videos:
        assert f'src="videos/{video.name}"' in page
    assert "best · return" in page
    assert "warning: video-recorder" not in run.text


@pytest.mark.nightly
def test_killed_recorder_does_not_end_the_run(launch) -> None:
    run = launch(*FOREVER, *FILM, "--stop-at-return", "none", experiment="ppo_cartpole")
    run.await_updates()
    run.await_worker("video-recorder").kill()
    run.until(lambda: [x for x in run.lines() if x.get("video_recorder/lost") == 1], "the loss in the metrics", 30.0)
    before = max(x["updates"] for x in run.lines())
    run.await_updates(before + 3)
    run.popen.send_signal(2)
    run.expect(130, 30.0)
    assert "video-recorder ended unexpectedly: killed by signal 9" in run.text
    assert "the run continues without the video recorder" in run.text


@pytest.mark.nightly
def test_recorder_failure_is_reported_and_the_run_ends_normally(launch) -> None:
    run = launch(
        *FILM,
        "--env.id",
        "worlds:World",
        "--total-env-steps",
        "2000",
        "--evaluator.enabled",
        "false",
        experiment="ppo",
    )
    text = run.expect(0, 100.0)
    assert "video-recorder: ConfigError: environment 'worlds:World'" in text
    assert "expected a picture" in text
    assert "Traceback" not in text
    assert "the run continues without the video recorder" in (run.folder / "report.html").read_text()
