"""A ledger that outlives its process: one page of a file in the run folder, mapped and counted in place.

    word 0  what this file is      1  format       2  epoch of the learner that counts in it
    word 3  produced               4  consumed     5  how many reasons for dropping follow
    from byte 64: per reason its name (32 bytes) and count

Every change is one aligned store, and what is in flight is what the counts leave over, so a page balances whenever its
writer is killed. Each life of a learner writes a new file with a higher epoch and renames it over the old one: a life
that only seemed dead counts on in a file that nobody reads.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jsrl.errors import SnapshotError
from jsrl.transport.base import Ledger

LEDGER = "ledger"  # name of the page in a run folder
_MAGIC, _FORMAT = 0x4A53524C4C454447, 1
_PAGE_BYTES, _REASONS_AT, _NAME_BYTES, _REASON_BYTES = 4096, 64, 32, 40
_MAX_REASONS = (_PAGE_BYTES - _REASONS_AT) // _REASON_BYTES
_EPOCH, _PRODUCED, _CONSUMED, _REASONS = 2, 3, 4, 5


class Life(NamedTuple):
    """What a page tells: the epoch of the learner that counted last, and its counts over all lives."""

    epoch: int
    ledger: Ledger


class KeptLedger(Ledger):
    """A ledger whose every change is in its page at once; `begin_life` makes one."""

    def __init__(self, before: Ledger, page: Any) -> None:
        super().__init__(before.produced, before.consumed, dict(before.dropped or {}), before.in_flight)
        self._words = np.frombuffer(page, np.int64)
        self._page = page
        self._places = {reason: place for place, reason in enumerate(self.dropped or {})}

    def arrive(self) -> None:
        """Count one trajectory as produced."""
        super().arrive()
        self._words[_PRODUCED] = self.produced

    def settle(self, outcome: str, count: int = 1) -> None:
        """Count what became of `count` trajectories in flight."""
        super().settle(outcome, count)
        if outcome == "consumed":
            self._words[_CONSUMED] = self.consumed

    def drop(self, reason: str, count: int = 1) -> None:
        """Count `count` trajectories as dropped for `reason`."""
        super().drop(reason, count)
        assert self.dropped is not None
        if reason not in self._places:
            self._places[reason] = len(self._places)
            _name_reason(self._page, self._places[reason], reason)
            self._words[_REASONS] = len(self._places)
        self._words[_count_word(self._places[reason])] = self.dropped[reason]


def begin_life(path: Path, least_epoch: int, saved: dict[str, Any] | None) -> tuple[int, KeptLedger]:
    """Return (the epoch of a learner that starts now, the ledger it goes on with), both on the disk.

    Args:
      path: of the page. least_epoch: the epoch is at least this, and higher than that of every life before.
      saved: ledger of the snapshot that the learner begins with: counts, `trained` and `epoch`; None: it begins anew.

    Raises:
      OSError: the page cannot be written.
    """
    last = read_page(path)
    epoch = least_epoch if last is None else max(least_epoch, last.epoch + 1)
    ledger = continued(last, saved)
    draft = path.with_name(f".{path.name}.{os.getpid()}.draft")
    descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, _page_of(epoch, ledger))
        os.fsync(descriptor)
        page = mmap.mmap(descriptor, _PAGE_BYTES)
    finally:
        os.close(descriptor)
    os.replace(draft, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return epoch, KeptLedger(ledger, page)


def continued(last: Life | None, saved: dict[str, Any] | None) -> Ledger:
    """Return the ledger that a life begins with.

    What earlier lives consumed after the snapshot is `rolled_back`: no params hold it any more. What was in flight as a
    life ended without closing is `lost`. The page's counts go before the snapshot's, unless it is older than the snapshot
    (the machine lost its power, or the page was deleted). Counts of a snapshot's own life may be compared one by one, those
    of different lives may not: each resume has turned some of what was consumed into what was dropped.

    Args:
      last: of the page, None where there is none. saved: of the snapshot with its epoch, None for a fresh state.
    """
    known = [last.ledger] if last is not None and (saved is None or last.epoch >= saved["epoch"]) else []
    if saved is not None and (last is None or last.epoch <= saved["epoch"]):
        known.append(_ledger_of(saved))
    produced = max((ledger.produced for ledger in known), default=0)
    consumed = max((ledger.consumed for ledger in known), default=0)
    dropped: dict[str, int] = {}
    for ledger in known:
        for reason, count in (ledger.dropped or {}).items():
            dropped[reason] = max(count, dropped.get(reason, 0))
    trained = min(int(saved["trained"]), consumed) if saved else 0
    begun = Ledger(produced, trained, dropped)
    lost = produced - consumed - sum(dropped.values())
    for reason, count in (("rolled_back", consumed - trained), ("lost", lost)):
        if count > 0:
            begun.drop(reason, count)
    return begun


def read_page(path: Path) -> Life | None:
    """Return what a page tells, None where there is no page. Exact once its learner has ended, whichever way.

    Raises:
      SnapshotError: the file is not such a page.
    """
    try:
        page = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    words = np.frombuffer(page, np.int64) if len(page) == _PAGE_BYTES else np.zeros(8, np.int64)
    if (words[0], words[1]) != (_MAGIC, _FORMAT) or not 0 <= words[_REASONS] <= _MAX_REASONS:
        raise SnapshotError(
            f"{path} is not a ledger of jsrl ({len(page)} bytes, format {words[1]}, expected {_PAGE_BYTES} bytes of "
            f"format {_FORMAT}). Delete it to resume without the counts of earlier lives."
        )
    ledger = Ledger(int(words[_PRODUCED]), int(words[_CONSUMED]), {})
    for place in range(int(words[_REASONS])):
        start = _REASONS_AT + place * _REASON_BYTES
        reason = page[start : start + _NAME_BYTES].rstrip(b"\0").decode(errors="replace")
        ledger.drop(reason, int(words[_count_word(place)]))
    ledger.in_flight = ledger.produced - ledger.consumed - sum((ledger.dropped or {}).values())
    return Life(int(words[_EPOCH]), ledger)


def _page_of(epoch: int, ledger: Ledger) -> bytes:
    page = bytearray(_PAGE_BYTES)
    words = np.frombuffer(page, np.int64)
    words[:6] = _MAGIC, _FORMAT, epoch, ledger.produced, ledger.consumed, len(ledger.dropped or {})
    for place, (reason, count) in enumerate((ledger.dropped or {}).items()):
        _name_reason(page, place, reason)
        words[_count_word(place)] = count
    return bytes(page)


def _name_reason(page: Any, place: int, reason: str) -> None:
    name = reason.encode()
    if len(name) > _NAME_BYTES or place >= _MAX_REASONS:
        raise ValueError(f"reason {reason!r} does not fit: {_MAX_REASONS} of at most {_NAME_BYTES} bytes do.")
    start = _REASONS_AT + place * _REASON_BYTES
    page[start : start + _NAME_BYTES] = name.ljust(_NAME_BYTES, b"\0")


def _count_word(place: int) -> int:
    return (_REASONS_AT + place * _REASON_BYTES + _NAME_BYTES) // 8


def _ledger_of(saved: dict[str, Any]) -> Ledger:
    return Ledger(int(saved["produced"]), int(saved["consumed"]), {k: int(n) for k, n in saved["dropped"].items()})
