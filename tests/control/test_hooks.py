"""Hooks: their calls, how they end a run, and that no hook can stop or delay it."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
import threading
import time

import pytest

from jsrl.cli import run as run_command
from jsrl.control.hooks import METHODS, STOP, Hooks, OutputToFolder, SavedSnapshot, load_hooks
from jsrl.control.run import run
from jsrl.envs.config import EnvConfig
from jsrl.errors import ConfigError, JsrlError
from jsrl.experiment import DeadlineConfig, EvaluatorConfig, Experiment
from jsrl.services.metrics.sink_thread import CallThread
from tests.tiny_agent import TinyConfig

EVALUATED = EvaluatorConfig(episodes=2, num_envs=2, final_episodes=2, period_env_steps=16)


def experiment(**changes) -> Experiment:
    values = {
        "agent": TinyConfig(),
        "env": EnvConfig("probe:continuous"),
        "num_envs": 2,
        "rollout_length": 4,
        "total_env_steps": 64,
        "placement": "serial",
        "evaluator": EVALUATED,
        "max_minutes": 1.0,
    }
    return Experiment(**(values | changes))


class RecordingHook:
    """Records every call."""

    def __init__(self) -> None:
        self.calls: list[tuple] = []

    def note(self, name, run, *values):
        self.calls.append((name, run.env_steps, *values))

    def __getattr__(self, name):
        if name in METHODS:
            return lambda run, *values: self.note(name, run, *values)
        raise AttributeError(name)

    def of(self, name):
        return [call[2] if len(call) > 2 else None for call in self.calls if call[0] == name]


class Stopper:
    name = "enough"

    def on_evaluation(self, run, score):
        return STOP if score["updates"] >= 4 else None


def log_of(folder):
    return (folder / "logs" / "controller.log").read_text()


def test_hooks_see_a_run_and_end_it(tmp_path):
    seen = RecordingHook()
    result = run(experiment(total_env_steps=10**8), hooks=[seen, Stopper()], runs_dir=tmp_path, display="quiet")
    assert result.ended == "stopped by hook enough" and result.as_intended
    assert json.loads((result.folder / "result.json").read_text())["ended"] == result.ended
    assert str(result).startswith("stopped by hook enough after ")
    names = [call[0] for call in seen.calls]
    assert (names[0], names[-1]) == ("on_start", "on_end")
    scores = seen.of("on_evaluation")
    assert [score["final"] for score in scores] == [False] * (len(scores) - 1) + [True]
    assert scores[-1]["return_mean"] == pytest.approx(1.0) and scores[0]["policy"] == "policy"
    assert scores[-1]["env_steps"] == result.env_steps > 0
    snapshots = seen.of("on_snapshot")
    (last,) = [snapshot for snapshot in snapshots if "final" in snapshot.tags]  # that of the best params may come later
    assert last.whole and last.updates == result.updates and last.path.is_dir()
    assert any("best" in snapshot.tags and not snapshot.whole for snapshot in snapshots)
    rows = [json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["wall_s"] for row in seen.of("on_metrics")] == [row["wall_s"] for row in rows]
    assert seen.of("on_end")[0].ended == result.ended


def test_hooks_and_sinks_get_the_failure_of_a_run(tmp_path):
    class RecordingSink:
        def write(self, row):
            pass

        def end(self, summary):
            self.summary = summary

    seen, kept = RecordingHook(), RecordingSink()
    with pytest.raises(JsrlError, match=r"not finite|nan"):
        run(experiment(agent=TinyConfig(mode="nan")), hooks=[seen], sinks=[kept], runs_dir=tmp_path, display="quiet")
    assert [result.ended for result in seen.of("on_end")] == ["failed"]
    assert kept.summary["ended"] == "failed"


class Broken:
    def __init__(self) -> None:
        self.called = 0

    def on_metrics(self, run, row):
        self.called += 1
        raise ValueError("no such column")


def test_hook_that_raises_is_disabled_and_the_run_continues(tmp_path):
    broken, seen = Broken(), RecordingHook()
    result = run(experiment(), hooks=[broken, seen], runs_dir=tmp_path, display="quiet")
    assert result.ended == "total_env_steps" and broken.called == 1
    assert len(seen.of("on_metrics")) > 1
    log = log_of(result.folder)
    assert log.count("warning: hook Broken: on_metrics raised ValueError: no such column; it is switched off") == 1
    assert 'raise ValueError("no such column")' in log  # the traceback


def test_the_log_names_only_hooks_that_were_given(tmp_path):
    for given, named in (((), False), ((RecordingHook(),), True)):
        lines: list[str] = []
        output = OutputToFolder()
        output.on_start = lambda run: None  # else it redirects the output of this process
        Hooks((output, *given), lines.append).end(None, 1.0)
        assert ["RecordingHook" in line for line in lines] == [True] * named and "output" not in "".join(lines)


def test_hanging_hook_does_not_block_the_run(tmp_path):
    released = threading.Event()

    class HangingHook:
        def on_start(self, run):
            released.wait()

    try:
        begun_s = time.monotonic()
        result = run(
            experiment(deadlines=DeadlineConfig(hooks_s=0.2)), hooks=[HangingHook()], runs_dir=tmp_path, display="quiet"
        )
        assert time.monotonic() - begun_s < 60
    finally:
        released.set()
    assert result.ended == "total_env_steps" and result.final["return_mean"] == pytest.approx(1.0)
    assert "hooks: HangingHook.on_start did not return within 0.2 s of the end" in log_of(result.folder)


def test_a_slow_hook_loses_rows_of_metrics_and_nothing_else():
    released, seen = threading.Event(), RecordingHook()

    class Slow:
        def on_start(self, run):
            assert released.wait(60)

    class Live:
        env_steps = 0

    hooks = Hooks([Slow(), seen])
    hooks.start(Live())  # type: ignore[arg-type]
    for number in range(1500):
        hooks.write({"number": number})
        if number % 500 == 0:
            hooks.evaluated({"number": number})
    hooks.saved(SavedSnapshot(None, ("best",), 1, "policy", False))  # type: ignore[arg-type]
    told = [text for text, _ in hooks.messages() + hooks.messages()]
    assert told == ["hooks are slower than the run: rows of metrics are dropped for them"]
    released.set()
    hooks.end(None, 60.0)
    assert [score["number"] for score in seen.of("on_evaluation")] == [0, 500, 1000]
    assert len(seen.of("on_snapshot")) == 1
    rows = [row["number"] for row in seen.of("on_metrics")]
    assert rows == list(range(len(rows))) and 900 < len(rows) < 1001


def test_call_thread_makes_no_calls_after_close():
    made, thread = [], CallThread("tested")
    thread.put(lambda: made.append(1))
    assert thread.finish(time.monotonic() + 60) == 0
    thread.put(lambda: made.append(2))
    assert made == [1]
    released, slow = threading.Event(), CallThread("slow")
    for call in (lambda: released.wait(60), lambda: made.append(3), lambda: made.append(4)):
        slow.put(call)
    assert slow.finish(time.monotonic() + 0.1) == 3
    released.set()
    slow._thread.join(60)
    assert made == [1]


MODULE = """
class Printer:
    def on_metrics(self, run, row): ...

