"""User sinks and Weights & Biases: none of them stops, delays or empties a run."""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
import time
from pathlib import Path

import psutil
import pytest

from jsrl.cli import command_line
from jsrl.cli import run as run_command
from jsrl.cli.experiments import load
from jsrl.control.run import run
from jsrl.envs.config import EnvConfig
from jsrl.errors import ConfigError, MissingExtra
from jsrl.experiment import DeadlineConfig, EvaluatorConfig, Experiment
from jsrl.services.metrics import wandb_process
from jsrl.services.metrics.sink_thread import SinkThread
from jsrl.services.metrics.wandb_sink import WandbSink
from jsrl.services.runs.files import write_json
from jsrl.services.runs.runs import RunFolder
from tests.tiny_agent import TinyConfig

EVALUATED = EvaluatorConfig(episodes=2, num_envs=2, final_episodes=2, period_env_steps=16)
EXPERIMENT = Experiment(
    agent=TinyConfig(),
    env=EnvConfig("probe:continuous"),
    num_envs=2,
    rollout_length=4,
    total_env_steps=64,
    placement="serial",
    evaluator=EVALUATED,
    deadlines=DeadlineConfig(sinks_s=3.0),
)


class RecordingSink:
    """Stores its calls."""

    def __init__(self) -> None:
        self.rows, self.config, self.summary = [], {}, {}

    def start(self, config):
        self.config = config
        return "kept for you"

    def write(self, row):
        self.rows.append(row)

    def end(self, summary):
        self.summary = summary


class HangingSink:
    """Never returns from its first line."""

    def __init__(self) -> None:
        self.released = threading.Event()

    def write(self, row):
        self.released.wait()


class Broken:
    def start(self, config):
        raise KeyError("token")

    def write(self, row):
        raise AssertionError("it was switched off")


@pytest.mark.slow
def test_sinks_get_lines_options_and_scores_although_another_fails(tmp_path):
    kept = RecordingSink()
    result = run(EXPERIMENT, sinks=[Broken(), kept], runs_dir=tmp_path, display="quiet")
    rows = [json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["wall_s"] for row in kept.rows] == [row["wall_s"] for row in rows] and len(rows) > 2
    assert kept.config["options"]["agent.offset"] == 0.0 and kept.config["folder"] == str(result.folder)
    assert kept.summary["final/return_mean"] == pytest.approx(1.0) and kept.summary["ended"] == "total_env_steps"


@pytest.mark.slow
def test_hanging_or_raising_sinks_do_not_affect_the_run(tmp_path):
    kept, stuck = RecordingSink(), HangingSink()
    try:
        result = run(EXPERIMENT, sinks=[Broken(), kept, stuck], runs_dir=tmp_path, display="quiet")
    finally:
        stuck.released.set()
    assert result.ended == "total_env_steps"
    rows = [json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()]
    assert kept.rows[0]["wall_s"] == rows[0]["wall_s"] and len(rows) > 2
    log = (result.folder / "logs" / "controller.log").read_text()
    assert "warning: HangingSink did not end within 3 s (deadlines.sinks_s)" in log
    assert "within 3 s (deadlines.sinks_s); the lines so far are kept" in log  # TensorBoard's file is closed
    assert log.count("Broken could not be started (KeyError: 'token' in test_sinks.py:") == 1
    assert "switched off" not in log and " kept for you" in log


def settled(sinks: SinkThread) -> bool:
    """Wait for the calls so far."""
    done = threading.Event()
    sinks._thread.put(done.set)
    return done.wait(20.0)


def test_slow_sink_loses_lines_and_is_reported_once():
    stuck = HangingSink()
    thread = SinkThread([stuck])
    for number in range(1100):
        thread.write({"number": number})
    told = [text for text, _ in thread.messages()]
    assert told == ["too slow for this run: HangingSink; lines of metrics are dropped for sinks"]
    stuck.released.set()
    thread.end({}, 10.0)
    ((text, level),) = thread.messages()
    assert level == "warning" and text.endswith("lines of metrics were dropped for sinks")
    assert 98 <= int(text.split()[0]) <= 100


# -- Weights & Biases -------------------------------------------------------------------------------------------------


def parsed(*words):
    return command_line.parse(words, load("ppo_cartpole")).run


def test_wandb_is_off_without_options(monkeypatch):
    made = []
    monkeypatch.setattr("jsrl.services.metrics.wandb_sink.WandbSink", lambda **names: made.append(names))
    assert run_command.sinks_of(parsed("--sinks", "a:b,c:d")) == ["a:b", "c:d"]
    assert not made
    run_command.sinks_of(parsed("--wandb", "--wandb.project", "p", "--wandb.group", "g", "--wandb.mode", "offline"))
    assert made == [{"project": "p", "entity": None, "group": "g", "mode": "offline"}]


