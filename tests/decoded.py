"""A video file as arrays, decoded by the ffmpeg of the extra `video`."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import imageio_ffmpeg
import numpy as np


def decode(path: Path) -> tuple[np.ndarray, float]:
    """Return (frames [N, H, W, 3], frames per second)."""
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-i", str(path), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    ended = subprocess.run(command, capture_output=True, check=True)
    told = ended.stderr.decode(errors="replace")
    size = re.search(r"Video: .*?, (\d+)x(\d+)[ ,]", told)
    fps = re.search(r"([\d.]+) fps", told)
    assert size and fps, told
    width, height = int(size[1]), int(size[2])
    return np.frombuffer(ended.stdout, np.uint8).reshape(-1, height, width, 3), float(fps[1])
