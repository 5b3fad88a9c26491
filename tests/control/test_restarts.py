"""How often a worker may be replaced, and where it resumes."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jsrl.control.resume import start_after
from jsrl.control.rules import supervision_of
from jsrl.control.start_points import lost_text, replacement_job
from jsrl.errors import SnapshotError
from jsrl.experiment import AgentReference, Experiment, SupervisionConfig
from jsrl.graph.graph import WorkerNode
from jsrl.services.snapshots.store import SnapshotStore
from jsrl.transport.ledger.page import LEDGER, open_ledger
from jsrl.workers.jobs import Job, JobPlace, StartPoint
from jsrl.workers.kinds import find_kind


def test_restarts_are_those_of_the_worker_its_kind_or_all() -> None:
    e = Experiment(
        AgentReference("m:f"), restart=2, supervision=SupervisionConfig(restarts={"learner": 0, "parameter_server": 1})
    )
    job = Job("actor", "actor-0", 0, e, None, (), JobPlace("", ""))  # type: ignore[arg-type]
    others = [dataclasses.replace(job, kind=kind, name=kind) for kind in ("learner", "parameter-server")]
    jobs = [job, dataclasses.replace(job, name="actor-1"), *others]
    graph = SimpleNamespace(worker=lambda name: WorkerNode(name, name.rstrip("-01"), restart={"actor-1": 5}.get(name)))
    plan: Any = SimpleNamespace(
        experiment=e, jobs=jobs, graph=graph, kinds={job.name: find_kind(job.kind) for job in jobs}
    )
    rules = supervision_of(plan).rules
    assert [rules[job.name].restarts for job in jobs] == [2, 5, 0, 1]
    assert rules["learner"].learns and rules["learner"].must_finish and rules["learner"].saves
    assert rules["actor-0"].ranks == ("actor-0",)


def test_restarted_worker_has_a_higher_incarnation(tmp_path: Path) -> None:
    job = Job("actor", "actor-0", 0, None, None, None, JobPlace("", ""), incarnation=4)  # type: ignore[arg-type]
    assert replacement_job(job, 5, tmp_path) == (dataclasses.replace(job, incarnation=5), [])


def test_restarted_learner_resumes_from_the_last_snapshot_in_a_new_generation(tmp_path: Path) -> None:
    begun, folder = (
        StartPoint(generation=3, updates=7, restore="elsewhere@best", params_only=True),
        tmp_path / "snapshots",
    )
    store = SnapshotStore(folder)
    assert start_after(store, tmp_path / LEDGER, begun) == (dataclasses.replace(begun, generation=4), [])
    open_ledger(tmp_path / LEDGER, 5, None)
    assert start_after(store, tmp_path / LEDGER, begun)[0].generation == 6
    for updates in (12, 20):
        store.save(updates, {"state": [0]}, meta={"updates": updates, "generation": 5}, tags=("latest",), wait=True)
    store.close()
    assert start_after(store, tmp_path / LEDGER, begun) == (StartPoint(6, 20, f"{folder}@20"), [])
    damage(folder / "20")
    start_point, broken = start_after(store, tmp_path / LEDGER, begun)
    assert start_point == StartPoint(6, 12, f"{folder}@12") and "20" in broken[0]
    damage(folder / "12")
    with pytest.raises(SnapshotError, match="12"):  # it must not begin again from update 0
        start_after(store, tmp_path / LEDGER, begun)


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
    job = Job("learner", "learner", 0, None, None, None, JobPlace("", ""), start_point=start)  # type: ignore[arg-type]
    assert lost_text(job, updates) == text
    assert not lost_text(dataclasses.replace(job, kind="replay"), updates)


def damage(snapshot: Path) -> None:
    next(snapshot.glob("manifest*")).write_text("")
