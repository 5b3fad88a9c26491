"""Population-based training in a run: a copy is the whole state of its parent, and a resume continues bit for bit."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import threading
from pathlib import Path

import jax
import numpy as np
import psutil
import pytest

from jsrl.control.run import run
from jsrl.directors.pbt import PBT, Range
from jsrl.envs.config import EnvConfig
from jsrl.errors import ConfigError
from jsrl.experiment import EvaluatorConfig, Experiment, LearnerConfig, PolicyConfig
from jsrl.services.snapshots.store import SnapshotStore
from jsrl.workers.attached.directed import FOLDER, Copies, DirectorGate
from jsrl.workers.learner.worker import Learner
from tests.climb import ClimbConfig

MEMBERS = ("a", "b", "c")
CLIMB = Experiment(
    env=EnvConfig("tests.climb:Climb"),
    name="climb",
    policies={name: PolicyConfig(ClimbConfig()) for name in MEMBERS},
    director=PBT(MEMBERS, {"step": Range(0.1, 10.0)}, ready_env_steps=30, window=3),
    num_envs=6,
    num_groups=2,
    num_actors=1,
    rollout_length=8,
    total_env_steps=24 * 48,
    placement="serial",
    evaluator=EvaluatorConfig(enabled=False),
)


def run_climb(runs_dir: Path, **changes):
    return run(dataclasses.replace(CLIMB, **changes), runs_dir=runs_dir, display="quiet")


def state_of(result) -> dict:
    return json.loads(Path(result.folder, "director", "newest.json").read_text())["state"]


def snapshot_of(result, policy: str, part: str = "state", selector: str = "latest"):
    folder = Path(result.folder, "snapshots", "" if policy == MEMBERS[0] else policy, part)
    return SnapshotStore(folder).load(selector)


def lines_of(result) -> list[dict]:
    return [json.loads(line) for line in Path(result.folder, "metrics.jsonl").read_text().splitlines()]


class Watch:
    """Stores the states that learners of this process hand over, and their states after the update that takes it."""

    def __init__(self, monkeypatch) -> None:
        self.handed: dict[str, object] = {}
        self.taken: list[tuple[str, object, object, dict]] = []
        hand_over, update = Copies.hand_over, Learner._update

        def handing(copies, policy, version, state):
            self.handed[policy] = jax.device_get(state)
            hand_over(copies, policy, version, state)

        def updating(learner, batch):
            (gate,) = (gate for gate in learner._gates if isinstance(gate, DirectorGate))
            pending = gate._pending
            output = update(learner, batch)
            if pending is not None:
                assert gate._pending is None
                policy = learner.name.partition("-")[2] or MEMBERS[0]
                values = pending["hyperparameters"]
                self.taken.append((policy, jax.device_get(learner._state), self.handed[policy], values))
            return output

        monkeypatch.setattr(Copies, "hand_over", handing)
        monkeypatch.setattr(Learner, "_update", updating)


@pytest.mark.slow
def test_copy_equals_its_parent_except_hyperparameters(tmp_path: Path, monkeypatch) -> None:
    watch = Watch(monkeypatch)
    result = run_climb(tmp_path, total_env_steps=40 * 48)
    assert len(watch.taken) >= 3
    for _, child, parent, values in watch.taken:
        jax.tree.map(np.testing.assert_array_equal, child._replace(extra=child.extra.agent),
                     parent._replace(extra=parent.extra.agent))  # fmt: skip
        assert {name: float(v) for name, v in child.extra.values.items()} == {
            name: float(np.float32(v)) for name, v in values.items()
        }
        assert float(parent.params.weights["height"][0]) > 0 and float(parent.opt_state["momentum"]) > 0
    assert any(child.extra.values["step"] != parent.extra.values["step"] for _, child, parent, _ in watch.taken)
    state, last = state_of(result), {policy: child for policy, child, _, _ in watch.taken}
    for policy in last:
        found = snapshot_of(result, policy).tree["state"]["extra"]["values"]["step"]
        assert float(found) == float(np.float32(state["members"][policy]["hyperparameters"]["step"]))
    lines = lines_of(result)
    for prefix in ("", "b/", "c/"):
        assert any(f"{prefix}learner/hyperparameter_step" in line for line in lines)
        assert max(line.get(f"{prefix}learner/loss", 0.0) for line in lines) == 0.0, (
            "rows from before the copy were trained on"
        )
        shares = [line[f"{prefix}learner/trained"] for line in lines if f"{prefix}learner/trained" in line]
        assert shares and 0.1 < np.mean(shares) < 0.6
    skipped = sum(lines[-1].get(f"{prefix}learner/skipped", 0.0) for prefix in ("", "b/", "c/"))
    assert skipped == len(watch.taken), "at lag 0 a copy costs its learner one update"


@pytest.mark.slow
def test_a_serial_run_is_the_same_whether_it_is_resumed_or_not(tmp_path: Path, monkeypatch) -> None:
    """15 updates at once, and 5 + 10, where the first part ends with a copy: the same states, games and random numbers."""
    watch = Watch(monkeypatch)
    steps = CLIMB.num_envs * CLIMB.rollout_length
    whole = run(CLIMB, runs_dir=tmp_path, name="whole", display="quiet", total_env_steps=15 * steps)
    copies, watch.taken = len(watch.taken), []
    first = run(CLIMB, runs_dir=tmp_path, name="parts", display="quiet", total_env_steps=5 * steps)
    assert watch.taken and all("told" not in snapshot_of(first, policy).meta for policy in MEMBERS)
    parts = run(CLIMB, runs_dir=tmp_path, resume="parts", display="quiet", total_env_steps=15 * steps)
    assert copies >= 2 and len(watch.taken) == copies
    assert state_of(whole) == state_of(parts)
    for policy in MEMBERS:
        jax.tree.map(np.testing.assert_array_equal, snapshot_of(whole, policy).tree, snapshot_of(parts, policy).tree)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"director": PBT(MEMBERS, {"scale": Range(1, 2)})}, "'scale'.*cannot change.*it can change: step, limit"),
        ({"director": PBT(MEMBERS, {"limit": Range(1, 2)})}, "'limit', which is off"),
        ({"director": PBT(MEMBERS[:2], {})}, "'c' is not a member"),
        ({"director": PBT((*MEMBERS, "d"), {})}, "'d', which the run does not have"),
        (
            {"policies": {n: PolicyConfig(ClimbConfig(scale=len(n) + (n == "b"))) for n in MEMBERS}},
            "a and b have agents with different options",
        ),
        ({"director": None}, "let a director choose which of them plays"),
        ({"learner": LearnerConfig(split="actor-critic")}, "split"),
    ],
)
def test_invalid_options_are_refused_before_the_start(changes: dict, expected: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"(?s){expected}"):
        run_climb(tmp_path, **changes)
    assert not any(tmp_path.iterdir())


def kill_when_handed_over(folder: Path, killed: list[str], stop: threading.Event) -> None:
    """Kill the learner to which a state was handed over first, and the learner that handed it over."""
    while not stop.wait(0.005):
        for manifest in folder.rglob(f"{FOLDER}/[0-9]*/manifest.json"):
            member = manifest.parents[2].name
            child = "learner" if member == "snapshots" else f"learner-{member}"
            source = json.loads(manifest.read_text())["meta"]["policy"]
            parent = "learner" if source == MEMBERS[0] else f"learner-{source}"
            for process in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    if process.name() in (child, parent):
                        process.kill()
                        killed.append(process.name())
            return


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("placement", ["inline", "served"])
def test_learners_killed_during_a_copy_are_replaced_and_the_copy_completes(placement: str, tmp_path: Path) -> None:
    killed, stop = list[str](), threading.Event()
    killer = threading.Thread(target=kill_when_handed_over, args=(tmp_path, killed, stop))
    killer.start()
    try:
        changes = {"placement": placement, "num_actors": 2, "total_env_steps": 600 * 48, "restart": 5}
        result = run_climb(tmp_path, **changes)
    finally:
        stop.set()
        killer.join()
    assert len(killed) == 2
    kept = json.loads(Path(result.folder, "director", "newest.json").read_text())
    assert sum(member["life"] for member in kept["state"]["members"].values()) >= 3
    ordered = {order["policy"]: order["hyperparameters"] for order in kept["orders"] if order["type"] == "Copy"}
    for policy in MEMBERS:
        wanted = float(np.float32(kept["state"]["members"][policy]["hyperparameters"]["step"]))
        found = snapshot_of(result, policy)
        has = {float(found.tree["state"]["extra"]["values"]["step"])}
        has |= {
            float(np.float32(told["step"]))
            for told in (found.meta.get("told", {}).get("hyperparameters"), ordered.get(policy))
            if told
        }
        assert wanted in has, (policy, wanted, has)
    assert (
        max(value for line in lines_of(result) for name, value in line.items() if name.endswith("learner/loss")) == 0.0
    )
