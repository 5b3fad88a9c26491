"""Where lines of metrics go: one JSON-lines file, TensorBoard events, and whatever else offers `write` and `close`."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any, Protocol

from jsrl.errors import MissingExtra
from jsrl.services.files import json_ready

Line = dict[str, Any]  # flat: name -> number (env_steps, updates and wall_s always among them)


class Sink(Protocol):
    """A place for lines of metrics; `write` may raise OSError, which is reported once and does not end the run."""

    def write(self, metrics: Line) -> None:
        """Take one line: a flat dict that always has env_steps, updates and wall_s."""
        ...

    def close(self) -> None:
        """Finish; may be called twice."""
        ...


class JsonLinesSink:
    """One flat JSON object a line, flushed line by line; NaN is null, infinities are the strings "inf" and "-inf".

    Opening an existing file continues it; a last line that a killed process left unfinished is cut off.

    Attributes:
      last_line: the last complete line of a file that existed, else None.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)
        self.last_line: Line | None = None
        self._file = self.path.open("ab+")
        self._continue()

    def write(self, metrics: Line) -> None:
        """Append one line."""
        self._file.write((json.dumps(json_ready(metrics)) + "\n").encode())
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _continue(self) -> None:
        size = self._file.seek(0, os.SEEK_END)
        tail_bytes = min(size, 1 << 20)
        self._file.seek(size - tail_bytes)
        tail = self._file.read(tail_bytes)
        complete = tail[: tail.rfind(b"\n") + 1]
        if len(complete) < len(tail):
            self._file.truncate(size - len(tail) + len(complete))
        self._file.seek(0, os.SEEK_END)
        for text in reversed(complete.splitlines()):
            try:
                self.last_line = json.loads(text)
                return
            except ValueError:
                continue


class TensorBoardSink:
    """TensorBoard events through tensorboardX (no torch, no TensorFlow); the step axis is env steps."""

    def __init__(self, folder: str | os.PathLike[str]):
        """Write into `folder`.

        Raises:
          MissingExtra: tensorboardX is not installed.
        """
        try:
            from tensorboardX import SummaryWriter
        except ImportError as error:
            raise MissingExtra(
                f"TensorBoard events need tensorboardX ({error}); install jsrl[tensorboard], or do without: "
                "metrics.jsonl has everything."
            ) from None
        self._writer = SummaryWriter(os.fspath(folder), flush_secs=10)

    def write(self, metrics: Line) -> None:
        """Write every finite number but env_steps as a scalar."""
        for name, value in metrics.items():
            if name != "env_steps" and isinstance(value, int | float) and math.isfinite(value):
                self._writer.add_scalar(name, value, int(metrics["env_steps"]))

    def close(self) -> None:
        """Flush and close the events file."""
        self._writer.close()
