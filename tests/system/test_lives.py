"""The ledger over all sessions of a run: every trajectory is accounted for, however its processes are killed."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from jsrl.services.snapshots.store import SnapshotStore
from jsrl.transport.ledger.legs import read_leg
from jsrl.transport.ledger.page import LEDGER, PageContent, read_page
from jsrl.transport.ledger.reconcile import leg_ledger
from jsrl.types import version_generation
from tests.marks import nightly
from tests.system.launched import FOREVER, Launched

pytestmark = pytest.mark.slow
SNAPSHOTS = ("--snapshots.period-s", "0.5")


def kill_learner(run: Launched) -> None:
    run.workers()["learner"].kill()
    text = run.expect(1, 20.0)
    assert "WorkerDied: learner" in text and "balanced" in text, text


def kill_everything(run: Launched) -> None:
    workers = run.workers()
    os.kill(run.popen.pid, signal.SIGKILL)
    for process in workers.values():
        process.kill()
    run.popen.wait()
    while run.left_processes():
        time.sleep(0.02)


def life_of(run: Launched) -> PageContent:
    """Return the page content of an ended run."""
    life = read_page(run.folder / LEDGER)
    found = read_leg(run.folder)
    assert life is not None and found is not None and found.holds, found
    assert found.produced >= life.ledger.received - 1
    return life


def await_incarnation(run: Launched, after: int) -> PageContent:
    """Wait until the learner of a later generation counts."""

    def begun() -> PageContent | None:
        life = read_page(run.folder / LEDGER)
        return life if life is not None and life.generation > after else None

    return run.until(begun, f"a generation after {after}")


def await_batch(run: Launched, consumed: int) -> None:
    """Wait until more than `consumed` trajectories are consumed."""

    def came() -> bool:
        life = read_page(run.folder / LEDGER)
        return life is not None and life.ledger.consumed > consumed

    run.until(came, "a batch")


def resume(launch, run: Launched, *arguments: str) -> Launched:
    return launch("--resume", str(run.folder), *arguments, experiment="", runs_dir=run.runs_dir)


def snapshot_of(folder: Path) -> dict:
    return SnapshotStore(folder / "snapshots" / "state").meta("latest")


# Nightly: daily, test_supervision kills learners, and the test below covers shared memory.
CASES = [(kill_everything, "zeromq")]
FURTHER = [(kill_learner, "shared-memory"), (kill_learner, "zeromq"), (kill_everything, "shared-memory")]


@pytest.mark.parametrize(("kill", "transport"), [*CASES, *(nightly(*case) for case in FURTHER)])
def test_ledger_continues_over_three_sessions(launch, kill, transport: str) -> None:
    run = launch(*FOREVER, *SNAPSHOTS, "--transport", transport)
    run.await_updates()
    produced = generation = consumed = 0
    for number in range(2):
        await_batch(run, consumed + 10)
        tags = run.folder / "snapshots" / "state" / "tags" / "latest.json"
        run.until(tags.exists, "a snapshot")
        kill(run)
        life, saved = life_of(run), snapshot_of(run.folder)
        ledger = read_leg(run.folder)
        assert ledger is not None and ledger.produced > produced and life.generation >= generation + (number > 0)
        produced, generation, dropped = ledger.produced, life.generation, dict(life.ledger.dropped or {})
        last = number == 1
        target = str((saved["updates"] + 40) * 32) if last else FOREVER[1]
        run = resume(launch, run, "--total-env-steps", target, *SNAPSHOTS)
        begun = await_incarnation(run, generation).ledger
        consumed = begun.consumed
        assert begun.consumed >= saved["ledger"]["trained"]
        gone = (begun.dropped or {})["rolled_back"] - dropped.get("rolled_back", 0)
        assert gone >= life.ledger.consumed - saved["ledger"]["trained"]
    text = run.expect(0, 90.0)
    result = run.result()["ledger"]
    assert "rolled_back" in text and "balanced" in text and "NOT BALANCED" not in text
    found = leg_ledger(result)
    assert found.holds, found  # the next start of any run removes memory that nobody has counted
    assert found.produced > produced and found.in_flight == 0
    final = snapshot_of(run.folder)
    assert 0 <= result["consumed"] - final["ledger"]["trained"] <= 8  # trajectories in batches that were not needed
    assert (
        version_generation(SnapshotStore(run.folder / "snapshots" / "state").versions()[-1])
        == final["generation"]
        == generation + 1
    )


@pytest.mark.nightly
def test_generation_rises_after_a_session_without_a_snapshot(launch) -> None:
    run = launch("--placement", "served")
    run.expect(0, 60.0)
    for expected in (1, 2):
        again = resume(launch, run, *FOREVER, "--snapshots.period-s", "600")
        life = await_incarnation(again, expected - 1)
        assert life.generation == expected
        await_batch(again, life.ledger.consumed)
        kill_everything(again)
        assert snapshot_of(run.folder)["generation"] == 0
    again = resume(launch, run, "--total-env-steps", "1280", "--placement", "serial")
    again.expect(0, 60.0)
    assert snapshot_of(run.folder)["generation"] == 3
    result = run.result()["ledger"]
    trained = snapshot_of(run.folder)["ledger"]["trained"]
    assert trained <= result["consumed"] <= trained + 8 and result["dropped"]["rolled_back"] >= 2
