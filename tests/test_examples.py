"""The algorithms in examples/ keep the contract of agents, and learn."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

import jsrl
from jsrl.extend import make_spec

EXAMPLES = Path(__file__).parents[1] / "examples"


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
@pytest.mark.parametrize(("name", "score"), [("crossq.py", -200.0), ("recurrent_ppo.py", 475.0)])
def test_an_example_learns(tmp_path, name, score):
    ended = subprocess.run(
        [sys.executable, EXAMPLES / name], cwd=tmp_path, capture_output=True, text=True, timeout=900, check=True
    )
    (line,) = [line for line in ended.stdout.splitlines() if line.startswith("best: return")]
    assert float(line.split("return")[1].split()[0]) >= score, ended.stdout
