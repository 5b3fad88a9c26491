"""The journal of a group: the actions given to its environments, so that a resumed run can bring them to the same state.

Environments cannot be saved in general, but a seeded one that gets the same actions reaches the same state. Each group
of a deterministic run appends one record per trajectory before it commits the trajectory, so the journals hold everything that
the learner's snapshot was trained on. A resume replays the records up to the snapshot and cuts off the rest.

    RUN/journal/group-G     magic, length and CRC-32 of the header, header as JSON, then records of equal size:
                            actions [T, B, ...], CRC-32 of what the environments returned after the last row, CRC-32 of
                            the record
    RUN/journal/group-G.tasks   if a director assigns tasks: a line of JSON for each step before which tasks were set,
                            {"step": counted from the start of the journal, "tasks": {slot: task}}; step 0: before a
                            second reset
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from jsrl.envs.base import EnvStep, GameStep
from jsrl.errors import SnapshotError
from jsrl.plain_files import open_plain, read_plain
from jsrl.transport.wire.schema import to_dtype
from jsrl.types import Array, ArraySpec, leaves

FOLDER = "journal"  # of a run
_MAGIC = b"JSRLACT1"
_MAX_HEADER_BYTES = 1 << 16
_LENGTH, _CHECKS = struct.Struct("<II"), struct.Struct("<II")


@dataclass(frozen=True)
class JournalHeader:
    """Header of a journal.

    Attributes:
      environment: its name, for messages. group, group_size, num_rows: number of the group, B, T.
      action: spec of one environment's action.
      first: number of the trajectory in the first record. generation: of the learner when the environments were seeded.
    """

    environment: str
    group: int
    group_size: int
    num_rows: int
    action: ArraySpec
    first: int
    generation: int

    @property
    def actions(self) -> ArraySpec:
        """Return the spec of a record's actions, [T, B, ...]."""
        return self.action.batched(self.num_rows, self.group_size)

    @property
    def record_bytes(self) -> int:
        return self.actions.size_bytes + _CHECKS.size

    def encode(self) -> bytes:
        text = msgspec.json.encode(self)
        return _MAGIC + _LENGTH.pack(len(text), zlib.crc32(text)) + text


class Record(NamedTuple):
    """One trajectory: actions [T, B, ...], and `digest` after the last row."""

    actions: Array
    seen: int


def journal_path(folder: str | os.PathLike[str], group: int) -> Path:
    return Path(folder) / FOLDER / f"group-{group}"


def digest(step: EnvStep | GameStep) -> int:
    """Return a CRC-32 of an environment step: observations, and which of them start an episode."""
    found = zlib.crc32(np.ascontiguousarray(step.is_first).tobytes())
    for leaf in leaves(step.observation):
        found = zlib.crc32(np.ascontiguousarray(leaf).tobytes(), found)
    return found


