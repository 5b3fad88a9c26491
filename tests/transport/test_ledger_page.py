"""A consumer's ledger over all its incarnations: kept in a file, off by at most one when its writer is killed."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from jsrl.errors import SnapshotError
from jsrl.transport.base import Ledger
from jsrl.transport.ledger.page import PageContent, continued, open_ledger, read_page

_COUNTING = """
import sys
from pathlib import Path
from jsrl.transport.ledger.page import open_ledger
_, ledger = open_ledger(Path(sys.argv[1]), 0, None)
print("counting", flush=True)
reasons = ["consumed", "stale", "consumed", "rolled_back", "core_lost"]
number = held = 0

def arrive():
    global held
    ledger.mark(True)
    ledger.arrive()
    held += 1
    ledger.hold(held)
    ledger.mark(False)

def finish(outcome):
    global held
    ledger.mark(True)
    ledger.finish(outcome)
    held -= 1
    ledger.hold(held)
    ledger.mark(False)

while True:
    arrive()
    arrive()
    finish(reasons[number % 5])
    if number % 3:
        finish(f"reason-{number % 40}")
    number += 1
"""


def saved(received: int, consumed: int, trained: int, generation: int = 0, **dropped: int) -> dict:
    counts = {"received": received, "consumed": consumed, "dropped": dropped, "in_flight": 0}
    return counts | {"trained": trained, "generation": generation}


def unaccounted(life: PageContent) -> int:
    ledger = life.ledger
    return ledger.received - ledger.consumed - sum((ledger.dropped or {}).values()) - ledger.in_flight


def test_counts_are_read_back_at_once(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    assert read_page(path) is None
    generation, ledger = open_ledger(path, 0, None)
    for _ in range(5):
        ledger.arrive()
    ledger.finish("consumed")
    ledger.finish("stale")
    ledger.finish("closed", 2)
    ledger.hold(1)
    life = read_page(path)
    assert life is not None and life.generation == generation == 0
    assert life.ledger.counts == ledger.counts
    assert life.ledger.counts == {"received": 5, "consumed": 1, "in_flight": 1, "dropped": {"stale": 1, "closed": 2}}
    assert life.ledger.balanced


def test_generation_rises_with_every_start_even_without_a_snapshot(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    generations = [open_ledger(path, least, None)[0] for least in (0, 0, 0, 7, 2)]
    assert generations == [0, 1, 2, 7, 8]


def test_replaced_but_living_writer_does_not_touch_the_new_page(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    _, older = open_ledger(path, 0, None)
    older.arrive()
    generation, newer = open_ledger(path, 0, None)
    older.arrive()
    older.finish("consumed")
    newer.arrive()
    newer.hold(1)
    life = read_page(path)
    assert life is not None and life.generation == generation == 1
    assert life.ledger == Ledger(1, 0, {}, 1)  # the queue of the older one was not read


@pytest.mark.parametrize(
    ("generation", "last", "snapshot", "expected"),
    [
        (0, None, None, Ledger(0, 0, {})),
        # all of an incarnation without a snapshot is rolled back; what was in flight is lost
        (0, Ledger(9, 6, {"stale": 1}, 2), None, Ledger(9, 0, {"stale": 1, "rolled_back": 6, "lost": 2})),
        # 10 of 16 consumed are in the snapshot
        (0, Ledger(20, 16, {}, 4), saved(12, 11, 10), Ledger(20, 10, {"rolled_back": 6, "lost": 4})),
        # a later incarnation resumes from the same snapshot again: rolled back adds up
        (
            1,
            Ledger(30, 17, {"rolled_back": 6, "lost": 4}, 3),
            saved(12, 11, 10),
            Ledger(30, 10, {"rolled_back": 13, "lost": 7}),
        ),
        # and once more, by one that consumed nothing: rows are not rolled back twice
        (1, Ledger(20, 10, {"rolled_back": 6, "lost": 4}), saved(12, 11, 10), Ledger(20, 10, {"rolled_back": 6, "lost": 4})),
        # a page from before jsrl kept one, or a missing one: only the snapshot's counts exist
        (0, None, saved(12, 11, 10, stale=1), Ledger(12, 10, {"stale": 1, "rolled_back": 1})),
        # a page restored from a copy of the run folder: the snapshot is newer
        (1, Ledger(9, 9, {"rolled_back": 0}), saved(12, 7, 7, 2, rolled_back=5), Ledger(12, 7, {"rolled_back": 5})),
        # a power failure lost the page's last minutes: no count is below the snapshot's
        (3, Ledger(4, 4, {}), saved(12, 10, 10, 3, stale=2), Ledger(12, 10, {"stale": 2})),
    ],
)  # fmt: skip
def test_next_start_reads_counts_from_page_or_snapshot(
    generation: int, last: Ledger | None, snapshot: dict | None, expected: Ledger
) -> None:
    started = continued(None if last is None else PageContent(generation, last), snapshot)
    assert started == expected
    assert started.balanced


def test_many_restarts_balance_and_lose_no_trajectory(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    snapshot = None
    produced = 0
    for life in range(12):
        generation, ledger = open_ledger(path, 0, snapshot)
        trained = snapshot["trained"] if snapshot else 0
        for step in range(5 + 7 * life % 11):
            ledger.arrive()
            produced += 1
            if step % 2:
                ledger.finish("consumed")
                trained += 1
            ledger.hold(step + 1 - (step + 1) // 2)
            if step % 5 == 4 and life % 3:
                snapshot = ledger.counts | {"trained": trained, "generation": generation}
    life_now = read_page(path)
    assert life_now is not None and life_now.ledger.received == produced and life_now.ledger.balanced
    assert life_now.carried == 0
    assert life_now.generation == 11


def test_a_page_is_off_by_at_most_one_whenever_its_writer_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    process = subprocess.Popen([sys.executable, "-c", _COUNTING, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "counting\n"
    received = 0
    for _ in range(20):
        time.sleep(0.005)
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        life = read_page(path)
        assert life is not None and abs(unaccounted(life)) <= life.uncertain <= 1
        assert life.ledger.in_flight >= 0 and life.ledger.received >= received
        received = life.ledger.received
        process.send_signal(signal.SIGCONT)
    process.kill()
    process.wait()
    process.stdout.close()
    life = read_page(path)
    assert life is not None and life.ledger.received > 0 and abs(unaccounted(life)) <= life.uncertain <= 1
    _, ledger = open_ledger(path, 0, saved(2, 1, 1))
    assert ledger.balanced and ledger.consumed == 1 and ledger.dropped is not None
    assert ledger.received == life.ledger.received - unaccounted(life)
    assert ledger.dropped["lost"] == life.ledger.in_flight
    after = read_page(path)
    assert after is not None and after.uncertain == life.uncertain


@pytest.mark.parametrize("content", [b"", b"x" * 4096, b"{}", bytes(4096), b"x" * 10_000])
def test_invalid_page_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "ledger"
    path.write_bytes(content)
    with pytest.raises(SnapshotError, match="not a ledger of jsrl"):
        read_page(path)


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """A function from whose call on no new file can be completed."""

    def no_space(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    return lambda: monkeypatch.setattr(os, "replace", no_space)


def test_full_disk_leaves_the_next_incarnation_the_old_page(tmp_path: Path, full_disk: Callable[[], None]) -> None:
    path = tmp_path / "ledger"
    _, older = open_ledger(path, 0, None)
    for _ in range(5):
        older.arrive()
        older.finish("consumed")
    full_disk()
    generation, newer = open_ledger(path, 0, saved(3, 3, 3))
    newer.arrive()
    newer.finish("consumed")
    content = read_page(path)
    assert content is not None and content.generation == generation == 1
    assert content.ledger.counts == newer.counts == Ledger(6, 4, {"rolled_back": 2}).counts
    assert [file.name for file in tmp_path.iterdir()] == ["ledger"]


def test_full_disk_is_an_error_where_there_is_no_page(tmp_path: Path, full_disk: Callable[[], None]) -> None:
    full_disk()
    with pytest.raises(OSError, match="No space left"):
        open_ledger(tmp_path / "ledger", 0, None)
