"""Restart budgets, and where a replaced worker resumes."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from jsrl.errors import SnapshotError
from jsrl.experiment import AgentReference, Experiment, SupervisionConfig
from jsrl.launch.supervision import Budget, Supervision, last_committed, lost_text, replacement_job
from jsrl.snapshots.store import SnapshotStore
from jsrl.transport.ledger.page import LEDGER, open_ledger
from jsrl.workers.jobs import Job, StartPoint


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_backoff_doubles_to_its_maximum_and_ends_with_the_budget() -> None:
    budget = Budget(5, 600.0, 0.5, 3.0, Clock())
    assert [budget.take() for _ in range(6)] == [0.5, 1.0, 2.0, 3.0, 3.0, None]


def test_worker_lost_with_its_host_uses_no_restart() -> None:
    supervision = Supervision(Experiment(AgentReference("m:f"), restart=1), Clock())
    job = Job("actor", "actor-0", 0, supervision._experiment, None, (), "", "")  # type: ignore[arg-type]
    assert [supervision.take(job, is_free=True) for _ in range(3)] == [0.25] * 3
    assert [supervision.take(job), supervision.take(job)] == [0.25, None]
    assert supervision.metrics() == {"restarts/actor": 4.0}
    never = dataclasses.replace(job, name="actor-1", restart=0)
    assert supervision.take(never, is_free=True) is None


def test_restarts_before_the_window_do_not_count() -> None:
    clock = Clock()
    budget = Budget(2, 10.0, 0.5, 30.0, clock)
    assert [budget.take(), budget.take(), budget.take()] == [0.5, 1.0, None]
    clock.now_s += 10.5
    assert budget.num_used == 0 and budget.take() == 0.5


def test_budget_and_restart_counts_are_per_kind() -> None:
    e = Experiment(
        AgentReference("m:f"), restart=2, supervision=SupervisionConfig(restarts={"learner": 0, "parameter_server": 1})
    )
    supervision = Supervision(e, Clock())

    def take(kind: str, name: str) -> bool:
        job = Job(kind, name, 0, e, None, (), "", "")  # type: ignore[arg-type]
        return supervision.take(job) is not None

    assert [take("actor", "actor-0") for _ in range(3)] == [True, True, False]
    assert take("actor", "actor-1") and not take("learner", "learner")
    assert [take("parameter-server", "parameter-server") for _ in range(2)] == [True, False]
    assert supervision.metrics() == {"restarts/actor": 3.0, "restarts/parameter_server": 1.0}


def test_restarted_worker_has_a_higher_incarnation(tmp_path: Path) -> None:
    job = Job("actor", "actor-0", 0, None, None, None, "", registry=None, incarnation=4)  # type: ignore[arg-type]
    assert replacement_job(job, tmp_path) == (dataclasses.replace(job, incarnation=5), [])


def test_restarted_learner_resumes_from_the_last_snapshot_in_a_new_epoch(tmp_path: Path) -> None:
    begun, folder = StartPoint(epoch=3, updates=7, restore="elsewhere@best", params_only=True), tmp_path / "snapshots"
    assert last_committed(begun, folder, tmp_path / LEDGER) == (dataclasses.replace(begun, epoch=4), [])
    open_ledger(tmp_path / LEDGER, 5, None)
    assert last_committed(begun, folder, tmp_path / LEDGER)[0].epoch == 6
    store = SnapshotStore(folder)
    for updates in (12, 20):
        store.save(updates, {"state": [0]}, meta={"updates": updates, "epoch": 5}, tags=("latest",), wait=True)
    store.close()
    assert last_committed(begun, folder, tmp_path / LEDGER) == (StartPoint(6, 20, f"{folder}@20"), [])
    damage(folder / "20")
    start_point, broken = last_committed(begun, folder, tmp_path / LEDGER)
    assert start_point == StartPoint(6, 12, f"{folder}@12") and "20" in broken[0]
    damage(folder / "12")
    with pytest.raises(SnapshotError, match="12"):  # it must not begin again from update 0
        last_committed(begun, folder, tmp_path / LEDGER)


@pytest.mark.parametrize(
    ("start", "updates", "text"),
    [
        (
            StartPoint(),
            43,
            "learner continues from update 0, as there is no snapshot yet; at least 43 updates are lost",
        ),
        (StartPoint(2, 40, "folder@40"), 43, "learner continues from update 40; at least 3 updates are lost"),
        (StartPoint(2, 40, "folder@40"), 40, ""),
    ],
)
def test_updates_lost_with_a_learner_are_named(start: StartPoint, updates: int, text: str) -> None:
    job = Job("learner", "learner", 0, None, None, None, "", registry=None, start_point=start)  # type: ignore[arg-type]
    assert lost_text(job, updates) == text
    assert not lost_text(dataclasses.replace(job, kind="replay"), updates)


def damage(snapshot: Path) -> None:
    next(snapshot.glob("manifest*")).write_text("")