def test_wandb_without_its_package_is_refused_with_the_install_command(monkeypatch):
    monkeypatch.setattr("jsrl.extras.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"pip install .*\[wandb\]"):
        WandbSink(mode="offline")


def config_of(folder: Path) -> dict:
    (folder / "logs").mkdir(exist_ok=True)
    return {"run": "tested/one", "folder": str(folder), "options": {"agent.offset": 0.25}, "end_s": 20.0}


def test_a_resume_goes_on_with_weights_and_biases_under_the_same_name(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr("jsrl.services.metrics.wandb_sink.WandbSink", lambda **names: made.append(names))
    folder = RunFolder.create(tmp_path, "ppo", "one").path
    again = ("--resume", str(folder))
    assert run_command.sinks_of(parsed(*again)) == [] and not made
    names = {"project": "p", "entity": "me", "group": None, "name": "mine", "mode": "offline"}
    (folder / "wandb").mkdir()
    write_json(folder / "wandb" / "options.json", names)
    run_command.sinks_of(parsed(*again))
    run_command.sinks_of(parsed(*again, "--wandb", "--wandb.group", "other"))
    assert made == [names, names | {"group": "other"}]


def test_rows_after_a_resume_have_later_steps_than_before():
    class Logged:
        """A W&B run, whose steps begin at 0 again where it is continued offline."""

        def __init__(self) -> None:
            self.step, self.steps = 0, []

        def log(self, row: dict, step: int) -> None:
            self.step = step
            self.steps.append(step)

    before, after = Logged(), Logged()
    for wandb_run, times_s in ((before, (1.0, 1.0, 7.5)), (after, (7.6, 8.0))):
        for wall_s in times_s:
            wandb_process.execute(wandb_run, {"row": {"env_steps": 32, "wall_s": wall_s}}, 0)
    assert before.steps == [1000, 1001, 7500] and after.steps == [7600, 8000]


def test_deleted_files_of_weights_and_biases_are_reported(tmp_path, monkeypatch):
    monkeypatch.setattr("jsrl.extras.find_spec", lambda name: True)
    sink = WandbSink("tried", mode="offline")
    sink._folder, sent = str(tmp_path), []
    monkeypatch.setattr(sink, "_send", sent.append)
    (tmp_path / "wandb" / "offline-run-1").mkdir(parents=True)
    thread = SinkThread([sink])
    for _ in range(2):
        thread.write({"env_steps": 1})
        assert settled(thread)
        shutil.rmtree(tmp_path / "wandb", ignore_errors=True)
    ((text, level),) = thread.messages()
    assert level == "warning" and f"{tmp_path / 'wandb'} was deleted during the run" in text and len(sent) == 1


@pytest.mark.slow
def test_wandb_keeps_options_curves_videos_and_scores_offline(tmp_path):
    pytest.importorskip("wandb")
    (tmp_path / "film.mp4").write_bytes(b"not really a film")
    for _ in range(2):  # the second time as in a resume
        thread = SinkThread([WandbSink("tried", mode="offline", group="of_tests")])
        thread.start(config_of(tmp_path))
        thread.write({"env_steps": 10, "updates": 1, "wall_s": 0.5, "learner/loss": 2.0, "learner/bad": float("nan")})
        thread.video(tmp_path / "film.mp4")
        thread.video(tmp_path / "gone.mp4")
        thread.end({"ended": "total_env_steps", "final/return_mean": 7.0}, 60.0)
        ((text, level),) = thread.messages()
        assert level == "info" and "wandb sync" in text, text
    kept = list(tmp_path.glob("wandb/offline-run-*/run-*.wandb"))
    assert {path.name for path in kept} == {f"run-{(tmp_path / 'wandb' / 'id').read_text()}.wandb"}
    content = b"".join(path.read_bytes() for path in kept)
    for word in (
        b"agent.offset",
        b"learner/loss",
        b"final/return_mean",
        b"tested/one",
        b"tried",
        b"of_tests",
        b"media/videos",
    ):
        assert word in content, word
    assert b"learner/bad" not in content
    assert list(tmp_path.glob("wandb/offline-run-*/files/media/videos/*.mp4"))


@pytest.mark.nightly
def test_unreachable_wandb_does_not_delay_the_end(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("NETRC", str(tmp_path / "absent"))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="has no API key here; run `wandb login`"):
        WandbSink()
    monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
    sink = WandbSink()
    thread = SinkThread([sink])
    thread.start(config_of(tmp_path) | {"end_s": 1.0})
    thread.write({"env_steps": 10, "updates": 1, "wall_s": 0.5})
    begun_s = time.monotonic()
    thread.end({"ended": "total_env_steps"}, 1.0)
    assert time.monotonic() - begun_s < 30
    thread._thread._thread.join(60.0)  # its process is dead, so no call waits any more
    assert not thread._thread._thread.is_alive()
    text = thread.messages()[0][0]
    assert "did not end within 1 s" in text and f"wandb sync {tmp_path}/wandb/" in text
    until_s = time.monotonic() + 30
    while left := started_with("NETRC", str(tmp_path / "absent")):
        assert time.monotonic() < until_s, left
        time.sleep(0.05)


def started_with(variable: str, value: str) -> list[str]:
    """Return the command lines of the living processes that were started with a variable of this value."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(variable) == value and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline()))
    return found
