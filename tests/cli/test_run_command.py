"""`python experiments/run.py`: its lists, its error messages, and its exit status."""

from __future__ import annotations

import contextlib
import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from jsrl.cli import experiments, run
from jsrl.cli.command_line import take_name
from jsrl.cli.experiments import load
from jsrl.cli.seeds import parse_seeds
from jsrl.control.processes.launcher import Local
from jsrl.control.result import Result
from jsrl.errors import ConfigError
from jsrl.graph.graph_file import write_graph
from jsrl.graph.plan import make_plan
from jsrl.references.reference import to_json
from jsrl.services.runs.process import ProcessIdentity
from jsrl.services.runs.runs import RunFolder, read_metrics
from jsrl.services.runs.state import ask_to_stop

ROOT = Path(__file__).parents[2]
RUN = ROOT / "experiments" / "run.py"
TINY = ["--placement", "serial", "--total-env-steps", "64", "--rollout-length", "8", "--num-envs", "4",
        "--agent.num-minibatches", "1", "--evaluator.enabled", "false", "--display", "quiet"]  # fmt: skip


def test_without_arguments_lists_the_experiments(capsys):
    assert run.main([]) == 0
    text = capsys.readouterr().out
    for name, summary in experiments.summaries().items():
        assert f"  {name}" in text
        assert summary in text


@pytest.mark.parametrize("words", [["ppo", "--help"], ["--help", "ppo"], ["--seed", "3", "ppo", "-h"], ["--help"]])
def test_help_works_at_any_position(words, capsys):
    assert run.main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert 30 <= sum(line.startswith("  --") for line in lines) <= 40
    assert any(line.startswith("  --agent.learning-rate") for line in lines)


@pytest.mark.parametrize(
    ("words", "name", "rest"),
    [
        (["ppo", "--seed", "3"], "ppo", ["--seed", "3"]),
        (["--seed", "3", "ppo"], "ppo", ["--seed", "3"]),
        (["--deterministic", "ppo", "--seed", "3"], "ppo", ["--deterministic", "--seed", "3"]),
        (["--resume", "ppo"], None, ["--resume", "ppo"]),  # the newest run of an experiment
        (["--run_name", "ppo", "ppo_pong"], "ppo_pong", ["--run_name", "ppo"]),
        (["--resume=ppo"], None, ["--resume=ppo"]),
    ],
)
def test_experiment_name_works_at_any_position(words, name, rest):
    assert take_name(words) == name
    assert words == rest


@pytest.mark.parametrize(("text", "seeds"), [("0-4", [0, 1, 2, 3, 4]), ("1,5,9", [1, 5, 9]), ("7", [7]), ("3-3", [3])])
def test_seeds(text, seeds):
    assert parse_seeds(text) == tuple(seeds)


@pytest.mark.parametrize("text", ["", "-", "1-", "-1", "1-2-3", "a-b", "2-1", "1,,2", "1.5"])
def test_invalid_seeds_are_refused(text):
    with pytest.raises(ConfigError, match="expected a range such as 0-4"):
        parse_seeds(text)


def test_a_plan_runs_nothing(tmp_path, capsys):
    assert run.main(["ppo_cartpole", "--plan", "--runs-dir", str(tmp_path / "runs")]) == 0
    assert "streams" in capsys.readouterr().out
    assert not (tmp_path / "runs").exists()


