"""`jsrl status`: its output for runs in every state, from their folders only."""

from __future__ import annotations

import json
import os
import shlex
import time
from pathlib import Path

import msgspec
import pytest

from jsrl.cli import main, status
from jsrl.control.resume import claimed
from jsrl.control.status_writer import StatusWriter
from jsrl.services.metrics.display_state import DisplayState
from jsrl.services.runs.runs import RunFolder
from jsrl.services.runs.state import RUNNING, WorkerSummary
from jsrl.tools.report.rows import row_of

WORKERS = (
    WorkerSummary("learner", "learner", "ready"),
    WorkerSummary("actor-0", "actor", "ready", host="b", pid=41),
    WorkerSummary("actor-1", "actor", "restarting", 65.0, 2, "c", 42),
)
MOMENT = DisplayState(
    run="ppo/x", env_steps=5000, updates=40, total_env_steps=20_000, metrics={"learner/loss": float("nan")},
    evaluations=[(2000, 30.0), (4000, 20.0)],
)  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    monkeypatch.chdir(tmp_path)
    return RunFolder.create(
        "runs", "ppo", "x", config={"fields": {"total_env_steps": 20_000, "env": {"fields": {"id": "CartPole-v1"}}}}
    )


def tell(folder: RunFolder, reason: str = "") -> None:
    StatusWriter(folder.path).update(MOMENT, lambda: WORKERS, reason)


