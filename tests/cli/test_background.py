"""One background run from start to end, as a user sees it; a refused start leaves no files."""

from __future__ import annotations

import os
import pty
import re
import runpy
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jsrl.cli import background, command_line, main, status
from jsrl.cli import run as run_command
from jsrl.cli.experiments import load
from jsrl.services.runs.logs import messages_in
from jsrl.services.runs.provenance import environment_facts
from jsrl.services.runs.runs import RunFolder
from jsrl.services.runs.state import read_state

TINY = (
    *("ppo", "--placement", "inline", "--num-actors", "1", "--num-envs", "4", "--rollout-length", "8"),
    *("--agent.num-minibatches", "1", "--evaluator.enabled", "false", "--total-env-steps", "1e9", "--detach"),
)


def output_of(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> str:
    assert main.main(words) == status
    found = capsys.readouterr()
    return found.err if status == 2 else found.out


def await_updates(folder: Path, count: int) -> None:
    until = time.monotonic() + 60
    while (seen := status.moment(folder, read_state(folder))) is None or seen.updates < count:
        assert time.monotonic() < until, read_state(folder)
        time.sleep(0.1)


@pytest.mark.slow
def test_a_run_in_the_background(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = output_of(capsys, "run", *TINY, "--run-name", "x")
    pid = int(re.findall(r"^ppo/x runs in the background \(process (\d+)\)", text)[0])
    try:
        assert [line.strip() for line in text.splitlines()[1:]] == [
            f"jsrl {c}" for c in ("status ppo/x", "status ppo/x --follow", "stop ppo/x")
        ]
        folder = RunFolder.open("x").path
        await_updates(folder, 1)
        text = output_of(capsys, "status", "x")
        assert text.startswith("ppo/x on CartPole-v1: running since")
        assert re.search(r"workers: learner 1, pid \d+; actor 1, pid \d+", text)
        assert "steps " in output_of(capsys, "logs", "x")
        assert "actor-0, learner, output" in output_of(capsys, "logs", "x", "critic", status=2)
        shows_live(tmp_path)
        assert read_state(folder).name == "running"  # the viewer may leave
        text = output_of(capsys, "stop", "x")
        assert f"asked process {pid} on" in text and "interrupted, " in text
        assert re.search(rf"^to continue: jsrl run --resume {folder}$", text, re.MULTILINE)
        assert read_state(folder).result["ended"] == "interrupted"
        until = time.monotonic() + 30
        while f"to continue: jsrl run --resume {folder}" not in output_of(capsys, "logs", "x", "output"):
            assert time.monotonic() < until  # it prints the result after the run has ended
            time.sleep(0.1)
        assert "has already ended: interrupted" in output_of(capsys, "status", "x", "--follow", status=2)
    finally:
        subprocess.run(["kill", "-9", str(pid)], check=False, capture_output=True)


def shows_live(folder: Path) -> None:
    """Check the display of `jsrl status --follow` on a terminal, and leave by Ctrl-C."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "jsrl", "status", "ppo/x", "--follow"]
    files = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    variables = os.environ | {"TERM": "xterm"}
    process = subprocess.Popen(command, cwd=folder, env=variables, start_new_session=True, **files)
    os.close(theirs)
    try:
        text = b""
        while b"learning:" not in text:  # a part of the display that appears after the first update
            text += os.read(ours, 1 << 16)
        process.send_signal(2)
        while b"detached from ppo/x" not in text:
            text += os.read(ours, 1 << 16)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)


@pytest.mark.slow
def test_command_refused_in_the_background_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd):
    monkeypatch.chdir(tmp_path)
    assert main.main(["run", *TINY, "--env.id", "nowhere:Env"]) == 2
    assert "there is no module 'nowhere'" in capfd.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_name_of_a_group_has_no_seed(tmp_path: Path):
    def name_of(*words: str) -> str:
        asked = command_line.parse([*words, "--runs-dir", str(tmp_path)], load("ppo_cartpole"))
        return background.folder_of(asked).name

    assert name_of("--seed", "3").endswith("-seed3") and "seed" not in name_of("--seeds", "3-5")


def test_messages_are_separated_from_progress_lines():
    lines = [
        "2026-01-01 00:00:00      0s  steps 0 / 1.00G (0%)",
        "2026-01-01 00:00:01 warning: actor-0 died",
        "with a second line",
        "2026-01-01 00:00:02 1:02:03  steps 5",
        "2026-01-01 00:00:03 note: it goes on",
    ]
    messages = [text for text in messages_in(lines) if not status.PROGRESS.match(text)]
    assert messages == ["warning: actor-0 died\nwith a second line", "note: it goes on"]


@pytest.mark.parametrize("parent", ["0", str(os.getppid())])
def test_runs_started_by_other_commands_record_a_command_that_repeats_them(parent, monkeypatch):
    found = []
    monkeypatch.setattr(run_command, "main", lambda *_, **__: found.append(environment_facts()["command"]))
    monkeypatch.setattr("jsrl.linux.die_with_parent", lambda pid: None)
    monkeypatch.setattr(sys, "argv", ["child", parent, "ppo", "--seed", "3"])
    monkeypatch.setattr(sys, "orig_argv", [sys.executable, "-P", "-m", "jsrl.cli.child", parent, "ppo"])
    monkeypatch.delitem(sys.modules, "jsrl.cli.child", raising=False)
    with pytest.raises(SystemExit):
        runpy.run_module("jsrl.cli.child", run_name="__main__")
    assert found == [f"{Path(sys.executable).name} -m jsrl run ppo --seed 3"]
