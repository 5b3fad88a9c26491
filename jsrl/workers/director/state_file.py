"""The director's state on disk: with each snapshot of the first policy's learner, and every second as the newest.

FOLDER/state-<version>.json   the state when the learner saved that version
FOLDER/newest.json            for a director that is replaced during the run
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from jsrl.errors import SnapshotError
from jsrl.services.runs.files import read_json, write_atomic
from jsrl.types import version_updates
from jsrl.workers.director.tickets import SavedState

FOLDER = "director"  # of a run
NEWEST = "newest.json"
KEPT = 8  # files of versions
PERIOD_S = 1.0


class StateFile:
    """Reads and writes a director's state.

    Args:
      folder: of the run's director. updates: of the restored snapshot; None: this run's own newest state,
        if there is one. on_warning: called with a sentence if a disk write fails.
    """

    def __init__(self, folder: Path, updates: int | None, on_warning: Callable[[str], None]) -> None:
        self.folder, self._updates, self._on_warning = Path(folder), updates, on_warning
        self._due_s = time.monotonic() + PERIOD_S

    def read(self) -> SavedState | None:
        """Return the first state; None: there is none, so that the director starts from scratch."""
        path = self._path()
        if path is None:
            return None
        try:
            values = read_json(path)
            return SavedState(values["state"], values["leases"], values["orders"], values.get("stops", False))
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise SnapshotError(
                f"the director's state {path} cannot be read ({error}); put it back, or start a new run."
            ) from error

    def _path(self) -> Path | None:
        newest = self.folder / NEWEST
        if self._updates is None:
            return newest if newest.exists() else None
        versions = [v for v in self._versions() if version_updates(v) == self._updates]
        if versions:
            return self._of(versions[-1])
        if newest.exists():
            self._on_warning(
                f"the director has no state of version {self._updates}; it continues with its newest one, which may include "
                "later games"
            )
            return newest
        self._on_warning(
            f"{self.folder} has no state of the director; it starts over, without ratings and frozen players"
        )
        return None

    def _versions(self) -> list[int]:
        found = [path.stem.removeprefix("state-") for path in self.folder.glob("state-*.json")]
        return sorted(int(text) for text in found if text.isdigit())

    def _of(self, version: int) -> Path:
        return self.folder / f"state-{version}.json"

    def write(self, version: int, values: dict[str, Any]) -> None:
        """Write the state that belongs to a snapshot; the oldest ones are deleted."""
        self._write(self._of(version), values)
        for old in self._versions()[:-KEPT]:
            with contextlib.suppress(OSError):
                self._of(old).unlink()

    def write_periodically(self, values: Callable[[], dict[str, Any]], *, now: bool = False) -> None:
        """Write the newest state, if a second has passed."""
        if now or time.monotonic() >= self._due_s:
            self._write(self.folder / NEWEST, values(), durable=now)
            self._due_s = time.monotonic() + PERIOD_S

    def _write(self, path: Path, values: dict[str, Any], *, durable: bool = True) -> None:
        try:
            self.folder.mkdir(exist_ok=True)
            write_atomic(path, msgspec.json.encode(values), durable=durable)
        except OSError as error:
            self._on_warning(
                f"the director's state could not be written ({error}); a resume would begin with an older one"
            )