def output_of(*words: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main.main(["status", *words]) == 0
    return capsys.readouterr().out


def add_snapshot(folder: RunFolder) -> None:
    tags = folder.snapshots / "state" / "tags"
    tags.mkdir(parents=True)
    (tags / "latest.json").write_text("{}")


def add_best(folder: RunFolder, score: float) -> None:
    tags = folder.snapshots / "params" / "tags"
    tags.mkdir(parents=True)
    meta = {"return_mean": score, "return_ci95": 2.0, "episodes": 8, "env_steps": 3000, "version_updates": 24}
    (tags / "best.json").write_text(json.dumps({"version": 24, "digest": "", "wall_time_s": 0.0, "meta": meta}))


def test_status_of_a_running_run(folder: RunFolder, capsys):
    add_snapshot(folder)
    add_best(folder, 30.0)
    with claimed(folder):
        assert "ppo/x on CartPole-v1: starting, process" in output_of("x", capsys=capsys)
        tell(folder)
        text = output_of("x", capsys=capsys)
        facts = json.loads(output_of("x", "--json", capsys=capsys))
    assert text.startswith("ppo/x on CartPole-v1: running since 20") and f"process {os.getpid()} on " in text
    assert "5000 of 20.0k (25%) env steps, 40 updates" in text
    assert "\n  evaluation: return 20 at 4000 env steps\n" in text
    assert (
        "\n  best: return 30.0 ± 2.0 (95% CI, 8 greedy episodes) at 3,000 env steps, the highest of its evaluations\n"
        f"  to play the best: jsrl evaluate {folder.path}@best\n" in text
    )
    assert facts["best"]["return_mean"] == 30.0
    assert "actor 2 (b 1, c 1), pid 41 42, 2 restarts, actor-1 restarting for 1:05" in text and "learner 1;" in text
    assert "jsrl status ppo/x --follow | jsrl logs ppo/x | jsrl stop ppo/x" in text and "to continue" not in text
    assert facts["state"] == "running" and facts["pid"] == os.getpid() and facts["env_steps"] == 5000
    assert facts["workers"][2] == {
        "name": "actor-1", "kind": "actor", "stage": "restarting", "stage_s": 65.0, "restarts": 2, "host": "c",
        "pid": 42,
    }  # fmt: skip
    assert facts["evaluation"] == {"env_steps": 4000, "return": 20.0} and facts["resume"] is None


def test_status_of_an_ended_run_names_the_reason_and_how_to_resume(folder: RunFolder, capsys):
    tell(folder, "interrupted")
    assert "killed: process" in output_of("ppo/x", capsys=capsys)
    score = {"return_mean": 20.0, "return_ci95": 1.0, "episodes": 8, "env_steps": 4000}
    result = {"ended": "interrupted", "env_steps": 6000, "updates": 48, "wall_s": 61.0, "evaluation": score}
    (folder.path / "result.json").write_text(json.dumps(result))
    text = output_of("ppo/x", capsys=capsys)
    assert text.startswith(
        "ppo/x on CartPole-v1: interrupted\n  6,000 env steps, 48 updates, 1:01\n  evaluation: return 20.0 ± 1.0"
    )
    assert "jsrl stop" not in text and "to continue" not in text  # there is no snapshot
    (folder.path / "result.json").write_text(json.dumps({"ended": "failed", "error": "WorkerDied: learner ended"}))
    assert "cannot be continued: the learner had written no snapshot" in output_of("ppo/x", capsys=capsys)
    add_snapshot(folder)
    assert f"to continue: jsrl run --resume {folder.path}" in output_of("ppo/x", capsys=capsys)
    (folder.path / "result.json").write_text(json.dumps({"ended": "failed", "error": "WorkerDied: actor-0\ntrace"}))
    assert output_of("ppo/x", capsys=capsys).startswith("ppo/x on CartPole-v1: failed: WorkerDied: actor-0\n")
    (folder.path / "result.json").write_text(json.dumps(result | {"ended": "max_minutes"}))
    text = output_of("ppo/x", capsys=capsys)
    assert text.startswith("ppo/x on CartPole-v1: reached max_minutes\n") and "to continue" not in text
    (folder.path / "result.json").write_text(json.dumps(result | {"ended": "max_minutes", "unsaved": "disk full"}))
    assert f"to continue: jsrl run --resume {folder.path}" in output_of("ppo/x", capsys=capsys)


def test_a_killed_run_has_the_counts_of_its_last_line_as_its_page_does(folder: RunFolder, capsys):
    tell(folder)
    folder.metrics_path.write_text('{"env_steps": 5632, "updates": 44}\n')
    assert "5632 of 20.0k (28%) env steps, 44 updates" in output_of("ppo/x", capsys=capsys)
    facts = json.loads(output_of("ppo/x", "--json", capsys=capsys))
    assert (facts["env_steps"], facts["updates"]) == (5632, 44) and row_of(folder.path).env_steps == 5632
    with claimed(folder):
        tell(folder)
        assert "5000 of 20.0k (25%) env steps, 40 updates" in output_of("ppo/x", capsys=capsys)


def test_printed_commands_find_a_run_of_another_folder(folder: RunFolder, capsys):
    elsewhere = RunFolder.create("other runs", "ppo", "y", config={"fields": {}})
    add_snapshot(elsewhere)
    with claimed(elsewhere):
        tell(elsewhere)
        text = output_of("y", "--runs-dir", "other runs", capsys=capsys)
    found = [shlex.split(command) for command in text.splitlines()[-1].split("|")]
    assert [words[1] for words in found] == ["status", "logs", "stop"]
    assert {RunFolder.open(words[2]).path for words in found} == {elsewhere.path}
    (elsewhere.path / "result.json").write_text(json.dumps({"ended": "interrupted"}))
    text = output_of("y", "--runs-dir", "other runs", capsys=capsys)
    assert shlex.split(text.splitlines()[-1])[-1] == str(elsewhere.path)


def test_silence_of_another_host_is_reported(folder: RunFolder, capsys):
    with claimed(folder):
        tell(folder)
        identity = msgspec.json.decode((folder.path / RUNNING).read_bytes())
        status = json.loads((folder.path / "status.json").read_text())
    far = identity | {"host": "far", "boot": "another"}
    (folder.path / RUNNING).write_text(json.dumps(far))
    (folder.path / "status.json").write_text(json.dumps(status | {"process": far}))
    assert output_of("x", capsys=capsys).startswith("ppo/x on CartPole-v1: running since")
    os.utime(folder.path / "status.json", (time.time() - 300,) * 2)
    assert output_of("x", capsys=capsys).startswith(
        f"ppo/x on CartPole-v1: no news for 5:00 from process {os.getpid()} on far; its host may"
    )


def test_slurm_is_queried_if_installed(folder: RunFolder, monkeypatch, capsys, tmp_path: Path):
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    with claimed(folder):
        assert "Slurm job 12: not known here" in output_of("x", capsys=capsys)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        for name, answer in (("squeue", '[ "$3$5" = all12 ] && echo "RUNNING|n1|None"'), ("sacct", "echo COMPLETED")):
            (tmp_path / name).write_text(f"#!/bin/sh\n{answer}\n")
            (tmp_path / name).chmod(0o755)
        assert "Slurm job 12: RUNNING on n1" in output_of("x", capsys=capsys)
        (tmp_path / "squeue").write_text("#!/bin/sh\nexit 1\n")
        assert json.loads(output_of("x", "--json", capsys=capsys))["slurm_state"] == "COMPLETED"


def test_a_folder_is_a_table_of_its_runs(folder: RunFolder, capsys):
    other = RunFolder.create("runs", "dqn", "y", config={"fields": {}})
    (other.path / "experiment.json").write_text("{")
    folder.metrics_path.write_text(json.dumps({"env_steps": 500, "updates": 3, "evaluator/return_mean": 12.5}) + "\n")
    with claimed(folder):
        lines = output_of(capsys=capsys).splitlines()
        assert lines[2].split()[:6] == ["ppo/x", "running", "CartPole-v1", "500", "/", "20.0k"] and " 12.5 " in lines[2]
        assert lines[3].split()[:4] == ["dqn/y", "cannot", "be", "read"]
        assert [run["run"] for run in json.loads(output_of("runs/ppo", "--json", capsys=capsys))] == ["ppo/x"]
    assert status.below(folder.path) == []


@pytest.mark.parametrize(
    ("env", "shown"),
    [
        ("x", "-"),
        (None, "-"),
        ({"fields": []}, "-"),
        ({"fields": {"id": "X\x1b]0;title\x07\nx/y  running"}}, "X\\x1b]0;title\\x07 x/y running"),
    ],
)
def test_a_damaged_or_hostile_environment_hides_no_run(folder: RunFolder, capsys, env, shown: str):
    other = RunFolder.create("runs", "dqn", "y", config={"fields": {"env": env}})
    rows = sorted(output_of(capsys=capsys).splitlines()[2:])
    assert rows[0].startswith("dqn/y") and (shown in rows[0] or "cannot be read" in rows[0])
    assert rows[1].startswith("ppo/x  killed") and len(rows) == 2
    assert output_of(str(other.path), capsys=capsys).startswith(f"dqn/y on {shown}: killed")
    assert {run["run"] for run in json.loads(output_of("--json", capsys=capsys))} == {"ppo/x", "dqn/y"}


def test_only_who_follows_a_run_is_told_that_it_goes_on(folder: RunFolder, monkeypatch, capsys):
    def interrupt(*_: object, **__: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(status, "shown", interrupt)
    assert main.main(["status", "x", "--follow"]) == 0
    assert capsys.readouterr().err == "\ndetached from x, which keeps running\n"
    assert main.main(["status"]) == 130
    assert capsys.readouterr().err == "\ninterrupted\n"


def test_folder_of_another_user_is_refused_in_one_sentence(tmp_path: Path, monkeypatch, capsys):
    def refuse(folder: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr(status, "is_whole", refuse)
    assert main.main(["status", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"{tmp_path} belongs to another user, who may let you read it.\n"
