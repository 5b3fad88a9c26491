"""Sinks for lines of metrics: one JSON-lines file, TensorBoard events, and others."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import socket
import struct
import time
from pathlib import Path
from typing import Any, Protocol

from jsrl.errors import MissingExtra
from jsrl.services.runs.files import json_ready

DELETED = "{} was deleted during the run: the values so far are lost, and a new file begins"
Line = dict[str, Any]  # flat: name -> number (env_steps, updates and wall_s always among them)


class Sink(Protocol):
    """A further place for metrics. Every method except `write` may be missing.

    The methods of all sinks are called in one thread (sink_thread.py), so they should return soon. Exceptions are
    reported once and do not end the run; if `start` raises, the sink is switched off. If a sink did not end in time and has a
    method `abandon() -> str | None`, that is called from another thread; it returns advice for the user.
    """

    def start(self, config: dict[str, Any]) -> str | None:
        """Begin; may return a line to show.

        Args:
          config: `run` (EXPERIMENT/RUN), `folder` (the run's), `options` (name -> value) and `end_s` (seconds for `end`).
        """
        ...

    def write(self, row: Line) -> str | None:
        """Take one line; may return a line to show. It is a flat dict that always has env_steps, updates and wall_s."""
        ...

    def video(self, path: Path) -> None:
        """Take a written video; the file may be gone already, because only the best and the newest are kept."""
        ...

    def end(self, summary: dict[str, Any]) -> None:
        """Finish; `summary` has `ended`, the counters, and existing scores such as `final/return_mean`."""
        ...


class AppendedFile:
    """A file that grows by whole records: a record that did not fit on a full disk is cut off again, not kept for later."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("ab+", buffering=0)

    def append(self, record: bytes) -> None:
        """Append all of a record, or nothing of it.

        Raises:
          OSError: it could not be written; a later record may be.
        """
        size = self._file.seek(0, os.SEEK_END)
        written = 0
        try:
            while written < len(record):
                written += self._file.write(record[written:])
        except OSError:
            with contextlib.suppress(OSError):  # a device has no size
                self._file.truncate(size)
            raise

    @property
    def is_deleted(self) -> bool:
        """Return whether the file was deleted since it was opened: further records would be lost with it."""
        return os.fstat(self._file.fileno()).st_nlink == 0

    def tail(self, size_bytes: int) -> tuple[int, bytes]:
        """Return (where the last bytes begin, the bytes)."""
        size = self._file.seek(0, os.SEEK_END)
        start = self._file.seek(size - min(size, size_bytes))
        return start, self._file.read(size - start)  # a device may have endless bytes

    def truncate(self, size_bytes: int) -> None:
        self._file.truncate(size_bytes)

    def close(self) -> None:
        self._file.close()


class JsonLinesSink:
    """One flat JSON object per line, written line by line; NaN is null, infinities are the strings "inf" and "-inf".

    An existing file is continued; an unfinished last line of a killed process is cut off.

    Attributes:
      last_line: the last complete line of a file that existed, else None.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)
        self.last_line: Line | None = None
        self._file = AppendedFile(self.path)
        self._continue()

    def write(self, metrics: Line) -> str | None:
        """Append one line; return a message if the file was deleted, so that a new one begins with it."""
        deleted = self._file.is_deleted
        if deleted:
            self._file.close()
            self._file = AppendedFile(self.path)
        self._file.append((json.dumps(json_ready(metrics)) + "\n").encode())
        return DELETED.format(self.path) if deleted else None

    def close(self) -> None:
        self._file.close()

    def _continue(self) -> None:
        start, tail = self._file.tail(1 << 20)
        complete = tail[: tail.rfind(b"\n") + 1]
        if len(complete) < len(tail):
            self._file.truncate(start + len(complete))
        for text in reversed(complete.splitlines()):
            try:
                self.last_line = json.loads(text)
                return
            except ValueError:
                continue


class TensorBoardSink:
    """TensorBoard events by tensorboardX's protocol buffers (no torch, no TensorFlow); the step axis is env steps.

    tensorboardX's own writer is not used: its thread ends on a full disk, and then its full queue blocks the caller forever.
    """

    def __init__(self, folder: str | os.PathLike[str]):
        """Write into `folder`; the file is created with the first line."""
        try:
            from tensorboardX import crc32c
            from tensorboardX.proto import event_pb2, summary_pb2
        except ImportError as error:
            raise MissingExtra(
                "no TensorBoard events: tensorboardX is not installed (jsrl doctor says how); metrics.jsonl has them all"
            ) from error
        self._checksum, self._event, self._summary = crc32c.crc32c, event_pb2.Event, summary_pb2.Summary
        self.path = Path(folder) / f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{os.getpid()}"
        self._file: AppendedFile | None = None

    def write(self, metrics: Line) -> str | None:
        """Write every finite number except env_steps as a scalar, all of them as one event.

        Return a message if the file was deleted, so that a new one begins.
        """
        deleted = self._file is not None and self._file.is_deleted
        if self._file is not None and deleted:
            self._file.close()
        if self._file is None or deleted:
            self._file = self._begun()
        values = [
            self._summary.Value(tag=re.sub(r"[^-/\w.]", "_", name), simple_value=value)
            for name, value in metrics.items()
            if name != "env_steps" and isinstance(value, int | float) and math.isfinite(value)
        ]
        step, summary = int(metrics["env_steps"]), self._summary(value=values)
        self._append(self._file, self._event(wall_time=time.time(), step=step, summary=summary))
        return DELETED.format(self.path) if deleted else None

    def _begun(self) -> AppendedFile:
        self.path.parent.mkdir(exist_ok=True)
        file = AppendedFile(self.path)
        try:
            self._append(file, self._event(wall_time=time.time(), file_version="brain.Event:2"))
        except OSError:
            file.close()
            raise
        return file

    def _append(self, file: AppendedFile, event: Any) -> None:
        """Append an event as a TFRecord: length, its checksum, content, its checksum."""
        content = event.SerializeToString()
        length = struct.pack("<Q", len(content))
        file.append(length + self._masked(length) + content + self._masked(content))

    def _masked(self, content: bytes) -> bytes:
        checksum = self._checksum(content)
        return struct.pack("<I", (((checksum >> 15) | (checksum << 17)) + 0xA282EAD8) & 0xFFFFFFFF)

    def end(self, summary: dict[str, Any]) -> None:
        if self._file is not None:
            self._file.close()

    def abandon(self) -> str:
        """Close the events file, as another sink keeps the thread; return what is kept."""
        self.end({})
        return "the lines so far are kept"
