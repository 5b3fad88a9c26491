"""Several policies in one environment: each learns from its own seats, and placement changes no bit."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
import threading
import time
from pathlib import Path

import jax
import numpy as np
import psutil
import pytest

from jsrl.agents.ppo import PPOConfig
from jsrl.control.run import run
from jsrl.envs.config import EnvConfig
from jsrl.errors import ConfigError
from jsrl.experiment import EvaluatorConfig, Experiment, InferenceConfig, PolicyConfig
from jsrl.graph.plan import make_plan
from jsrl.networks.model import NetworkConfig
from jsrl.types import ArraySpec, version_updates
from tests.marks import nightly

UPDATES = 6
PPO = PPOConfig(network=NetworkConfig(hidden=(8,)), num_epochs=1, num_minibatches=1, learning_rate=0.01)
POLICIES = {
    "scout": PolicyConfig(PPO, "scout"),
    "carriers": PolicyConfig(dataclasses.replace(PPO, gamma=0.9), "carrier_*"),
    "boss": PolicyConfig(dataclasses.replace(PPO, normalize_observations=True), ("boss",)),
}
DEPOT = Experiment(
    env=EnvConfig("tests.envs.seated:Depot"),
    name="depot",
    policies=POLICIES,
    num_envs=4,
    num_groups=2,
    num_actors=1,
    rollout_length=8,
    total_env_steps=UPDATES * 32,
    placement="serial",
    deterministic=True,
    evaluator=EvaluatorConfig(enabled=True, episodes=2, final_episodes=2, num_envs=2),
)

pytestmark = pytest.mark.timeout(900)  # runs of three policies: minutes on a busy machine


@pytest.fixture(name="trained", scope="module")
def trained_fixture(tmp_path_factory):
    """Return (changes) -> the result of a run; each is executed once."""
    folder, known = tmp_path_factory.mktemp("runs"), {}

    def trained(**changes):
        key = repr(changes)
        if key not in known:
            before = list(sys.path)
            known[key] = run(DEPOT, runs_dir=folder, name=f"run-{len(known)}", display="quiet", **changes)
            sys.path[:] = before
        return known[key]

    return trained


def params(result, policy: str) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(result.params_of("" if policy == "scout" else policy))]


def same(one, other, policy: str) -> bool:
    pairs = zip(params(one, policy), params(other, policy), strict=True)
    return all(a.tobytes() == b.tobytes() for a, b in pairs)


@pytest.mark.slow
def test_each_policy_has_its_own_updates_scores_and_snapshots(trained) -> None:
    result = trained()
    assert (result.updates, result.env_steps) == (UPDATES, UPDATES * 32)
    assert {name: other["updates"] for name, other in result.others.items()} == {"carriers": UPDATES, "boss": UPDATES}
    folder = Path(result.folder)
    assert (folder / "snapshots" / "boss" / "state").is_dir() and (folder / "snapshots" / "state").is_dir()
    finals = [result.metrics[f"{prefix}evaluator/final_return_mean"] for prefix in ("", "carriers/", "boss/")]
    values = [float(column[~np.isnan(column)][-1]) for column in finals]
    assert len(set(values)) == 3  # of its own seats


@pytest.mark.slow
@pytest.mark.parametrize(
    ("placement", "shared", "boss"),
    [
        nightly("inline", False, "as-run"),
        nightly("served", True, "as-run"),
        nightly("served", False, "inline"),
        ("served", True, "inline"),
    ],
)
def test_processes_train_the_same_bits_as_one(trained, placement: str, shared: bool, boss: str) -> None:
    """Also if one inference server answers for all policies, or actors act for one of them and servers for others."""
    changes = {"inference": InferenceConfig(shared=True)} if shared else {}
    changes["evaluator"] = EvaluatorConfig(enabled=False)  # which does not change what is learned
    changes["policies"] = POLICIES | {"boss": dataclasses.replace(POLICIES["boss"], placement=boss)}
    serial, other = trained(), trained(placement=placement, num_actors=2, **changes)
    assert [same(serial, other, policy) for policy in POLICIES] == [True] * 3
    servers = len(list(Path(other.folder, "logs").glob("inference*")))
    assert servers == {"inline": 0, "served": 1 if shared else 2}[placement]


@pytest.mark.slow
@pytest.mark.parametrize("placement", ["serial", nightly("served")])
def test_finished_policy_keeps_playing_for_the_others(tmp_path: Path, placement: str) -> None:
    """As when the learner of one was replaced and is behind: the other ends first and does not wait for its updates."""
    result = run(
        DEPOT,
        runs_dir=tmp_path,
        placement=placement,
        max_minutes=10.0,
        graph=lambda graph: graph.replace("learner-boss", settings={"total_env_steps": 64}),
        display="quiet",
    )
    assert result.ended == "total_env_steps"
    assert (result.updates, result.others["carriers"]["updates"], result.others["boss"]["updates"]) == (
        UPDATES,
        UPDATES,
        2,
    )


@pytest.mark.slow
def test_resumed_run_continues_bit_for_bit(trained) -> None:
    """Learners, journals of all policies' actions and counters resume together, after an update with snapshots of all."""
    half = trained(total_env_steps=UPDATES // 2 * 32)
    again = {"resume": str(half.folder), "runs_dir": Path(half.folder).parents[1], "display": "quiet"}
    run(DEPOT, total_env_steps=(UPDATES // 2 + 1) * 32, **again)
    newest = max(Path(half.folder, "snapshots", "boss", "state").glob("[0-9]*"), key=lambda path: int(path.name))
    assert version_updates(int(newest.name)) == UPDATES // 2 + 1
    shutil.rmtree(newest)
    whole = run(DEPOT, **again)
    assert (whole.updates, whole.others["boss"]["updates"]) == (UPDATES, UPDATES)
    assert [same(trained(), whole, policy) for policy in POLICIES] == [True] * 3


@pytest.mark.nightly
def test_settings_of_one_policy_affect_that_policy_first(trained) -> None:
    """With one update, what a policy learns depends only on its own settings: the first rows were played by initial params."""
    changed = POLICIES | {"carriers": PolicyConfig(dataclasses.replace(PPO, learning_rate=0.1), "carrier_*")}
    one, other = trained(total_env_steps=32), trained(total_env_steps=32, policies=changed)
    assert same(one, other, "scout") and same(one, other, "boss") and not same(one, other, "carriers")


def test_policies_see_only_their_own_seats() -> None:
    plan = make_plan(DEPOT, "folder", Path("memory"))
    env = {name: schemas.env for name, schemas in plan.schemas_of.items()}
    assert env["carriers"].observation == {"load": ArraySpec((2, 2), "float32")} and env["carriers"].num_agents == 2
    assert env["scout"].observation == ArraySpec((1, 3), "float32")
    actor = plan.job("actor-0")
    assert actor.seat_groups == {"scout": ("scout",), "carriers": ("carrier_0", "carrier_1"), "boss": ("boss",)}
    assert [job.policy for job in actor.by_policy] == list(POLICIES)
    rows = actor.others[0].schemas.trajectory
    assert rows.reward.shape == rows.version.shape == (9, 2, 2)
    evaluator = plan.job("evaluator-boss")
    assert [job.policy for job in evaluator.by_policy] == ["boss", "scout", "carriers"]
    assert (
        len({job.experiment.seed for job in actor.by_policy}) == 3
    )  # otherwise seats of one kind would have the same random numbers


@pytest.mark.parametrize(
    ("policies", "text"),
    [
        (
            {"a": PolicyConfig(PPO, "scout"), "b": PolicyConfig(PPO, "carier_*")},
            r"policies\.b\.seats: 'carier_\*' matches no",
        ),
        (
            {"a": PolicyConfig(PPO, "scout"), "b": PolicyConfig(PPO, "*")},
            "seat scout of 'depot' is played by both a and b",
        ),
        (
            {"a": PolicyConfig(PPO, "scout"), "b": PolicyConfig(PPO, "boss")},
            "no policy plays seats carrier_0, carrier_1 of",
        ),
        ({"a": PolicyConfig(PPO, "*")}, "scout and carrier_0 of 'depot' cannot be played by one policy: observation"),
    ],
)
def test_seats_without_one_policy_are_refused(policies, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        make_plan(dataclasses.replace(DEPOT, policies=policies), "folder", Path("memory"))


def test_options_incompatible_with_policies_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"has an agent .PPOConfig. beside its policies scout, carriers, boss"):
        dataclasses.replace(DEPOT, agent=PPO)
    with pytest.raises(ConfigError, match="a policy is called 'Big Boss'; use lower-case letters"):
        dataclasses.replace(DEPOT, policies={"Big Boss": PolicyConfig(PPO)})
    with pytest.raises(ConfigError, match=r"environment 'CartPole-v1' has one agent, but there are 3 policies"):
        make_plan(dataclasses.replace(DEPOT, env=EnvConfig("CartPole-v1")), "folder", Path("memory"))


@pytest.mark.nightly
def test_killed_learner_of_one_policy_returns_and_all_finish(tmp_path: Path) -> None:
    """It restarts behind the others, which finish before it and keep playing with it."""
    killed: list[int] = []

    def kill() -> None:
        deadline = time.monotonic() + 120
        while not killed and time.monotonic() < deadline:
            time.sleep(0.5)
            workers = [p for p in psutil.Process().children() if "jobs/learner-carriers" in " ".join(p.cmdline())]
            lines = [line for path in tmp_path.rglob("metrics.jsonl") for line in path.read_text().splitlines()[-1:]]
            if workers and lines and json.loads(lines[0]).get("carriers/updates", 0) > 200:
                workers[0].kill()
                killed.append(workers[0].pid)

    thread = threading.Thread(target=kill)
    thread.start()
    totals = {"total_env_steps": 64_000, "deterministic": False, "restart": 2}
    result = run(DEPOT, runs_dir=tmp_path, placement="served", display="quiet", **totals)
    thread.join()
    assert killed and result.ended == "total_env_steps" and result.metrics["restarts/learner"][-1] == 1
    assert (result.updates, result.others["carriers"]["updates"], result.others["boss"]["updates"]) == (
        2000,
        2000,
        2000,
    )
