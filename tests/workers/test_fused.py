"""The fused program is a serial run: the same rows, updates and bits; it stops, resumes and is refused as any other."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jsrl import (
    DQNConfig,
    EnvConfig,
    EvaluatorConfig,
    Experiment,
    NetworkConfig,
    PPGConfig,
    PPOConfig,
    PQNConfig,
    SACConfig,
    run,
)
from jsrl.cli.replay_update import replay_update
from jsrl.errors import ConfigError, EnvironmentFault, NonFiniteUpdate, WorkerDied
from jsrl.experiment import LearnerConfig, ReplayConfig
from jsrl.experiment.automatic import Machine, decided_for
from jsrl.extend import ArraySpec, Continuous, Discrete, EnvSpec, JaxStep
from jsrl.graph.plan import make_plan
from jsrl.services.snapshots.store import SnapshotStore
from jsrl.tools.report.limits import RunSetup, find_bottleneck
from jsrl.workers.base import NullReporter
from jsrl.workers.jobs import StartPoint
from jsrl.workers.kinds import build_worker
from jsrl.workers.learner.kind import FUSED
from tests.envs.jax_rows import assert_rows_agree
from tests.fake_devices import fake_devices
from tests.marks import marked

STEPS = 16


class Drift:
    """Moves with the action; the episode terminates beyond 1, and is truncated after `limit` steps."""

    def __init__(self, limit: int = 7, moves: bool = False, breaks: bool = False):
        self.spec = EnvSpec(
            ArraySpec((2,), "float32"), Continuous((-1.0,), (1.0,), "rescale") if moves else Discrete(2)
        )
        self.limit, self.breaks = limit, breaks

    def reset(self, key):
        state = {"at": jax.random.uniform(key), "time": 0}
        return state, self._seen(state)

    def step(self, key, state, action):
        noise = 0.1 * jax.random.normal(key)
        at = state["at"] + 0.3 * jnp.sum(jnp.asarray(action, jnp.float32)) - 0.1 + noise
        state = {"at": at, "time": state["time"] + 1}
        reward = jnp.where(self.breaks & (state["time"] > 5), jnp.nan, 1.0 - jnp.abs(at))
        return JaxStep(state, self._seen(state), reward, jnp.abs(at) > 1, state["time"] >= self.limit)

    def _seen(self, state):
        return jnp.stack([state["at"], jnp.float32(state["time"])])


SMALL = NetworkConfig(hidden=(16,))
PPO = PPOConfig(num_epochs=2, num_minibatches=2, learning_rate=1e-3, network=SMALL)
AGENTS: dict[str, Any] = {
    "ppo": PPO,
    "recurrent ppo": dataclasses.replace(PPO, network=NetworkConfig(hidden=(16,), core="gru")),
    "dqn": DQNConfig(network=SMALL),
    "sac": SACConfig(network=SMALL),
    "ppg": PPGConfig(
        num_minibatches=2, phase_rows=3 * 4 * STEPS, aux_epochs=2, aux_minibatches=2, learning_rate=1e-3, network=SMALL
    ),
    "seats": PPO,
    "pqn": PQNConfig(num_minibatches=4, network=NetworkConfig(hidden=(16,), layer_norm=True)),
}


def experiment(agent: Any = PPO, updates: int = 6, **changes: Any) -> Experiment:
    env = {"moves": isinstance(agent, SACConfig)} | changes.pop("kwargs", {})
    if isinstance(agent, DQNConfig | SACConfig):
        changes |= {"replay": ReplayConfig(capacity=1_000, batch_size=16, min_size=100, updates_per_call=2, save=True)}
    return Experiment(
        agent,
        EnvConfig(f"{__name__}:Drift", kwargs=env, backend="jax"),
        evaluator=EvaluatorConfig(enabled=False),
        num_envs=4,
        rollout_length=STEPS,
        total_env_steps=4 * STEPS * updates,
        **{"placement": "fused", "num_actors": 1} | changes,
    )


def worker(e: Experiment, folder: Path, **changes: Any) -> Any:
    """Return the fused worker of an experiment, set up in this process."""
    folder.mkdir(0o700, exist_ok=True)
    job = make_plan(e, str(folder), folder).job("fused")
    found = build_worker(dataclasses.replace(job, **changes), NullReporter())
    found.setup()
    return found


@contextlib.contextmanager
def compilations() -> Iterator[list[str]]:
    """Collect the programs that jax compiles inside the `with` block."""
    found: list[str] = []

    def note(event: str, seconds: float, **_: Any) -> None:
        if event.endswith("backend_compile_duration"):
            found.append(event)

    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        yield found
    finally:
        jax.monitoring.unregister_event_duration_listener(note)


@pytest.mark.parametrize("name", marked(AGENTS, slow=AGENTS.keys() - {"ppo", "ppg"}, nightly={"ppg"}))
def test_it_trains_as_a_serial_run(name: str, tmp_path: Path) -> None:
    e = experiment(AGENTS.get(name, PPO), updates=8 if name == "ppo" else 50)
    if name == "seats":  # both are played by the policy
        e = dataclasses.replace(e, env=EnvConfig("tests.envs.test_jax_env:Tug", backend="jax"))
    if name == "two devices":
        e = dataclasses.replace(e, num_groups=2, learner=LearnerConfig(num_devices=2))
    serial = run(dataclasses.replace(e, placement="serial"), runs_dir=tmp_path, display="quiet", name="serial")
    fused = worker(e, tmp_path)
    fused.step()
    fused.step()
    with compilations() as compiled:
        while not fused.finished:
            fused.step()
    assert not compiled, "it is compiled once, for any number of trajectories"
    fused.close()
    assert fused.counts["updates"] == serial.updates and fused.env_steps == serial.env_steps
    expected = SnapshotStore(serial.folder / "snapshots" / "state").load("latest").tree["state"]
    found = SnapshotStore(tmp_path / "snapshots" / "state").load("latest").tree["state"]
    for part in ("params", "learner_params", "opt_state"):
        one, other = jax.tree.leaves(expected.get(part)), jax.tree.leaves(found.get(part))
        assert len(one) == len(other) and (part == "learner_params" or one)
        for x, y in zip(one, other, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("limit", [3, 1_000])  # most episodes are truncated, or all terminate
def test_rows_are_those_of_actors(limit: int) -> None:
    endings = assert_rows_agree(EnvConfig(f"{__name__}:Drift", kwargs={"limit": limit}, backend="jax"))
    assert any(endings) and all(endings) == (limit > 3)


def test_a_resume_continues_every_bit(tmp_path: Path) -> None:
    e = experiment(updates=6)
    whole, half = worker(e, tmp_path / "whole"), worker(e, tmp_path / "half")
    for number in (1, 2, 3):  # other calls than those of the halves
        whole._updater.pace.size = number
        whole.step()
    half._updater.pace.size = 4
    half.step()
    half.close()
    store = SnapshotStore(tmp_path / "half" / "snapshots" / "state")
    start = StartPoint(generation=1, updates=4, restore=f"{store.folder}@latest")
    other = worker(e, tmp_path / "half", start_point=start)
    other._updater.pace.size = 2
    other.step()
    assert whole.finished and other.finished
    for x, y in zip(jax.tree.leaves(whole._state), jax.tree.leaves(other._state), strict=True):
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


BAD = dataclasses.replace(PPO, learning_rate=1e37, num_epochs=1, num_minibatches=1)  # the second update has NaN


def test_numbers_that_are_not_finite_stop_it_before_their_update(tmp_path: Path) -> None:
    found = worker(experiment(BAD, updates=9), tmp_path)
    found._updater.pace.size = 5
    found.step()
    assert found.counts["updates"] == 1 and found._state.envs.batches.tolist() == [1]
    with pytest.raises(NonFiniteUpdate, match="update 2 made"):
        found.step()
    found = worker(experiment(kwargs={"breaks": True}), tmp_path / "other")
    with pytest.raises(EnvironmentFault, match="Drift' returned NaN or infinity"):
        found.step()


@pytest.mark.slow
def test_such_an_update_is_repeated_from_the_state_before_it(tmp_path: Path) -> None:
    with pytest.raises(WorkerDied, match="NonFiniteUpdate: update 2 made"):
        run(experiment(BAD, updates=9), runs_dir=tmp_path, display="quiet", name="bad")
    repeated = replay_update("experiment/bad", str(tmp_path))
    assert repeated.updates == 1 and not np.isfinite(repeated.metrics["loss"])


def test_what_it_cannot_do_is_refused() -> None:
    with pytest.raises(ConfigError, match="'CartPole-v1' is not in JAX"):
        Experiment(PPO, EnvConfig("CartPole-v1"), placement="fused")
    for changes, named in (
        ({"num_groups": 2}, "num_groups=2"),
        ({"learner": LearnerConfig(reuse=2), "max_policy_lag": 1}, "learner.reuse=2"),
        ({"record": "somewhere"}, "record='somewhere'"),
    ):
        with pytest.raises(ConfigError, match=f"fused cannot be combined with {named}"):
            experiment(**changes)


def test_auto_chooses_it_for_environments_in_jax() -> None:
    e = experiment(placement="auto", num_actors="auto")
    found, line = decided_for(e, Machine(cores=8), lambda: None)
    assert found.placement == "fused" and line == "auto: --placement fused (for 8 cores, no accelerator)"
    assert decided_for(dataclasses.replace(e, record="here"), Machine(cores=8), lambda: None)[0].placement == "inline"


@pytest.mark.slow
def test_a_group_on_each_device_is_as_two_groups_of_a_serial_run(tmp_path: Path) -> None:
    script = f"""