def one(): return Printer()
def several(): return [Printer(), Printer()]
def nothing(): return None
def broken(): raise RuntimeError("no key")
class Misspelled:
    def on_metrics(self, run, row): ...
    def on_evaluate(self, run, score): ...
class Arguments:
    def on_metrics(self, row): ...
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "hooks_of_test.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "hooks_of_test"
    sys.modules.pop("hooks_of_test", None)


def test_hooks_by_name(module):
    assert len(load_hooks([f"{module}:one", f"{module}:several", f"{module}:Printer"])) == 4


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("nothing", "a value of type NoneType is no hook: it has none of the methods on_start, on_metrics"),
        ("broken", "calling it raised RuntimeError: no key"),
        ("Misspelled", "has a method on_evaluate, which nothing calls"),
        ("Arguments", "on_metrics cannot be called as on_metrics(run, row)"),
        ("absent", "has no 'absent'"),
    ],
)
def test_invalid_hook_is_refused_before_the_start(module, name, sentence, tmp_path, capsys):
    words = ["ppo_cartpole", "--hooks", f"{module}:{name}", "--runs-dir", str(tmp_path / "runs")]
    assert run_command.main(words) == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert sentence in told
    assert not (tmp_path / "runs").exists()


def test_class_instead_of_an_instance_is_refused_by_name():
    with pytest.raises(ConfigError, match=re.escape("write Stopper()")):
        load_hooks([Stopper])
    with pytest.raises(ConfigError, match="expected a list of hooks"):
        load_hooks(Stopper())  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_hook_ends_a_run_in_processes(tmp_path):
    seen = RecordingHook()
    e = dataclasses.replace(experiment(total_env_steps=10**8), placement="inline")
    result = run(e, hooks=[Stopper(), seen], runs_dir=tmp_path, display="quiet")
    assert result.ended == "stopped by hook enough"
    assert result.final and seen.of("on_end")[0].ledger
    assert any("final" in snapshot.tags for snapshot in seen.of("on_snapshot"))