class Journal:
    """A journal opened for reading."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with open_plain(path) as file:
                self.header, self.begin = self._read_header(file.read(len(_MAGIC) + _LENGTH.size + _MAX_HEADER_BYTES))
                size = os.fstat(file.fileno()).st_size
        except FileNotFoundError as error:
            raise SnapshotError(
                f"the journal {path} is missing: only serial and deterministic runs write one, until a worker is replaced"
            ) from error
        except (OSError, ValueError) as error:
            raise SnapshotError(f"the journal {path} cannot be read ({error})") from error
        self.num_records = (size - self.begin) // self.header.record_bytes

    def _read_header(self, content: bytes) -> tuple[JournalHeader, int]:
        at = len(_MAGIC) + _LENGTH.size
        try:
            length, checksum = _LENGTH.unpack(content[len(_MAGIC) : at])
            text = content[at : at + length]
            if content[: len(_MAGIC)] != _MAGIC or zlib.crc32(text) != checksum:
                raise ValueError(f"it begins with {content[:at]!r}, and a header that does not belong to it")
            header = msgspec.json.decode(text, type=JournalHeader)
        except (ValueError, struct.error) as error:
            raise SnapshotError(f"{self.path} is not a journal of jsrl ({error})") from None
        return header, at + length

    def records(self, count: int) -> Iterator[Record]:
        if count > self.num_records:
            raise SnapshotError(f"the journal {self.path} holds {self.num_records} trajectories, {count} are needed")
        with open_plain(self.path) as file:
            file.seek(self.begin)
            for number in range(count):
                yield self._record(number, file.read(self.header.record_bytes))

    def _record(self, number: int, content: bytes) -> Record:
        body = content[: -_CHECKS.size]
        seen, checksum = _CHECKS.unpack(content[-_CHECKS.size :])
        if zlib.crc32(body, seen) != checksum:
            raise SnapshotError(
                f"the journal {self.path} is broken: trajectory {self.header.first + number} was altered"
            )
        actions = self.header.actions
        return Record(np.frombuffer(body, to_dtype(actions.dtype)).reshape(actions.shape), seen)


class JournalWriter:
    """Appends a record per trajectory; a disk error ends the journal with a warning, never the run.

    Args:
      path: of the journal. header: its header. keep: records of an existing journal to keep; None: start over.
      max_bytes: size beyond which the journal is given up. on_warning: called with one line when it is given up.
    """

    def __init__(
        self,
        path: Path,
        header: JournalHeader,
        *,
        keep: int | None = None,
        max_bytes: float = float("inf"),
        on_warning: Callable[[str], None],
    ) -> None:
        self._path, self._max_bytes, self._on_warning = path, max_bytes, on_warning
        self._fd, self._size = -1, 0
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            self._fd = os.open(path, flags if keep is not None else flags | os.O_TRUNC, 0o600)
            if keep is None:
                self._write(header.encode())
            else:
                self._size = len(header.encode()) + keep * header.record_bytes
                os.truncate(self._fd, self._size)
                os.lseek(self._fd, 0, os.SEEK_END)
        except OSError as error:
            self.give_up(str(error))

    @property
    def is_open(self) -> bool:
        return self._fd >= 0

    def append(self, actions: Array, seen: int) -> None:
        """Write one trajectory: actions [T, B, ...], and `digest` after its last row."""
        if self._fd < 0:
            return
        body = actions.tobytes()
        content = body + _CHECKS.pack(seen, zlib.crc32(body, seen))
        if self._size + len(content) > self._max_bytes:
            self.give_up(f"it would be larger than {self._max_bytes / 1e6:.0f} MB; see snapshots.journal_mb")
            return
        try:
            self._write(content)
        except OSError as error:
            self.give_up(str(error))

    def _write(self, content: bytes) -> None:
        written = os.write(self._fd, content)
        if written != len(content):
            raise OSError(f"only {written} of {len(content)} bytes were written; the disk is full")
        self._size += written

    def give_up(self, reason: str) -> None:
        self.close()
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            reason += f"; nor can it be removed: {error}"
        self._on_warning(
            f"the journal {self._path} was given up ({reason}). Training continues; a resume will start new episodes instead "
            "of continuing these exactly."
        )

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class _Given(msgspec.Struct):
    step: int
    tasks: dict[int, Any]

    @property
    def line(self) -> str:
        return msgspec.json.encode(self).decode() + "\n"


class TaskJournal:
    """The tasks given to the environments of a journal.

    Args:
      path: of the journal. keep: steps that are replayed; later tasks are dropped.
    """

    def __init__(self, path: Path, keep: int) -> None:
        self.path = path.with_name(f"{path.name}.tasks")
        self._given: dict[int, dict[int, Any]] = {}
        try:
            text = read_plain(self.path).decode() if keep and self.path.exists() else ""
            for line in text[: text.rfind("\n") + 1].splitlines():  # the last line may be half a line, of later steps
                given = msgspec.json.decode(line, type=_Given)
                if given.step < keep:
                    self._given.setdefault(given.step, {}).update(given.tasks)
        except (OSError, ValueError) as error:
            raise SnapshotError(f"the tasks of the journal {path} cannot be read ({error})") from error

    def at(self, step: int) -> dict[int, Any]:
        return self._given.get(step, {})

    def begin(self) -> None:
        """Write the kept tasks to disk; later ones are appended."""
        if self._given or self.path.exists():
            self.path.write_text("".join(_Given(*one).line for one in sorted(self._given.items())))

    def append(self, step: int, tasks: Mapping[int, Any]) -> None:
        """Keep tasks that are set before a step, and write them to disk."""
        if step == 0:
            self._given[0] = self.at(0) | dict(tasks)
        with self.path.open("a") as file:
            file.write(_Given(step, dict(tasks)).line)