import sys; sys.path.insert(0, {os.getcwd()!r})
from pathlib import Path
from tests.workers.test_fused import *
if __name__ == "__main__":
    test_it_trains_as_a_serial_run("two devices", Path({str(tmp_path)!r}))
"""
    ended = subprocess.run(
        [sys.executable, "-c", script], env=fake_devices(2), capture_output=True, text=True, timeout=280, check=False
    )
    assert ended.returncode == 0, ended.stderr[-3000:]


def last_line(metrics: dict[str, Any]) -> dict[str, float]:
    return {name: float(column[np.isfinite(column)][-1]) for name, column in metrics.items()}


@pytest.mark.slow
def test_a_run_is_reported_and_resumed_as_any_other(tmp_path: Path) -> None:
    e = experiment(updates=20)
    e = dataclasses.replace(e, evaluator=EvaluatorConfig(episodes=4, num_envs=4, final_episodes=4), stop_at_return=1e9)
    whole = run(e, runs_dir=tmp_path, display="quiet", name="whole")
    half = run(
        dataclasses.replace(e, total_env_steps=e.total_env_steps // 2), runs_dir=tmp_path, display="quiet", name="half"
    )
    rest = run(resume=str(half.folder), total_env_steps=e.total_env_steps, display="quiet")
    assert (whole.updates, half.updates, rest.updates) == (20, 10, 20)
    for x, y in zip(jax.tree.leaves(whole.params), jax.tree.leaves(rest.params), strict=True):
        np.testing.assert_array_equal(x, y)
    assert whole.final["episodes"] == 4
    verdict = find_bottleneck(last_line(whole.metrics), RunSetup(), [FUSED])
    assert verdict.kind == "fused" and "one compiled program" in verdict.text
    assert {"actor/return_mean", "actor/episodes", "learner/loss", "learner/update_share"} <= whole.metrics.keys()
    assert "replay/updates_made" not in whole.metrics
    with pytest.raises(ConfigError, match="snapshots of a fused run hold its environments"):
        run(resume=str(half.folder), placement="inline", display="quiet")
