"""The algorithms in examples/ keep the contract of agents, and learn; the other examples run."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

import jsrl
from jsrl.extend import ConfigError, check_graph, make_graph, make_spec

EXAMPLES = Path(__file__).parents[1] / "examples"
IN_TURN = {"placement": "serial", "display": "quiet", "evaluator": jsrl.EvaluatorConfig(enabled=False)}


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)


@pytest.mark.slow
def test_crossq_keeps_the_contract():
    import crossq

    spec = make_spec(jsrl.EnvConfig(id="Pendulum-v1"))
    config = dataclasses.replace(crossq.CrossQConfig(), policy_hidden=8, critic_hidden=8)
    assert "devices_draw_apart" in jsrl.check_agent(crossq.make_agent(config, spec), spec).checks


@pytest.mark.slow
def test_the_recurrent_ppo_keeps_the_contract():
    import recurrent_ppo as example

    spec = make_spec(jsrl.EnvConfig(id="CartPole-v1", wrappers=(example.WithoutVelocity,)))
    config = dataclasses.replace(example.RecurrentPPOConfig(), hidden=8)
    assert "update_resets_core" in jsrl.check_agent(example.make_agent(config, spec), spec).checks


@pytest.mark.nightly
@pytest.mark.timeout(1000)
@pytest.mark.parametrize(
    ("name", "score"),
    [
        ("crossq.py", -200.0),
        ("recurrent_ppo.py", 475.0),
        ("own_worker.py", 475.0),
        ("own_game.py", 15.0),
        ("jax_cartpole.py", 475.0),
    ],
)
def test_an_example_learns(tmp_path, name, score):
    ended = subprocess.run(
        [sys.executable, EXAMPLES / name], cwd=tmp_path, capture_output=True, text=True, timeout=900, check=True
    )
    (line,) = [line for line in ended.stdout.splitlines() if re.match("best( of guide)?: return", line)]
    assert float(line.split("return")[1].split()[0]) >= score, ended.stdout


@pytest.mark.slow
def test_the_own_worker_counts_every_row(tmp_path):
    import own_worker

    result = jsrl.run(own_worker.experiment(4096), runs_dir=tmp_path, graph=own_worker.with_coverage, **IN_TURN)
    visits = json.loads((result.folder / own_worker.FILE).read_text())
    assert np.sum(visits) == result.env_steps
    assert result.legs["samples.coverage"]["consumed"] == result.ledger["consumed"] > 0


def test_the_own_worker_refuses_other_settings():
    import own_worker

    graph = own_worker.with_coverage(make_graph(own_worker.experiment()))
    check_graph(graph)
    with pytest.raises(ConfigError, match="give two numbers for each of numbers, low, high"):
        check_graph(graph.replace("coverage", settings={"numbers": [1]}))


def test_the_own_game_keeps_the_contract():
    import own_game

    jsrl.check_env(jsrl.EnvConfig(own_game.GuidedWalk))


@pytest.mark.slow
def test_the_own_game_trains_two_policies(tmp_path):
    import own_game

    result = jsrl.run(own_game.experiment(4096), runs_dir=tmp_path, **IN_TURN)
    assert result.updates == result.others["walker"]["updates"] == 2


# -- minimal.py -------------------------------------------------------------------------------------------------------


def start_minimal(*options):
    return subprocess.Popen(
        [sys.executable, EXAMPLES / "minimal.py", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def end_of(process, timeout_s=240.0):
    """Return the exit code and the lines of a run of minimal.py. Its processes have ended: they share its output."""
    lines = process.communicate(timeout=timeout_s)[0].splitlines()
    assert lines[-1] == "all processes have ended"
    return process.returncode, lines[:-1]


def test_the_minimal_actor_needs_no_jax():
    parts = "minimal.jsrl.make_env(minimal.ENV, 2, seed=0), minimal.extend.connect_samples, minimal.extend.connect_inference"
    code = f"import sys, minimal; {parts}; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=EXAMPLES)


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["shm", pytest.param("ipc", marks=pytest.mark.nightly)])
def test_the_minimal_run_ends_at_its_goal(transport):
    code, lines = end_of(start_minimal("--goal", "25", "--transport", transport))
    assert code == 0
    assert lines[-1].startswith("solved: ")


@pytest.mark.slow
def test_the_minimal_run_ends_at_ctrl_c_even_while_it_starts():
    process = start_minimal()
    wait_for_children(process, 3)
    os.killpg(process.pid, signal.SIGINT)
    assert end_of(process) == (130, ["interrupted"])


@pytest.mark.slow
def test_the_minimal_run_says_which_process_died():
    process = start_minimal()
    wait_for_children(process, 3)["learner"].kill()
    assert end_of(process) == (1, ["the learner died with exit code -9"])


def wait_for_children(process, number):
    """Return the processes of the three roles, by role."""
    deadline_s = time.monotonic() + 60.0
    while time.monotonic() < deadline_s:
        children = [child for child in psutil.Process(process.pid).children() if "--role" in child.cmdline()]
        if len(children) == number:
            return {json.loads(child.cmdline()[-1])[0]: child for child in children}
        time.sleep(0.05)
    raise AssertionError(f"{number} processes did not start")


@pytest.mark.nightly
@pytest.mark.timeout(1000)
def test_the_minimal_run_solves_cartpole():
    code, lines = end_of(start_minimal(), timeout_s=900.0)
    assert code == 0
    assert lines[-1].startswith("solved: ")
