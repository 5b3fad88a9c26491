"""The benchmark of off-policy learning: operations, comparable works, arms, and tables from known numbers."""

import json
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from benchmarks.peers import replay_works
from benchmarks.updates import tables
from benchmarks.updates.operations import operations_per_row
from jsrl.agents.sac import SACConfig, sac
from jsrl.agents.td3 import TD3Config, td3
from jsrl.networks.model import NetworkConfig
from jsrl.types import ArraySpec, Continuous, EnvSpec, make_trajectory_spec, zeros
from tests.marks import slow

ROOT = Path(__file__).parents[2]


def products(jaxpr):
    """Return the operations of all matrix products in a jaxpr, except in branches that are not taken."""
    total = 0.0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            left, (out,) = equation.invars[0].aval, equation.outvars
            depth = 1
            for axis in contracted:
                depth *= left.shape[axis]
            total += 2.0 * depth * out.aval.size
        inner = [
            max((products(branch.jaxpr) for branch in value), default=0.0)
            if isinstance(value, tuple) and value and hasattr(value[0], "jaxpr")
            else products(value.jaxpr if hasattr(value, "jaxpr") else value)
            for value in equation.params.values()
            if hasattr(value, "eqns")
            or hasattr(value, "jaxpr")
            or (isinstance(value, tuple) and value and hasattr(value[0], "jaxpr"))
        ]
        total += sum(inner) * equation.params.get("length", 1)
    return total


@pytest.mark.parametrize(
    ("name", "make"),
    [
        slow("sac", lambda s, n: sac(SACConfig(network=n), s)),
        ("td3", lambda s, n: td3(TD3Config(network=n, policy_delay=1), s)),
    ],
)
def test_the_formula_counts_the_products_of_the_real_update(name, make):
    observation, action, width, batch = 17, 6, 32, 64
    box = Continuous((-1.0,) * action, (1.0,) * action, "rescale")
    spec = EnvSpec(ArraySpec((observation,), "float32"), box)
    agent = make(spec, NetworkConfig(hidden=(width, width), activation="relu"))
    state = jax.eval_shape(agent.init, jax.random.key(0))
    rows = make_trajectory_spec(spec, (), (), num_rows=1, num_envs=batch)
    batch_of_rows = jax.tree.map(jnp.asarray, zeros(rows)._replace(version=()))
    counted = products(jax.make_jaxpr(agent.update)(state, batch_of_rows, jax.random.key(1)).jaxpr)
    formula = operations_per_row(name, observation=observation, action=action, width=width)
    if name == "td3":  # the formula has a delay of two; here the policy learns in every update
        one_policy = 2.0 * (3 * (observation * width + width**2 + action * width) - observation * width)
        judged = 2.0 * 2 * ((observation + action) * width + width**2 + width)
        formula += (one_policy + judged) / 2
    assert counted / batch == pytest.approx(formula, rel=0.02)


def test_differences_are_reported():
    alone, learning = replay_works.works("td3", (8192,), (16,))
    assert alone.updates_per_call == 4
    done = {"env": "HalfCheetah-v5", "batch": 8192, "parameters": 1, "learning_rate": 3e-4, "num_envs": 3}
    assert replay_works.differences(alone, done) == [f"parameters 1 for {alone.parameters}"]
    done |= {"batch": 256, "parameters": alone.parameters, "updates_per_step": 0.5}
    assert replay_works.differences(learning, done) == ["num_envs 3 for 16", "updates_per_step 0.5 for 1"]


def run(updates_per_s, updates_per_cpu_s, **more):
    return {"updates_per_s": updates_per_s, "updates_per_cpu_s": updates_per_cpu_s, "pss_mb": 400.0, **more}


@pytest.mark.nightly
@pytest.mark.timeout(900)  # on a loaded machine
def test_our_updates_alone_and_a_run_that_learns(tmp_path):
    words = [sys.executable, str(ROOT / "experiments" / "bench.py"), "sac_halfcheetah", "--batch", "256", "--envs", "8"]
    words += ["--seconds", "1", "--warm-up-s", "0.1", "--repetitions", "1", "--placements", "serial"]
    ran = subprocess.run(
        [*words, "--json", str(tmp_path / "raw.json")], capture_output=True, text=True, timeout=880, check=False
    )
    assert ran.returncode == 0, ran.stderr
    updates, learning = json.loads((tmp_path / "raw.json").read_text())["works"]
    for one in (*updates["arms"], *learning["arms"]):
        assert one["errors"] == []
        assert one["differences"] == []
        (found,) = one["runs"]
        assert found["updates_per_s"] > 1
    assert 0.05 < tables.matrix_share(updates, updates["arms"][0]) < 1.5
    assert "updates alone, batch 256" in ran.stdout
