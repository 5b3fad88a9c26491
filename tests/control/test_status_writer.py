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
from jsrl.control.session import Session
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
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    monkeypatch.setattr(status_writer, "NEWS_S", 0.0)
    monkeypatch.setattr("jsrl.control.session.LOOK_S", 0.0)
    folder = RunFolder.create(tmp_path, "ppo", "x", config={})
    kinds = {"learner": find_kind("learner"), "actor-0": find_kind("actor")}
    session = Session(Experiment(agent=None), folder, make_display("log-only"), kinds=kinds)
    yield session
    session.close()


def test_a_ledger_names_the_host_that_lost_trajectories(session: Session, monkeypatch: pytest.MonkeyPatch):
    lost = LegLedger(produced=8, consumed=3, unknown=5, lost_at={"actor-0.3": 4, "actor-1.0": 1})
    monkeypatch.setattr("jsrl.control.session.read_legs", lambda _: {SAMPLES: lost})
    monkeypatch.setattr("jsrl.control.session.time.strftime", lambda _: "2026-11-28 14:03")
    session.run.started("actor-0", 3, "n2")
    session.note_end("actor-0", 3)
    session.run.started("actor-0", 4, "n1")  # it was replaced
    (line,) = session.read_ledgers()
    assert line.endswith("balanced except 5 unknown (1 of actor-1; 4 of host n2, 2026-11-28 14:03)")
    assert session.ledger["lost_at"] == {"host n2, 2026-11-28 14:03": 4, "actor-1": 1}


def test_status_file_has_display_values_and_worker_hosts(session: Session):
    session.run.started("actor-0", 3, "far")
    session.stage("actor-0", "ready", 41)
    session.facts("learner", {"updates": 5, "env_steps": 640})
    session.tick()
    found = read_state(session.folder.path).status
    assert found is not None and found.process == ProcessIdentity.own() and found.reason == ""
    (worker,) = found.workers
    assert (worker.name, worker.kind, worker.restarts, worker.host, worker.pid) == ("actor-0", "actor", 3, "far", 41)
    assert status_writer.moment_of(found).env_steps == 640 == session.state().env_steps
    session.end("total_env_steps")
    session.close()
    assert read_state(session.folder.path).status.reason == "total_env_steps"  # type: ignore[union-attr]


@pytest.mark.parametrize("best_at", [3, 295])
def test_status_keeps_the_best_evaluation_however_old(session: Session, best_at: int):
    progress = next(iter(session.run.policies.values()))
    for number in range(300):
        progress.evaluated({"env_steps": number, "return_mean": 500.0 if number == best_at else 0.1 * number})
    session.tick()
    found = read_state(session.folder.path)
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
        session = Session(Experiment(agent=None), folder, make_display("log-only"), kinds=kinds)
        for worker in kinds:
            session.stage(worker, "ready")
        written.clear()
        lines = []
        for step in range(8):
            lines.append(session.line_due)
            session.tick()
            assert len(written) == 1 + step // 4
            now_s += period_s / 4
        session.close()
        assert lines == [False, False, True, False, True, False, True, False]


def test_a_run_whose_folder_is_deleted_fails(session: Session, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Session, "line_due", True)
    session.tick()
    shutil.rmtree(session.folder.path)
    for call in (session.tick, session.result):
        with pytest.raises(RunDeleted, match="ppo/x was deleted or moved while the run went on"):
            call()
    session.folder.path.mkdir()  # `rm -r` did not reach the folder itself yet
    session.show(now=True)
    session.run.progress_of("learner").updates = 1
    session._tick()
    session.fail(RunDeleted("the run folder is gone"))
    assert not list(session.folder.path.iterdir()), "a deleted run is written again"
    session.folder.path.rmdir()
    assert not session.folder.path.exists() and leave_report(session.folder, pytest.fail) == ""


def test_a_resume_shows_nothing_of_the_updates_that_are_lost(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "ppo", "lost", config={})
    folder.metrics_path.write_text('{"env_steps": 5632, "updates": 44, "wall_s": 9.0, "evaluator/return_mean": 70.0}\n')
    e = Experiment(PPOConfig(), num_envs=16, rollout_length=8)
    shown = []
    for updates in (20, 44):
        progress = Progress(PolicyPart("policy", "", e, (), ""), StartPoint(updates=updates))
        session = Session(e, folder, make_display("log-only"), policies=[progress])
        shown.append(session.state().metrics.get("evaluator/return_mean"))
        session.display.close()
        session.hub.close()
    assert shown == [None, 70.0]


def test_the_result_counts_the_restarts_of_workers(session: Session) -> None:
    for worker, restarts in (("learner", 1), ("actor-0", 0), ("actor-3", 2)):
        session.run.started(worker, restarts, "")
    result = session.result()
    assert "restarts: learner 1, actor-3 2" in str(result)
    assert read_result(session.folder.path)["restarts"] == {"learner": 1, "actor-3": 2}


def test_full_disk_does_not_end_the_run(session: Session, monkeypatch: pytest.MonkeyPatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(status_writer, "write_status", full)
    session.tick()
    assert session.run.reason is None and not (session.folder.path / STATUS).exists()


def test_a_request_to_this_process_ends_the_run_once(session: Session):
    told = list[str]()
    session.display.message = lambda text, level="info": told.append(text)  # type: ignore[method-assign]
    own = ProcessIdentity.own()
    assert ask_to_stop(session.folder.path, dataclasses.replace(own, started=own.started + 1))  # an earlier process
    session.tick()
    assert not session.stop_asked
    assert ask_to_stop(session.folder.path, own) and not ask_to_stop(session.folder.path, own)
    session.tick()
    session.tick()
    assert session.stop_asked and session.run.reason == "interrupted" and len(told) == 1


def test_result_of_a_run_whose_final_snapshot_was_not_written_says_so(session: Session):
    session.facts("learner", {"updates": 5, "env_steps": 640, "unsaved": "the final snapshot of update 5 failed"})
    session.facts("actor-0", {"env_steps": 640})
    session.end("total_env_steps")
    result = session.result()
    assert result.as_intended and result.unsaved == "learner: the final snapshot of update 5 failed"
    assert not is_finished(session.folder.path)  # a group of runs continues it
    session.facts("learner", {"updates": 5, "env_steps": 640})  # its replacement wrote one
    assert session.result().unsaved == "" and is_finished(session.folder.path)
