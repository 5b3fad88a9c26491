"""Names: addresses of listening workers, kept as small files in a folder of the run."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from urllib.parse import quote, unquote

import msgspec

from jsrl.errors import StreamClosed, StreamTimeout
from jsrl.services.runs.files import folder_lock, process_alive, read_json, write_json
from jsrl.services.runs.values import Registration


class FileNames:
    """One small file per name, replaced atomically: an incarnation replaces earlier ones, and ended processes are absent."""

    def __init__(self, folder: str | os.PathLike[str]):
        """Keep the files in `folder` (created if missing)."""
        self._folder = Path(folder)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def register(self, name: str, address: str, incarnation: int = 0) -> Registration:
        """Register the address of `name`.

        Raises:
          StreamClosed: a later incarnation has registered; this one must end.
        """
        entry = Registration(name, address, incarnation, os.getpid(), socket.gethostname())
        with folder_lock(self._folder):
            known = self._read(self._path(name))
            if known is not None and known.incarnation > incarnation:
                raise StreamClosed(
                    f"{name} is registered by the newer incarnation {known.incarnation} (process {known.pid}, address "
                    f"{known.address}): incarnation {incarnation} came too late and must end."
                )
            write_json(self._path(name), asdict(entry), durable=False)
        return entry

    def lookup(self, name: str, timeout_s: float) -> Registration:
        """Return the entry of `name`, waiting for it up to `timeout_s` (0: no wait).

        Raises:
          StreamTimeout: no live worker registered it in time; the message says what is known.
        """
        deadline = time.monotonic() + timeout_s
        pause_s = 0.005
        while True:
            entry = self._read(self._path(name))
            if entry is not None and _absent(entry) is None:
                return entry
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise StreamTimeout(self._explain(name, entry, timeout_s))
            time.sleep(min(pause_s, left_s))
            pause_s = min(2 * pause_s, 0.1)

    def show(self, entries: Iterable[Registration]) -> None:
        """Write these names of other hosts, whose processes are alive, to the folder; remove all other remote names.

        Registrations of this host's processes stay, unless a later incarnation of the worker is on another host.
        """
        with folder_lock(self._folder):
            shown = {self._path(entry.name): replace(entry, host="") for entry in entries}
            for path in set(self._folder.glob("[!.]*.json")) - shown.keys():
                known = self._read(path)
                if known is not None and not known.host:
                    path.unlink(missing_ok=True)
            for path, entry in shown.items():
                known = self._read(path)
                is_here = known is not None and known.host and known.incarnation >= entry.incarnation
                if known != entry and not is_here:
                    write_json(path, asdict(entry), durable=False)

    def own(self) -> list[Registration]:
        """Return the names that living processes of this host have registered."""
        return [entry for entry in self.names().values() if entry.host == socket.gethostname()]

    def names(self) -> dict[str, Registration]:
        """Return all names whose process is alive."""
        entries = (self._read(path) for path in sorted(self._folder.glob("[!.]*.json")))
        return {entry.name: entry for entry in entries if entry is not None and _absent(entry) is None}

    def _path(self, name: str) -> Path:
        return self._folder / f"{quote(name, safe='').replace('.', '%2E')}.json"

    def _read(self, path: Path) -> Registration | None:
        try:
            return msgspec.convert(read_json(path), Registration)
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as error:
            raise StreamClosed(f"{path} is not a registration of {unquote(path.stem)} ({error}); delete it.") from None

    def _explain(self, name: str, entry: Registration | None, timeout_s: float) -> str:
        known = ", ".join(self.names()) or "none"
        why = "no worker registered it" if entry is None else f"its last registration {_absent(entry)}"
        return (
            f"the name {name} was not found within {timeout_s:g} s: {why}. Names known in {self._folder}: {known}. "
            "Look at the log of the worker that should have registered."
        )


def _absent(entry: Registration) -> str | None:
    """Return why an entry does not count any more, or None if it counts."""
    if entry.host == socket.gethostname() and not process_alive(entry.pid):
        return f"is of process {entry.pid}, which has ended"
    return None