def test_the_plan_of_a_resume_has_the_changed_graph_of_the_run(tmp_path, capsys):
    experiment = dataclasses.replace(load("ppo_cartpole"), num_actors=2, placement="inline")
    folder = RunFolder.create(tmp_path, "ppo_cartpole", "x", config=to_json(experiment))
    plan = make_plan(experiment, "", tmp_path, "jsrl.experiment.graphs.architectures:half_inline")
    write_graph(folder, plan.graph)
    assert run.main(["--resume", str(folder.path), "--plan"]) == 0
    assert "  inference  " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        ("Experiment(num_actor=3)", r"Experiment has no field 'num_actor'; did you mean num_actors\?"),
        ("Experiment(lr=3)", r"did you mean agent\.learning_rate\?"),
        ("Experiment(n_envs=3)", r"did you mean num_envs\?"),
        ("PPOConfig(lr=3)", r"PPOConfig has no field 'lr'; did you mean learning_rate\?"),
        ("replace(PPOConfig(), gama=3)", r"did you mean gamma\?"),
        ("EnvConfig(xyz=3)", r"EnvConfig has no field 'xyz'; it has: id, "),
    ],
)
def test_a_wrong_field_in_a_config_file_suggests_the_right_one(call, hint, tmp_path, monkeypatch):
    (tmp_path / "configs").mkdir()
    imports = (
        "from dataclasses import replace",
        "from jsrl.agents.ppo import PPOConfig",
        "from jsrl.envs.config import EnvConfig",
        "from jsrl.experiment import Experiment",
    )
    text = "\n".join([*imports, "def config():", f"    return {call}"])
    (tmp_path / "configs" / "mine.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=f"mine.py, line 6: TypeError: .*{hint}"):
        load("mine")


def test_a_run_without_its_final_snapshot_exits_with_1(tmp_path, monkeypatch, capsys):
    result = Result(tmp_path, "total_env_steps", 64, 2, 1.0, unsaved="learner: the final snapshot of update 2 failed")
    monkeypatch.setattr("jsrl.control.run.run", lambda *_, **__: result)
    assert run.main(["ppo_cartpole"]) == 1
    said = capsys.readouterr()
    assert "reached total_env_steps after 64 env steps" in said.out
    assert said.err.endswith(
        "SnapshotError: the result is complete, but the last params are lost: learner: the final snapshot of update 2 failed\n"
    )


@pytest.mark.parametrize(("asked", "status"), [(True, 0), (False, 130)])
def test_a_run_stopped_by_jsrl_stop_exits_with_0_and_by_ctrl_c_with_130(asked, status, tmp_path, monkeypatch):
    """A job of Slurm that exits with another status is booked as failed."""
    result = Result(tmp_path, "interrupted", 100, 1, 2.0)
    monkeypatch.setattr("jsrl.control.run.run", lambda *_, **__: result)
    if asked:
        ask_to_stop(tmp_path, ProcessIdentity.own())
    assert run.main(["ppo_cartpole", "--display", "quiet"]) == status


@pytest.mark.parametrize(("asked", "status"), [(True, 0), (False, 130)])
def test_so_does_a_run_that_still_waits_for_its_hosts(asked, status, tmp_path, monkeypatch):
    class Waits(Local):
        def place(self, graph, needs, stop_asked):
            if asked:
                ask_to_stop(tmp_path / "ppo_cartpole" / "x", ProcessIdentity.own())
            raise KeyboardInterrupt  # by the signal of `jsrl stop`, or Ctrl-C

    monkeypatch.setattr(run, "launcher_of", lambda *_: contextlib.nullcontext(Waits()))
    words = ["ppo_cartpole", "--placement", "inline", "--num-actors", "1", "--display", "quiet"]
    assert run.main([*words, "--runs-dir", str(tmp_path), "--run-name", "x"]) == status
    assert not (tmp_path / "ppo_cartpole").exists()


def test_a_drawn_plan_names_its_file(tmp_path, capsys):
    words = ["ppo_cartpole", "--runs-dir", str(tmp_path / "runs"), "--plan"]
    assert run.main([*words, str(tmp_path / "graph.svg")]) == 0
    assert f"picture: {tmp_path / 'graph.svg'}\n" in capsys.readouterr().out
    assert run.main([*words, str(tmp_path / "missing" / "graph.svg")]) == 2
    assert "graph.svg: No such file or directory." in capsys.readouterr().err
    assert run.main([*words, "graph.png"]) == 2
    assert capsys.readouterr().err == (
        "ConfigError: --plan draws SVG files, got graph.png; give it a name that ends in .svg.\n"
    )


@pytest.mark.slow
def test_seeds_run_in_sequence_each_in_its_folder(tmp_path):
    words = ["ppo", *TINY, "--seeds", "1-2", "--run-name", "x", "--runs-dir", str(tmp_path)]
    before = list(sys.path)
    assert run.main(words) == 0
    sys.path[:] = before
    folders = sorted(path.name for path in (tmp_path / "ppo").iterdir() if path.is_dir())
    assert folders == ["x", "x-seed1", "x-seed2"]
    for name in folders[1:]:
        assert read_metrics(tmp_path / "ppo" / name / "metrics.jsonl")["updates"][-1] == 2


@pytest.mark.slow
def test_runs_as_a_command(tmp_path):
    """End to end: another folder, a separate process, exit status 0 and 2."""
    base = [sys.executable, str(RUN)]
    right = subprocess.run([*base, *TINY, "ppo", "--runs-dir", "r"], cwd=tmp_path, capture_output=True, text=True,
                           timeout=120, check=False)  # fmt: skip
    assert right.returncode == 0, right.stderr
    assert list((tmp_path / "r" / "ppo").glob("*/metrics.jsonl"))
    wrong = subprocess.run([*base, "ppoo"], cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("ConfigError: there is no experiment 'ppoo'; did you mean ppo?")
