"""Equal seeds give equal bits: serial twice, and every placement and number of actors in deterministic mode."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from jsrl.agents.ppo import PPOConfig
from jsrl.control.run import run
from jsrl.experiment import EvaluatorConfig, Experiment, LearnerConfig
from jsrl.services.snapshots.store import SnapshotStore
from jsrl.transport.ledger.reconcile import leg_ledger
from jsrl.types import named_leaves
from tests.marks import nightly

UPDATES = 10
SHORT = Experiment(
    name="deterministic",
    agent=PPOConfig(learning_rate=1e-3, schedule="linear", entropy_coef=0.01, normalize_observations=True),
    num_envs=16,
    rollout_length=32,
    placement="served",
    num_actors=1,
    total_env_steps=UPDATES * 16 * 32,
    deterministic=True,
    evaluator=EvaluatorConfig(enabled=False),
)


@pytest.fixture(name="final_state", scope="module")
def final_state_fixture(tmp_path_factory):
    """Return (changes) -> the final state's leaves by name; each run is executed once."""
    folder, known = tmp_path_factory.mktemp("runs"), {}

    def final_state(name=None, **changes):
        name = name or "-".join(f"{k}-{v}" for k, v in changes.items())
        if name not in known:
            before = list(sys.path)
            result = run(SHORT, runs_dir=folder, name=name, display="quiet", **changes)
            sys.path[:] = before
            assert result.ended == "total_env_steps"
            assert leg_ledger(result.ledger).balanced and not result.ledger["in_flight"]
            state = SnapshotStore(Path(result.folder) / "snapshots" / "state").load("final").tree["state"]
            known[name] = dict(named_leaves(state))
        return known[name]

    return final_state


def differing(a, b) -> list[str]:
    """Return the names of leaves that differ in any bit."""
    assert a.keys() == b.keys()
    return [name for name in a if np.asarray(a[name]).tobytes() != np.asarray(b[name]).tobytes()]


@pytest.mark.slow
def test_serial_runs_repeat_for_equal_seeds_only(final_state):
    first = final_state(placement="serial")
    assert any("opt_state" in name or "mu" in name for name in first)
    assert not differing(first, final_state(placement="serial", num_actors=1))
    other = differing(first, final_state(placement="serial", seed=1))
    kernels = [name for name in first if name.endswith("kernel")]
    assert kernels
    assert set(kernels) <= set(other)


@pytest.mark.nightly  # over ZeroMQ every day, below
def test_inline_with_two_actors_equals_serial(final_state):
    assert not differing(final_state(placement="serial"), final_state(placement="inline", num_actors=2))


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        nightly({"placement": "inline", "num_actors": 2, "transport": "zeromq"}),
        {"placement": "served", "num_actors": 2, "num_inference_servers": 2},
        nightly({"placement": "apart", "num_actors": 2}),
        *(
            nightly({"placement": placement, "num_actors": number})
            for placement, number in (("inline", 1), ("inline", 4), ("served", 1), ("served", 4))
        ),
    ],
    ids=lambda changes: "-".join(map(str, changes.values())),
)
def test_every_placement_equals_serial(final_state, changes):
    assert not differing(final_state(placement="serial"), final_state(**changes))


SGD = PPOConfig(
    optimizer="sgd", learning_rate=0.05, max_grad_norm=0.5, num_epochs=2, num_minibatches=1, normalize_observations=True
)


@pytest.mark.nightly
def test_four_fake_devices_equal_one_to_rounding(final_state):
    """The whole system on 4 CPU devices; one minibatch and SGD, so that only rounding may differ."""
    short = {"agent": SGD, "total_env_steps": 3 * 16 * 32}
    one = final_state(**short, placement="serial", name="one")
    four = final_state(**short, placement="inline", learner=LearnerConfig(num_devices=4), name="four")
    for name, value in one.items():
        np.testing.assert_allclose(four[name], value, rtol=2e-3, atol=2e-5, err_msg=name)
    fresh = final_state(placement="serial", agent=SGD, total_env_steps=16 * 32, name="fresh")
    kernels = [name for name in one if name.endswith("kernel")]
    assert any(np.abs(one[name] - fresh[name]).max() > 1e-3 for name in kernels), "nothing was learned"
