"""`jsrl.start`: a run that goes on while its notebook or script does other things."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import jsrl
from jsrl.errors import EnvironmentFault
from jsrl.services.runs.state import read_state
from jsrl.tools.background import OUTCOME, result_facts
from tests.tiny_agent import TinyConfig

ENDLESS = 10**9


def experiment(**changes) -> jsrl.Experiment:
    """Return a serial run of the agent that learns nothing; its score is 1."""
    evaluator = jsrl.EvaluatorConfig(episodes=4, num_envs=4, final_episodes=4, period_env_steps=32_000)
    settings = {"num_envs": 4, "rollout_length": 8, "evaluator": evaluator, "total_env_steps": ENDLESS} | changes
    return jsrl.Experiment(
        name="tiny", env=jsrl.EnvConfig("probe:continuous"), agent=TinyConfig(), placement="serial", **settings
    )


def broken(spec):
    raise ValueError("no such network")


def await_state(folder: Path, *names: str) -> None:
    until = time.monotonic() + 60
    while read_state(folder).name not in names:
        assert time.monotonic() < until, read_state(folder)
        time.sleep(0.1)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory):
    started = jsrl.start(experiment(), runs_dir=tmp_path_factory.mktemp("runs"), name="x")
    yield started
    started.stop()


@pytest.mark.slow
def test_scores_arrive_while_it_runs(run) -> None:
    for number, scores in enumerate(run, start=1):
        assert len(scores.env_steps) >= number and scores.return_mean == pytest.approx(1.0, abs=1e-3)
        if number == 2:
            break
    assert run.is_running and run.folder.name == "x"
    assert repr(run).startswith(f"BackgroundRun({run.folder}: running, ")
    assert run.policy()([[0.0]]).shape == (1, 1)


@pytest.mark.slow
def test_an_interrupt_ends_only_the_wait(run, capsys: pytest.CaptureFixture[str]) -> None:
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        run.wait(60)
    assert "tiny/x goes on in the background" in capsys.readouterr().err and run.is_running
    with pytest.raises(TimeoutError, match=r"the run goes on after 0\.1 s: BackgroundRun\(.*tiny/x: "):
        run.wait(0.1)


@pytest.mark.slow
def test_no_second_process_runs_in_its_folder(run) -> None:
    with pytest.raises(jsrl.extend.ConfigError, match="tiny/x is running"):
        jsrl.start(experiment(), name="x", overwrite=True, runs_dir=run.folder.parents[1])
    assert run.is_running


@pytest.mark.slow
def test_a_stopped_run_has_a_result(run) -> None:
    next(iter(run))
    result = run.stop()
    assert result.ended == "interrupted" and result.final == {} and result == run.stop() == run.wait()
    assert "ended (interrupted)" in repr(run) and not run.is_running
    assert len(list(run)) == 1 and result.updates > 0


SCRIPT = """
import sys
sys.path[:0] = [{root!r}]
import gymnasium
import jsrl
from tests.tiny_agent import TinyConfig, tiny

class Doubled(gymnasium.RewardWrapper):
    def reward(self, reward):
        return 2.0 * reward

def mine(spec):
    return tiny(TinyConfig(), spec)

run = jsrl.start(
    jsrl.Experiment(
        name="mine", agent=jsrl.AgentReference(mine), env=jsrl.EnvConfig("Pendulum-v1", wrappers=(Doubled,)), num_envs=4,
        rollout_length=8, total_env_steps=10**9, evaluator=jsrl.EvaluatorConfig(enabled=False), placement="serial",
    ),
    runs_dir={runs!r},
)
print(run.folder)
"""


@pytest.mark.slow
def test_it_ends_with_its_script_whose_definitions_are_kept_in_its_folder(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(root=str(Path(__file__).parents[2]), runs=str(tmp_path / "runs")))
    ended = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    folder = Path(ended.stdout.strip())
    await_state(folder, "ended")
    assert read_state(folder).result["ended"] == "interrupted"
    fields = json.loads((folder / "experiment.json").read_text())["fields"]
    (wrapper,) = fields["env"]["fields"]["wrappers"]["$tuple"]
    for name in (wrapper, fields["agent"]["fields"]["factory"]["$function"]):
        assert (folder / "source" / f"{name.partition(':')[0]}.py").is_file()
    assert "script.py" in json.loads((folder / "environment.json").read_text())["command"]


def test_the_traceback_of_the_users_code_is_a_note_of_the_error(tmp_path: Path) -> None:
    fault = {"error": "AgentFault", "text": "raised", "traceback": "Traceback: line 3"}
    (tmp_path / OUTCOME).write_text(json.dumps(fault))
    with pytest.raises(jsrl.extend.AgentFault) as error:
        result_facts(tmp_path, "ended")
    assert error.value.__notes__ == ["Traceback: line 3"]


@pytest.mark.slow
def test_a_fault_before_the_beginning_is_raised_and_not_printed(tmp_path: Path, capfd) -> None:
    with pytest.raises(jsrl.extend.AgentFault, match="no such network") as error:
        jsrl.start(dataclasses.replace(experiment(), agent=jsrl.AgentReference(broken)), runs_dir=tmp_path)
    assert "in broken" in error.value.__notes__[0] and "Traceback" not in capfd.readouterr().err


def test_errors_of_its_process_have_their_types(tmp_path: Path) -> None:
    for left, expected in (
        ({"error": "EnvironmentFault", "text": "it hung"}, EnvironmentFault("it hung")),
        ({"error": "ValueError", "text": "no"}, jsrl.JsrlError("ValueError: no")),
        (None, jsrl.JsrlError("ended")),
    ):
        (tmp_path / OUTCOME).unlink(missing_ok=True)
        if left is not None:
            (tmp_path / OUTCOME).write_text(json.dumps(left))
        with pytest.raises(type(expected), match=f"^{expected}$"):
            result_facts(tmp_path, "ended")
