"""Videos decode to their input, with captions in their pixels; the best and the newest are kept."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

from jsrl.errors import VideoError
from jsrl.services.recordings.video import Captions, VideoWriter
from jsrl.services.recordings.video_shelf import INDEX, Video, VideoShelf, captions, read_index
from tests.decoded import decode


def test_video_decodes_to_its_frames_with_captions_above(tmp_path):
    """An odd size becomes even, nothing is lost, colours stay, and different captions have different pixels.

    Players draw their controls over the bottom of a video, so nothing is written there.
    """
    writer = VideoWriter(tmp_path / "a.mp4", fps=15.0)
    for number in range(12):
        picture = np.zeros((121, 401, 3), np.uint8)
        picture[..., number % 3] = 200
        writer.add(picture, (f"return {number * 7}", "version 4"))
    writer.finish()
    frames, fps = decode(tmp_path / "a.mp4")
    assert (len(frames), fps, frames.shape[2:0:-1]) == (12, 15.0, writer.size)
    assert writer.frames == 12
    assert frames.shape[1] % 2 == frames.shape[2] % 2 == 0
    assert 401 <= frames.shape[2] <= 402
    top = Captions(401, 2).height
    for number in range(12):
        means = frames[number, top + 10 : top + 110, 10:390].reshape(-1, 3).mean(0)
        assert means.argmax() == number % 3
        assert means.max() > 150
    strip = frames[:, : top - 1].astype(int)
    assert strip.max() > 180, "nothing is written above"
    assert np.abs(strip[0] - strip[11]).max() > 100, "different captions look the same"
    assert list(tmp_path.iterdir()) == [tmp_path / "a.mp4"]


def test_captions_are_drawn():
    drawn = Captions(400, 2)
    one, two, empty = drawn.draw(("return 1", "x")), drawn.draw(("return 2", "x")), drawn.draw(("", ""))
    assert one.shape == (drawn.height, 400, 3)
    assert (one != two).any()
    assert len(np.unique(empty.reshape(-1, 3), axis=0)) == 1


def test_small_pictures_are_enlarged_by_whole_factors(tmp_path):
    writer = VideoWriter(tmp_path / "small.mp4", 10.0)
    writer.add(np.full((210, 160, 3), 90, np.uint8), ("a", "b"))
    writer.finish()
    frames, _ = decode(tmp_path / "small.mp4")
    assert frames.shape[2] == 320
    assert frames.shape[1] > 420


@pytest.mark.parametrize(
    "picture", [np.zeros((8, 8), np.uint8), np.zeros((8, 8, 3), np.float32), np.zeros((8, 8, 4), np.uint8)]
)
def test_invalid_frames_are_refused(tmp_path, picture):
    with pytest.raises(VideoError, match=r"expected uint8 \[height, width, 3\]"):
        VideoWriter(tmp_path / "a.mp4", 10.0).add(picture, ("", ""))


def test_frames_of_two_sizes_are_refused_and_no_file_remains(tmp_path):
    writer = VideoWriter(tmp_path / "a.mp4", 10.0)
    writer.add(np.zeros((64, 64, 3), np.uint8), ("", ""))
    with pytest.raises(VideoError, match=r"\(32, 64, 3\)"):
        writer.add(np.zeros((32, 64, 3), np.uint8), ("", ""))
    writer.abandon()
    writer.abandon()
    assert not list(tmp_path.iterdir())


def test_dead_encoder_raises_our_error(tmp_path):
    writer = VideoWriter(tmp_path / "a.mp4", 10.0)
    picture = np.zeros((400, 400, 3), np.uint8)
    writer.add(picture, ("", ""))
    assert writer._encoder is not None
    os.kill(writer._encoder.pid, signal.SIGKILL)
    writer._encoder.wait()
    with pytest.raises(VideoError, match="encoder ended"):
        writer.add(picture, ("", ""))
    writer.abandon()
    assert not list(tmp_path.iterdir())


def test_unwritable_folder_is_named_with_the_encoder_message(tmp_path):
    writer = VideoWriter(tmp_path / "missing" / "a.mp4", 10.0)
    with pytest.raises(VideoError, match="No such file"):
        for _ in range(50):
            writer.add(np.zeros((400, 400, 3), np.uint8), ("", ""))
        writer.finish()
    writer.abandon()


def test_an_empty_video_is_refused(tmp_path):
    with pytest.raises(VideoError, match="a video needs one"):
        VideoWriter(tmp_path / "a.mp4", 10.0).finish()


def put(shelf: VideoShelf, env_steps: int, score: float | None, return_: float = 0.0) -> str:
    path = shelf.path(env_steps, env_steps // 10)
    path.write_bytes(b"x")
    shelf.add(Video(path.name, env_steps // 10, env_steps, return_, 1, 50, 25.0, 320, 200, score=score))
    return path.name


def test_the_best_and_the_newest_are_kept(tmp_path):
    shelf = VideoShelf(tmp_path, 2)
    names = [put(shelf, 100 * n, score) for n, score in enumerate([1.0, 9.0, 3.0, 9.0, 5.0, 4.0])]
    files = {path.name for path in tmp_path.glob("*.mp4")}
    assert files == {names[3], names[4], names[5]}, "the newest of two equal ones is the best"
    assert [one.best for one in shelf.videos] == [True, False, False]
    assert list(captions(tmp_path.parent)) == []
    again = VideoShelf(tmp_path, 2)  # a resumed run
    assert again.videos == shelf.videos
    better = put(again, 900, 10.0)
    assert {path.name for path in tmp_path.glob("*.mp4")} == {names[5], better}
    assert [(one.file, one.best) for one in read_index(tmp_path)] == [(names[5], False), (better, True)]


def test_a_version_that_is_filmed_again_replaces_its_video(tmp_path):
    shelf = VideoShelf(tmp_path, 3)
    put(shelf, 100, 1.0, 50.0)
    put(shelf, 100, 1.0, 2.0)
    assert [one.return_mean for one in shelf.videos] == [2.0]
    assert len(list(tmp_path.glob("*.mp4"))) == 1


def test_without_a_score_no_video_is_the_best(tmp_path):
    """In self-play of opposed sides the returns of both cancel: the first video, of the untrained policy, won the tie."""
    shelf = VideoShelf(tmp_path, 1)
    put(shelf, 100, None)
    newest = put(shelf, 200, None)
    assert [(one.file, one.best) for one in shelf.videos] == [(newest, False)]


def test_captions_list_known_facts_newest_first(tmp_path):
    shelf = VideoShelf(tmp_path / "videos", 3)
    first, second = put(shelf, 100, 0.75, 7.0), put(shelf, 200, 0.5, 5.0)
    (tmp_path / "videos" / "own.mp4").write_bytes(b"x")
    (tmp_path / "videos" / "b").mkdir()
    (tmp_path / "videos" / "b" / "other.mp4").write_bytes(b"x")
    found = captions(tmp_path)
    assert list(found) == [f"videos/{second}", f"videos/{first}", "videos/own.mp4", "videos/b/other.mp4"]
    assert found["videos/b/other.mp4"] == "policy b · other.mp4"
    assert found[f"videos/{first}"] == "best, score 0.75 · return 7.0 · version 10 · 100 env steps · 2 s"
    assert found["videos/own.mp4"] == "own.mp4"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"videos": [3, {"file": "a.mp4"}]}'])
def test_broken_index_still_lists_videos(tmp_path, text):
    (tmp_path / "videos").mkdir()
    (tmp_path / "videos" / INDEX).write_text(text)
    (tmp_path / "videos" / "a.mp4").write_bytes(b"x")
    (tmp_path / "videos" / "b.mp4.part").write_bytes(b"x")
    assert captions(tmp_path) == {"videos/a.mp4": "a.mp4"}
    VideoShelf(tmp_path / "videos", 1)
    assert not list((tmp_path / "videos").glob("*.part")), "leftovers of a killed video recorder are removed"
