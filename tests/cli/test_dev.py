"""`jsrl dev`: the first NaN of a replayed update, and the benchmark of placements in turn."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jsrl.cli import bench
from jsrl.cli.main import main
from jsrl.cli.replay_update import first_nan
from jsrl.tools.tuning.trial import Trial


def update(state, batch, key, *, axis_name=None):
    """Descend on a sum inside compiled loops, as agents do; the logarithm of a negative number is NaN."""

    def loss(state):
        def row(total, value):
            return total + jnp.log(state * value), None

        return jax.lax.pmean(jax.lax.scan(row, 0.0, batch)[0], axis_name)

    return state - jax.grad(loss)(state) * jax.random.permutation(key, 2)[0]


def test_first_operation_that_makes_a_nan_is_named() -> None:
    good, bad = np.array([[1.0, 2.0]], np.float32), np.array([[1.0, -2.0]], np.float32)
    compiled = jax.jit(update, static_argnames="axis_name")
    told = first_nan(compiled, np.float32(1), bad, jax.random.key(0))
    assert told.startswith("log, ") and told.endswith("in row: return total + jnp.log(state * value), None")
    assert f"{__file__}:" in told
    assert first_nan(compiled, np.float32(1), good, jax.random.key(0)) == ""


def test_placements_alternate_and_medians_are_shown(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    measured = []

    def measure(experiment, limits):
        measured.append(experiment.placement)
        if experiment.placement == "apart":
            return Trial(error="the run ended with status 1")
        return Trial(env_steps_per_s=1000.0 * len(measured), start_s=2.0, means={"learner/policy_lag_mean": 0.5})

    monkeypatch.setattr(bench, "measure", measure)
    assert main(["dev", "bench", "ppo_cartpole", "--repetitions", "2"]) == 0
    assert measured == ["serial", "inline", "served", "apart"] * 2
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split() == ["serial", "3,000", "1,000", "-", "5,000", "0.50", "2.0"]
    assert lines[5:] == ["apart: the run ended with status 1"] * 2
    measured.clear()
    assert main(["dev", "bench", "ppo_cartpole", "--placement", "inline", "--repetitions", "1"]) == 0
    assert measured == ["inline"]
