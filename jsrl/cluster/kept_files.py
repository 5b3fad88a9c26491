"""Files that a worker keeps in the run folder, such as snapshots, and ledger pages: copied between hosts.

Its agent sends their changes, and the controller writes them to the run folder. Before an incarnation of the worker starts on
another host, that host gets the files of the run folder. The parts of a file are sent in order; it appears once it is
complete and its digest is the sender's. Each part is confirmed: what a broken connection lost is sent again.

What a worker writes and deletes meanwhile does not change the files that are on their way: these are all sent before the
folders are looked at again. So the other side always has whole snapshots, also if the network is slower than they are written.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from jsrl.cluster.messages import PAGE_BYTES, REMOVED, Part
from jsrl.services.runs.files import write_atomic
from jsrl.services.runs.values import log_name
from jsrl.services.snapshots.format import remove_incomplete
from jsrl.transport.ledger.legs import LEGS, SAMPLES, ledger_path, leg_folder
from jsrl.transport.ledger.page import LEDGER

PART_BYTES = 1 << 20
AHEAD_BYTES = 2 << 20  # that may be sent and not confirmed: heartbeats wait behind them on a slow network
AGAIN_S = 5.0  # without a confirmation, after which a file is sent again
_DRAFT = ".draft"


class KeptFiles:
    """Sends the files in subfolders of a run folder, as far as the other side does not have them, one after another.

    Args:
      root: the run folder, or the agent's folder for it. send: sends a part; it may get lost.
      held: a folder for links to the files that are on their way, which their worker may delete; None: nobody deletes them.
    """

    def __init__(
        self,
        root: Path,
        send: Callable[[Part], object],
        clock: Callable[[], float] = time.monotonic,
        held: Path | None = None,
    ) -> None:
        self._root, self._send, self._clock, self._held = root, send, clock, held
        self._links: dict[str, Path] = {}  # name -> the link to this file
        self._later: dict[str, None] = {}  # folders to look at once all is sent
        self._known: dict[str, tuple[int, int]] = {}  # files that the other side has -> size and time of change
        self._waiting: dict[str, None] = {}  # names, in order
        self._name = ""  # of the file that is being sent; empty: none
        self._parts: Iterator[Part] = iter(())
        self._state: tuple[int, int] | None = None  # of that file, as its first part was read; None: it was removed
        self._sent = self._confirmed = 0  # bytes of that file
        self._digest = ""  # of that file, once its last part was sent
        self._heard_s = 0.0

    def look(self, folders: Iterable[str]) -> None:
        """Note the changed and the removed files of some folders, to be sent; later, if files are still on their way.

        Files that name other files come after these: manifests, then tags; removed ones come last, in reverse order.
        """
        self._later |= dict.fromkeys(folders)
        if self._later and not (self._name or self._waiting):
            self._look()

    def _look(self) -> None:
        self._release()
        folders, self._later = tuple(self._later), {}
        found: dict[str, tuple[int, int]] = {}
        changed: list[str] = []
        for name, state in (file for folder in folders for file in self._files(folder)):
            found[name] = state
            if self._known.get(name) != state and self._hold(name):
                changed.append(name)
        of_these = tuple(f"{folder}/" for folder in folders)
        gone = [name for name in self._known if name.startswith(of_these) and name not in found]
        self.add([*sorted(changed, key=_order), *sorted(gone, key=_order, reverse=True)])

    def _hold(self, name: str) -> bool:
        """Keep a file until it is sent; return whether it still exists."""
        if self._held is None:
            return True
        link = self._held / str(len(self._links))
        try:
            self._held.mkdir(mode=0o700, exist_ok=True)
            link.hardlink_to(self._root / name)
            self._links[name] = link
        except FileNotFoundError:
            return False
        except OSError:  # this file system has no links, or is full: the file is sent if it still exists
            pass
        return True

    def _place(self, name: str) -> Path:
        return self._links.get(name, self._root / name)

    def add(self, names: Iterable[str]) -> None:
        self._waiting |= dict.fromkeys(name for name in names if name not in self._waiting)

    def add_new(self, name: str) -> None:
        if name not in self._known and self.are_sent([name]):
            self.add([name])

    def are_sent(self, folders: Iterable[str]) -> bool:
        """Return whether the other side has all files that were noted, of some folders, or with these names."""
        names = tuple(folders)
        if any(folder in names for folder in self._later):
            return False
        waiting = [*self._waiting, *([self._name] if self._name else [])]
        return not any(name in names or name.startswith(tuple(f"{one}/" for one in names)) for name in waiting)

    def has_arrived(self, folder: str) -> bool:
        """Return whether the other side has all files of a folder as they are now."""
        return all(self._known.get(name) == state for name, state in self._files(folder))

    def advance(self) -> None:
        """Send what the other side is ready for; call it often."""
        while self._name or self._waiting or self._later:
            if not (self._name or self._waiting):
                self._look()
                continue
            if not self._name:
                self._begin(next(iter(self._waiting)))
                continue
            part = next(self._parts, None) if self._sent - self._confirmed < AHEAD_BYTES else None
            if part is not None:
                self._sent, self._digest = part.at + len(part.content), part.digest
                self._send(part)
            elif self._clock() - self._heard_s > AGAIN_S:
                self._begin(self._name)
            else:
                return

    def _begin(self, name: str) -> None:
        self._waiting.pop(name, None)
        self._name, self._sent, self._confirmed, self._digest, self._heard_s = name, 0, 0, "", self._clock()
        self._state = _state(self._place(name))
        if self._state is not None:
            self._parts = self._read(name)
        elif name in self._known:
            self._parts = iter([Part(name, REMOVED, b"", True)])
        else:  # the other side never had it
            self._name, self._parts = "", iter(())

    def _read(self, name: str) -> Iterator[Part]:
        """Yield the parts of a file; not all if it becomes shorter meanwhile."""
        digest = hashlib.blake2b(digest_size=16)
        with contextlib.suppress(FileNotFoundError), self._place(name).open("rb") as file:
            size, at = os.fstat(file.fileno()).st_size, 0
            while at < size or not at:
                part = file.read(min(PART_BYTES, size - at))
                digest.update(part)
                last = at + len(part) == size
                if not (part or last):
                    return
                yield Part(name, at, part, last, digest.hexdigest() if last else "")
                at += len(part)
                if last:
                    return

    def confirm(self, name: str, size: int, digest: str) -> None:
        """Note that the other side has a file up to a size; with its digest: all of it. See Part."""
        if name != self._name:
            return
        self._heard_s, self._confirmed = self._clock(), max(size, 0)
        if size == REMOVED and self._state is None:
            self._name = ""
            self._known.pop(name, None)
        elif digest and digest == self._digest and self._state is not None:
            self._name = ""
            self._known[name] = self._state

    def note(self, name: str) -> None:
        """Note that a file came from the other side."""
        state = _state(self._root / name)
        if state is not None:
            self._known[name] = state

    def forget(self) -> None:
        """Note that the other side has none of the files, and that nothing is to be sent."""
        self._known.clear()
        self._waiting.clear()
        self._later.clear()
        self._name, self._parts = "", iter(())
        self._release()

    def _release(self) -> None:
        """Remove the links to files that were sent."""
        if self._links and self._held is not None:
            shutil.rmtree(self._held, ignore_errors=True)
        self._links.clear()

    def _files(self, folder: str) -> Iterator[tuple[str, tuple[int, int]]]:
        """Yield name and state of the files in a folder, except those being written; tags first: what they name is there."""
        base = self._root / folder
        for place, folders, files in os.walk(base):
            if Path(place) == base:
                folders[:] = [name for name in folders if not name.startswith(".")]
            folders.sort(key=lambda name: name != "tags")
            for name in files:
                path = Path(place, name)
                if name.startswith(".") or name.endswith(_DRAFT):
                    continue
                if (state := _state(path)) is not None:  # else just replaced
                    yield str(path.relative_to(self._root)), state


def _order(name: str) -> tuple[bool, bool, str]:
    return "/tags/" in name, name.endswith(".json"), name


def _state(path: Path) -> tuple[int, int] | None:
    """Return size and time of change of a file; None: there is none."""
    try:
        stat = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return stat.st_size, stat.st_mtime_ns


def keep_part(root: Path, part: Part) -> int | None:
    """Write a part of a file below a folder; return the bytes of the file so far.

    None: it was dropped, because a part before it is missing, or the digest differs.
    """
    path = root / part.name
    draft = path.with_name(path.name + _DRAFT)
    if part.at == REMOVED:
        path.unlink(missing_ok=True)
        _remove_empty(path.parent, root)
        return REMOVED
    path.parent.mkdir(parents=True, exist_ok=True)
    if part.at and (not draft.exists() or draft.stat().st_size != part.at):
        return None
    with draft.open("ab" if part.at else "wb") as file:
        file.write(part.content)
    if part.last:
        if part.digest and part.digest != _digest(draft):
            draft.unlink()
            return None
        draft.rename(path)
    return part.at + len(part.content)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def _remove_empty(folder: Path, root: Path) -> None:
    """Remove a folder if it is empty, and then those above it, below the root."""
    while folder != root and folder.exists() and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent


def remove_half_sent(root: Path, folders: Iterable[str]) -> None:
    for folder in folders:
        for draft in (root / folder).rglob(f"*{_DRAFT}"):
            draft.unlink(missing_ok=True)
        remove_incomplete(root / folder)


def fetched_log(worker: str, host: str) -> str:
    """Return the name, below the run folder, of the log of a worker that failed on another host."""
    return log_name(f"{worker}@{re.sub('[^A-Za-z0-9_.-]', '_', host)}")


def name_here(name: str, host: str) -> str:
    """Return the name, below the run folder, of a file that an agent sends: workers may have logs from several hosts."""
    folder, _, file = name.partition("/")
    return fetched_log(file.removesuffix(".log"), host) if folder == "logs" else name


class PageWatch:
    """The pages of a host, as last sent.

    Args:
      folder: of a run on this host; see jsrl.transport.ledger.legs.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._sent = folder, dict[str, int]()

    def changed(self) -> dict[str, bytes]:
        """Return LEG/FILE -> content of the changed pages; they count as sent."""
        found = {}
        paths = {f"{path.parent.name}/{path.name}": path for path in (self._folder / LEGS).glob("*/[!.]*")}
        for name, path in (paths | {f"{SAMPLES}/{LEDGER}": ledger_path(self._folder, SAMPLES)}).items():
            with contextlib.suppress(OSError):  # just removed, or there is none
                content = path.read_bytes()
                digest = hash(content)
                if self._sent.get(name) != digest and len(content) == PAGE_BYTES:
                    self._sent[name], found[name] = digest, content
        return found

    def forget(self) -> None:
        self._sent.clear()

    def discard(self) -> None:
        """Delete the pages. Those of an earlier membership would differ from what the run folder has, which counts."""
        shutil.rmtree(self._folder / LEGS, ignore_errors=True)
        ledger_path(self._folder, SAMPLES).unlink(missing_ok=True)
        self.forget()


def keep_pages(folder: Path, pages: Mapping[str, bytes], known: set[str]) -> None:
    """Write the pages of one host to the folder of a run.

    Args:
      known: legs of which this host has sent pages before, or goes on with the counts of an earlier host. For other legs the
        pages of an earlier host are deleted.
    """
    for leg in {name.partition("/")[0] for name in pages}:
        if leg not in known:
            shutil.rmtree(leg_folder(folder, leg), ignore_errors=True)
            known.add(leg)
        leg_folder(folder, leg).mkdir(parents=True, exist_ok=True)
    for name, content in pages.items():
        leg, _, file = name.partition("/")
        path = ledger_path(folder, leg) if file == LEDGER else leg_folder(folder, leg) / file
        try:
            write_atomic(path, content, durable=False)
        except OSError:  # a full disk: the blocks of the old page are there
            with contextlib.suppress(FileNotFoundError), path.open("r+b") as page:
                page.write(content)
