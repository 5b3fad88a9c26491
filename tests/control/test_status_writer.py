"""The controller's status file in the run folder, and the stop request that it finds there."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from jsrl.agents.ppo import PPOConfig
from jsrl.control import status_writer
from jsrl.control.progress import Progress
from jsrl.control.result import is_finished
from jsrl.control.run_record import RunRecord
from jsrl.errors import RunDeleted
from jsrl.experiment import Experiment
from jsrl.graph.policies import PolicyPart
from jsrl.services.metrics.display import make_display
from jsrl.services.runs.process import ProcessIdentity
from jsrl.services.runs.runs import RunFolder
from jsrl.services.runs.state import STATUS, ask_to_stop, read_result, read_state
from jsrl.tools.report.report import leave_report
from jsrl.transport.ledger.legs import SAMPLES
from jsrl.transport.ledger.reconcile import LegLedger
from jsrl.workers.jobs import StartPoint
from jsrl.workers.kinds import find_kind


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunRecord]:
    monkeypatch.setattr(status_writer, "NEWS_S", 0.0)
    monkeypatch.setattr("jsrl.control.run_record.LOOK_S", 0.0)
    folder = RunFolder.create(tmp_path, "ppo", "x", config={})
    kinds = {"learner": find_kind("learner"), "actor-0": find_kind("actor")}
    record = RunRecord(Experiment(agent=None), folder, make_display("log-only"), kinds=kinds)
    yield record
    record.close()


def test_a_ledger_names_the_host_that_lost_trajectories(record: RunRecord, monkeypatch: pytest.MonkeyPatch):
    lost = LegLedger(produced=8, consumed=3, unknown=5, lost_at={"actor-0.3": 4, "actor-1.0": 1})
    monkeypatch.setattr("jsrl.control.run_record.read_legs", lambda _: {SAMPLES: lost})
    monkeypatch.setattr("jsrl.control.run_record.time.strftime", lambda _: "2026-11-28 14:03")
    record.run.started("actor-0", 3, "n2")
    record.note_end("actor-0", 3)
    record.run.started("actor-0", 4, "n1")  # it was replaced
    (line,) = record.read_ledgers()
    assert line.endswith("balanced except 5 unknown (1 of actor-1; 4 of host n2, 2026-11-28 14:03)")
    assert record.ledger["lost_at"] == {"host n2, 2026-11-28 14:03": 4, "actor-1": 1}


def test_status_file_has_display_values_and_worker_hosts(record: RunRecord):
    record.run.started("actor-0", 3, "far")
    record.stage("actor-0", "ready", 41)
    record.facts("learner", {"updates": 5, "env_steps": 640})
    record.tick()
    found = read_state(record.folder.path).status
    assert found is not None and found.process == ProcessIdentity.own() and found.reason == ""
    (worker,) = found.workers
    assert (worker.name, worker.kind, worker.restarts, worker.host, worker.pid) == ("actor-0", "actor", 3, "far", 41)
    assert status_writer.moment_of(found).env_steps == 640 == record.state().env_steps
    record.end("total_env_steps")
    record.close()
    assert read_state(record.folder.path).status.reason == "total_env_steps"  # type: ignore[union-attr]


@pytest.mark.parametrize("best_at", [3, 295])
def test_status_keeps_the_best_evaluation_however_old(record: RunRecord, best_at: int):
    progress = next(iter(record.run.policies.values()))
    for number in range(300):
        progress.evaluated({"env_steps": number, "return_mean": 500.0 if number == best_at else 0.1 * number})
    record.tick()
    found = read_state(record.folder.path)
    kept = status_writer.moment_of(found.status).evaluations  # type: ignore[arg-type]
    assert len(kept) == status_writer.MAX_EVALUATIONS and kept[-1][0] == 299 and kept == sorted(kept)
    assert max(kept, key=lambda point: point[1]) == (best_at, 500.0)


def test_lines_and_statuses_of_many_workers_come_less_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 1,000 workers one of each takes milliseconds of the controller."""
    now_s, written = 100.0, list[int]()
    monkeypatch.setattr(status_writer.time, "monotonic", lambda: now_s)
    monkeypatch.setattr(status_writer, "write_status", lambda *_: written.append(1))
    for count, period_s in ((500, 2.0), (1_000, 4.0)):
        kinds = {f"actor-{number}": find_kind("actor") for number in range(count)}
        folder = RunFolder.create(tmp_path, "ppo", f"{count}", config={})
        record = RunRecord(Experiment(agent=None), folder, make_display("log-only"), kinds=kinds)
        for worker in kinds:
            record.stage(worker, "ready")
        written.clear()
        lines = []
        for step in range(8):
            lines.append(record.line_due)
            record.tick()
            assert len(written) == 1 + step // 4
            now_s += period_s / 4
        record.close()
        assert lines == [False, False, True, False, True, False, True, False]


