"""A consumer's ledger that outlives its process: one page of a file in the run folder, mapped and updated in place.

    word 0  file type              1  format       2  generation of the learner that counts in it
    word 3  received               4  consumed     5  number of reasons for dropping
    word 6  carried: trajectories of earlier incarnations that are in no connection's page
    word 7  connections joined     8  held: trajectories in the queue when last counted
    word 9  1 while a trajectory's counts change           10  incarnations killed at such a moment
    from byte 128: per reason its name (32 bytes) and count

Every change is one aligned store. Between the stores for one trajectory word 9 is 1, so an incarnation that is killed
then is wrong by at most one trajectory. Each incarnation of a learner writes a new file with a higher generation and renames
it over the old one: an incarnation that only seemed dead continues to count in a file that is not read. Where the disk has
no space for a new file, it goes on in the old one, whose blocks it has.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jsrl.errors import SnapshotError
from jsrl.plain_files import read_plain
from jsrl.transport.base import Ledger
from jsrl.transport.ledger.leg_page import new_page, pages_in, write_page

LEDGER = "ledger"  # name of the page in a run folder
_MAGIC, _FORMAT = 0x4A53524C4C454447, 2
_PAGE_BYTES, _REASONS_AT, _NAME_BYTES, _REASON_BYTES = 4096, 128, 32, 40
_MAX_REASONS = (_PAGE_BYTES - _REASONS_AT) // _REASON_BYTES
_GENERATION, _RECEIVED, _CONSUMED, _REASONS, _CARRIED, _JOINED, _HELD, _CHANGING, _UNCERTAIN = range(2, 11)


class PageContent(NamedTuple):
    """Content of a page.

    Attributes:
      generation: of the learner that counted last. ledger: counts over all incarnations. carried: counts at the ledger's start
        that are in no connection's page. joined: connections. uncertain: incarnations that may be wrong by one
        trajectory.
    """

    generation: int
    ledger: Ledger
    carried: int = 0
    joined: int = 0
    uncertain: int = 0


class PersistedLedger(Ledger):
    """A ledger that writes every change to its page at once; made by `open_ledger`."""

    def __init__(self, before: Ledger, page: Any) -> None:
        super().__init__(before.received, before.consumed, dict(before.dropped or {}), before.in_flight)
        self._words = memoryview(page).cast("q")
        self._page = page
        self._places = {reason: place for place, reason in enumerate(self.dropped or {})}

    def join(self) -> None:
        self._words[_JOINED] += 1

    def mark(self, changing: bool) -> None:
        self._words[_CHANGING] = changing

    def arrive(self) -> None:
        super().arrive()
        self._words[_RECEIVED] = self.received

    def hold(self, count: int) -> None:
        super().hold(count)
        self._words[_HELD] = count

    def finish(self, outcome: str, count: int = 1) -> None:
        super().finish(outcome, count)
        if outcome == "consumed":
            self._words[_CONSUMED] = self.consumed

    def drop(self, reason: str, count: int = 1) -> None:
        super().drop(reason, count)
        assert self.dropped is not None
        if reason not in self._places:
            self._places[reason] = len(self._places)
            _name_reason(self._page, self._places[reason], reason)
            self._words[_REASONS] = len(self._places)
        self._words[_count_word(self._places[reason])] = self.dropped[reason]


def open_ledger(
    path: Path, min_generation: int, saved: dict[str, Any] | None, *, leg: Path | None = None, rolls_back: bool = True
) -> tuple[int, PersistedLedger]:
    """Return (the generation of a consumer that starts now, its ledger), both written to disk.

    Args:
      path: of the page. min_generation: the generation is at least this, and higher than every earlier one.
      saved: ledger of the restored snapshot: counts, `trained` and `generation`; None: start over.
      leg: folder of the connections' pages. They are deleted if the snapshot is newer than the page.
      rolls_back: what was consumed after the snapshot is lost. A replay worker's insertions are kept.

    Raises:
      OSError: the page can be written neither to a new file nor in place. Nothing may be trained then: it would be missing
        in the run's ledger.
    """
    last = read_page(path)
    generation = min_generation if last is None else max(min_generation, last.generation + 1)
    ledger = continued(last, saved, rolls_back=rolls_back)
    if last is None or _has_more_counts(saved, last):
        for page_path in pages_in(leg) if leg is not None else ():
            page_path.unlink(missing_ok=True)
        last = PageContent(generation, ledger, carried=ledger.received)
    content = _page_of(last._replace(generation=generation, ledger=ledger))
    try:
        return generation, PersistedLedger(ledger, new_page(path, content, durable=True))
    except OSError:
        if not path.exists():
            raise
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    return generation, PersistedLedger(ledger, write_page(descriptor, content, durable=True))


def continued(last: PageContent | None, saved: dict[str, Any] | None, *, rolls_back: bool = True) -> Ledger:
    """Return the ledger at the start of an incarnation.

    What was consumed after the snapshot is `rolled_back`: no params contain it any more. What was in the queue of the dead
    incarnation, when last counted, is `lost`. The page's counts take precedence over the snapshot's, unless it is older
    than the snapshot (power failure, or the page was deleted). Counts of a snapshot's own incarnation may be compared one by
    one, those of different incarnations may not: each resume turned some consumed trajectories into dropped ones.

    Args:
      last: of the page, None where there is none. saved: of the snapshot with its generation, None for a fresh state.
    """
    known = [last.ledger] if last is not None and (saved is None or last.generation >= saved["generation"]) else []
    held = known[0].in_flight if known else 0
    if saved is not None and (last is None or last.generation <= saved["generation"]):
        known.append(_ledger_of(saved))
    consumed = max((ledger.consumed for ledger in known), default=0)
    dropped: dict[str, int] = {}
    for ledger in known:
        for reason, count in (ledger.dropped or {}).items():
            dropped[reason] = max(count, dropped.get(reason, 0))
    trained = min(int(saved["trained"]), consumed) if saved else 0
    started = Ledger(0, trained if rolls_back else consumed, dropped)
    for reason, count in (("rolled_back", consumed - started.consumed), ("lost", held)):
        if count > 0:
            started.drop(reason, count)
    started.received = started.consumed + sum((started.dropped or {}).values())
    return started


def _has_more_counts(saved: dict[str, Any] | None, last: PageContent) -> bool:
    """Return whether a snapshot has counts that are missing in the page."""
    if saved is None or saved["generation"] < last.generation:
        return False
    there, page = _ledger_of(saved), last.ledger
    dropped = page.dropped or {}
    more = any(count > dropped.get(reason, 0) for reason, count in (there.dropped or {}).items())
    return saved["generation"] > last.generation or there.consumed > page.consumed or more


def read_page(path: Path) -> PageContent | None:
    """Return the content of a page, None if there is none. Exact once its consumer has ended, even if it was killed."""
    try:
        page = read_plain(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:
        raise SnapshotError(f"{error}, so it is not a ledger of jsrl; delete it.") from None
    words = np.frombuffer(page, np.int64) if len(page) == _PAGE_BYTES else np.zeros(16, np.int64)
    if (words[0], words[1]) != (_MAGIC, _FORMAT) or not 0 <= words[_REASONS] <= _MAX_REASONS:
        raise SnapshotError(
            f"{path} is not a ledger of jsrl ({len(page)} bytes, format {words[1]}, expected {_PAGE_BYTES} bytes of "
            f"format {_FORMAT}). Delete it to resume without the counts of earlier sessions."
        )
    ledger = Ledger(int(words[_RECEIVED]), int(words[_CONSUMED]), {}, int(words[_HELD]))
    for place in range(int(words[_REASONS])):
        start = _REASONS_AT + place * _REASON_BYTES
        reason = page[start : start + _NAME_BYTES].rstrip(b"\0").decode(errors="replace")
        ledger.drop(reason, int(words[_count_word(place)]))
    uncertain = int(words[_UNCERTAIN] + words[_CHANGING])
    return PageContent(int(words[_GENERATION]), ledger, int(words[_CARRIED]), int(words[_JOINED]), uncertain)


def _page_of(content: PageContent) -> bytes:
    page, ledger = bytearray(_PAGE_BYTES), content.ledger
    words = np.frombuffer(page, np.int64)
    words[:6] = _MAGIC, _FORMAT, content.generation, ledger.received, ledger.consumed, len(ledger.dropped or {})
    words[_CARRIED], words[_JOINED], words[_UNCERTAIN] = content.carried, content.joined, content.uncertain
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
    return Ledger(0, int(saved["consumed"]), {k: int(n) for k, n in saved["dropped"].items()})
