"""A video file from pictures: captions above each one, and an encoder in a separate process.

Captions are above the picture because players draw their controls over the bottom of a video.
"""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jsrl.errors import MissingExtra, VideoError
from jsrl.extras import require_extra

MIN_WIDTH = 320  # smaller pictures are enlarged by whole factors, so that captions are readable
MARGIN, LEAST_FONT, LARGEST_FONT = 6, 12, 26
INK, PAPER = (235, 239, 245), (24, 28, 36)
FINISH_S = 60.0
CAPTION_LINES = 2


def require_video() -> None:
    require_extra("video", "a video", "imageio_ffmpeg", "PIL")


class Captions:
    """Draws lines of text in a strip above pictures."""

    def __init__(self, width: int, lines: int) -> None:
        from PIL import ImageFont

        font: Any = ImageFont.load_default(min(max(width // 24, LEAST_FONT), LARGEST_FONT))
        self._font = font
        ascent, descent = font.getmetrics()
        self._line_height = ascent + descent + 2
        height = lines * self._line_height + 2 * MARGIN
        self._size = (width, height)

    @property
    def height(self) -> int:
        return self._size[1]

    def draw(self, lines: Sequence[str]) -> np.ndarray:
        """Return the strip with these lines: uint8 [height, width, 3]."""
        from PIL import Image, ImageDraw

        strip = Image.new("RGB", self._size, PAPER)
        pen = ImageDraw.Draw(strip)
        for number, line in enumerate(lines):
            pen.text((MARGIN, MARGIN + number * self._line_height), line, fill=INK, font=self._font)
        return np.asarray(strip)


class VideoWriter:
    """Encodes pictures with their captions as H.264 in an mp4 file, which any browser plays.

    Until `finish` the file is called PATH.part.

    Args:
      path: of the file. fps: pictures per second.
    """

    def __init__(self, path: Path, fps: float) -> None:
        require_video()
        self.path, self.fps, self.frames = path, fps, 0
        self.size = (0, 0)
        self._part = path.with_name(f"{path.name}.part")
        self._encoder: subprocess.Popen[bytes] | None = None

    def add(self, picture: np.ndarray, caption: Sequence[str]) -> None:
        """Add a picture, uint8 [H, W, 3], all of one size."""
        if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3:
            raise VideoError(
                f"a picture is {picture.dtype} of shape {picture.shape}; expected uint8 [height, width, 3] (RGB)."
            )
        if self._encoder is None:
            self._begin(picture)
        if picture.shape != self._shape:
            raise VideoError(
                f"a picture has shape {picture.shape}, the ones before it {self._shape}; one size is needed."
            )
        scaled = picture.repeat(self._scale, axis=0).repeat(self._scale, axis=1) if self._scale > 1 else picture
        top, (height, width) = self._captions.height, scaled.shape[:2]
        self._canvas[:top, :width] = self._captions.draw(caption)
        self._canvas[top : top + height, :width] = scaled
        assert self._encoder is not None and self._encoder.stdin is not None
        try:
            self._encoder.stdin.write(self._canvas.data)
        except (BrokenPipeError, OSError) as error:
            raise VideoError(f"{self.path.name}: the encoder ended ({self._complaint() or error}).") from None
        self.frames += 1

    def _begin(self, picture: np.ndarray) -> None:
        """Start the encoder with one thread, so that it takes little from training."""
        import imageio_ffmpeg

        self._shape = picture.shape
        self._scale = -(-MIN_WIDTH // picture.shape[1])
        height, width = picture.shape[0] * self._scale, picture.shape[1] * self._scale
        self._captions = Captions(width, CAPTION_LINES)
        height += self._captions.height
        height, width = height + height % 2, width + width % 2  # the encoder needs even sizes
        self.size = (width, height)
        self._canvas = np.empty((height, width, 3), np.uint8)
        self._canvas[:] = PAPER
        try:
            program = imageio_ffmpeg.get_ffmpeg_exe()
        except RuntimeError as error:
            raise MissingExtra(
                f"imageio-ffmpeg brought no ffmpeg for this machine ({error}): install ffmpeg."
            ) from None
        command = [program, "-v", "error", "-y", "-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}"]
        command += ["-r", f"{self.fps:g}", "-i", "-", "-an", "-c:v", "libx264", "-preset", "veryfast", "-crf", "23"]
        command += ["-threads", "1", "-pix_fmt", "yuv420p", "-movflags", "+faststart", "-f", "mp4", str(self._part)]
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the encoder)
        self._encoder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=self._errors)

    def _complaint(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def finish(self) -> None:
        if self._encoder is None:
            raise VideoError(f"{self.path.name}: no picture was added; a video needs one.")
        assert self._encoder.stdin is not None
        try:
            self._encoder.stdin.close()
            status = self._encoder.wait(FINISH_S)
        except (OSError, subprocess.TimeoutExpired) as error:
            self.abandon()
            raise VideoError(f"{self.path.name}: the encoder did not finish ({error}).") from None
        complaint = self._complaint()
        self._errors.close()
        self._encoder = None
        if status != 0:
            self._part.unlink(missing_ok=True)
            raise VideoError(f"{self.path.name}: the encoder ended with status {status} ({complaint}).")
        self._part.replace(self.path)

    def abandon(self) -> None:
        """Discard the video; leaves no file. May be called twice, and after `finish`."""
        encoder, self._encoder = self._encoder, None
        if encoder is None:
            return
        encoder.kill()
        assert encoder.stdin is not None
        with contextlib.suppress(OSError):
            encoder.stdin.close()
        encoder.wait()
        self._errors.close()
        self._part.unlink(missing_ok=True)