def test_a_run_whose_folder_is_deleted_fails(record: RunRecord, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(RunRecord, "line_due", True)
    record.tick()
    shutil.rmtree(record.folder.path)
    for call in (record.tick, record.result):
        with pytest.raises(RunDeleted, match="ppo/x was deleted or moved while the run went on"):
            call()
    record.folder.path.mkdir()  # `rm -r` did not reach the folder itself yet
    record.show(now=True)
    record.run.progress_of("learner").updates = 1
    record._tick()
    record.fail(RunDeleted("the run folder is gone"))
    assert not list(record.folder.path.iterdir()), "a deleted run is written again"
    record.folder.path.rmdir()
    assert not record.folder.path.exists() and leave_report(record.folder, pytest.fail) == ""


def test_a_resume_shows_nothing_of_the_updates_that_are_lost(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "ppo", "lost", config={})
    folder.metrics_path.write_text('{"env_steps": 5632, "updates": 44, "wall_s": 9.0, "evaluator/return_mean": 70.0}\n')
    e = Experiment(PPOConfig(), num_envs=16, rollout_length=8)
    shown = []
    for updates in (20, 44):
        progress = Progress(PolicyPart("policy", "", e, (), ""), StartPoint(updates=updates))
        record = RunRecord(e, folder, make_display("log-only"), policies=[progress])
        shown.append(record.state().metrics.get("evaluator/return_mean"))
        record.display.close()
        record.hub.close()
    assert shown == [None, 70.0]


def test_the_result_counts_the_restarts_of_workers(record: RunRecord) -> None:
    for worker, restarts in (("learner", 1), ("actor-0", 0), ("actor-3", 2)):
        record.run.started(worker, restarts, "")
    result = record.result()
    assert "restarts: learner 1, actor-3 2" in str(result)
    assert read_result(record.folder.path)["restarts"] == {"learner": 1, "actor-3": 2}


def test_full_disk_does_not_end_the_run(record: RunRecord, monkeypatch: pytest.MonkeyPatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(status_writer, "write_status", full)
    record.tick()
    assert record.run.reason is None and not (record.folder.path / STATUS).exists()


def test_a_request_to_this_process_ends_the_run_once(record: RunRecord):
    told = list[str]()
    record.display.message = lambda text, level="info": told.append(text)  # type: ignore[method-assign]
    own = ProcessIdentity.own()
    assert ask_to_stop(record.folder.path, dataclasses.replace(own, started=own.started + 1))  # an earlier process
    record.tick()
    assert not record.stop_asked
    assert ask_to_stop(record.folder.path, own) and not ask_to_stop(record.folder.path, own)
    record.tick()
    record.tick()
    assert record.stop_asked and record.run.reason == "interrupted" and len(told) == 1


def test_result_of_a_run_whose_final_snapshot_was_not_written_says_so(record: RunRecord):
    record.facts("learner", {"updates": 5, "env_steps": 640, "unsaved": "the final snapshot of update 5 failed"})
    record.facts("actor-0", {"env_steps": 640})
    record.end("total_env_steps")
    result = record.result()
    assert result.as_intended and result.unsaved == "learner: the final snapshot of update 5 failed"
    assert not is_finished(record.folder.path)  # a group of runs continues it
    record.facts("learner", {"updates": 5, "env_steps": 640})  # its replacement wrote one
    assert record.result().unsaved == "" and is_finished(record.folder.path)
