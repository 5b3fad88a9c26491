"""Whole runs: their endings, their files, resumes, restarts, replayed updates, and where jax is loaded."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from jsrl.services.snapshots.store import SnapshotStore
from tests.system.launched import FOREVER, WORLD, Launched, assert_balanced

pytestmark = pytest.mark.slow


# -- ending -----------------------------------------------------------------------------------------------------------

ENDINGS = {
    "total_env_steps": ("--total-env-steps", "640"),
    "max_minutes": (*FOREVER, "--max-minutes", "0.03"),
    "stop_at_return": (*FOREVER, "--stop-at-return", "1.0", "--evaluator.period-env-steps", "64"),
}


# Nightly: the final evaluation, below, ends by max_minutes, and the definitions of a script by stop_at_return.
BY_NIGHT = ("max_minutes", "stop_at_return")


@pytest.mark.parametrize(
    "reason", [pytest.param(r, marks=pytest.mark.nightly if r in BY_NIGHT else ()) for r in ENDINGS]
)
def test_end_of_run_names_the_reason_and_writes_all_files(launch, reason: str) -> None:
    run = launch(*ENDINGS[reason], "--evaluator.enabled")
    text = run.expect(0, 60.0)
    assert f"reached {reason}" in text and "balanced" in text
    result = run.result()
    assert result["ended"] == reason and result["updates"] > 0
    assert result["final"]["episodes"] == 4
    assert_balanced(result)
    lines = run.lines()
    assert lines and all({"env_steps", "updates", "wall_s"} <= set(line) for line in lines)
    assert any("evaluator/return_mean" in line for line in lines)
    assert any("evaluator/final_return_mean" in line for line in lines)
    for name in ("experiment.json", "environment.json"):
        assert json.loads((run.folder / name).read_text())
    logs = {path.name for path in (run.folder / "logs").iterdir()}
    assert {"actor-0.log", "inference-0.log", "learner.log", "evaluator.log", "controller.log"} <= logs
    assert SnapshotStore(run.folder / "snapshots" / "state").meta("final")["updates"] == result["updates"]


# -- resume -----------------------------------------------------------------------------------------------------------


def resume(launch, run: Launched, *arguments: str) -> Launched:
    return launch("--resume", str(run.folder), *arguments, experiment="", runs_dir=run.runs_dir)


@pytest.mark.nightly
def test_resume_continues_from_the_snapshot_in_another_placement(launch) -> None:
    run = launch("--placement", "serial")
    run.expect(0, 30.0)
    before = run.result()
    snapshot = SnapshotStore(run.folder / "snapshots" / "state").load("latest")
    text = resume(launch, run, "--agent.width", "3").expect(2, 30.0)
    assert "--agent.width cannot change on resume (0 -> 3)" in text
    again = resume(launch, run, "--placement", "served", "--total-env-steps", "1280")
    text = again.expect(0, 40.0)
    assert "changed: --placement serial -> served" in text and "--total-env-steps 640 -> 1280" in text
    after = run.result()
    assert (before["updates"], after["updates"], after["env_steps"]) == (20, 40, 1280)
    assert_balanced(after)
    latest = SnapshotStore(run.folder / "snapshots" / "state").load("latest")
    assert latest.meta["generation"] == snapshot.meta["generation"] + 1
    assert int(latest.tree["state"]["updates"]) == 40
    lines = run.lines()
    assert [line["updates"] for line in lines] == sorted(line["updates"] for line in lines)
    assert [line["wall_s"] for line in lines] == sorted(line["wall_s"] for line in lines)


def test_resumed_state_is_the_snapshot(tmp_path: Path) -> None:
    """And a run that has nothing left to train is not resumed."""
    code = f"""
import sys
sys.path[:0] = [{str(WORLD)!r}, {str(WORLD / "extra_configs")!r}]
import numpy as np, jax, tiny
from jsrl.errors import ConfigError
from jsrl.control.run import run
first = run(tiny.config(), runs_dir={str(tmp_path)!r}, display="quiet", placement="serial")
tree = first.params
try:
    run(runs_dir={str(tmp_path)!r}, display="quiet", resume=str(first.folder))
except ConfigError as error:
    print("REFUSED", error)
more = run(runs_dir={str(tmp_path)!r}, display="quiet", resume=str(first.folder), total_env_steps=641)
weights = jax.tree.leaves(tree)[0]
print("FIRST", more.metrics["learner/weights_before"][-1] == np.float64(weights[0, 0]))
try:
    run(tiny.config(), runs_dir={str(tmp_path)!r}, display="quiet", placement="serial", resume=str(first.folder),
        total_env_steps=320)
except ConfigError as error:
    print("REFUSED", error)
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=False)
    assert "has trained 640 env steps of --total-env-steps 640; give a larger number" in ended.stdout, ended.stderr
    assert "FIRST True" in ended.stdout, ended.stdout + ended.stderr
    assert "has trained 672 env steps of --total-env-steps 320; give a larger number" in ended.stdout, ended.stdout


def test_resume_after_a_killed_controller(launch) -> None:
    run = launch(*FOREVER, "--snapshots.period-s", "0.5")
    run.await_updates(10)
    run.until((run.folder / "snapshots" / "state" / "tags" / "latest.json").exists, "a snapshot")
    run.popen.kill()
    run.popen.wait()
    store = SnapshotStore(run.folder / "snapshots" / "state")
    updates = store.meta("latest")["updates"]
    again = resume(launch, run, "--total-env-steps", str(32 * (updates + 20)))
    again.expect(0, 40.0)
    assert run.result()["updates"] == updates + 20
    assert_balanced(run.result(), unknown_allowed=True)


@pytest.mark.nightly
def test_init_from_takes_the_params_only(launch) -> None:
    run = launch("--placement", "serial", "--evaluator.enabled", "--evaluator.period-env-steps", "64")
    run.expect(0, 30.0)
    best = SnapshotStore(run.folder / "snapshots" / "params").load("best").tree["params"]
    name = f"{run.folder.parent.name}/{run.folder.name}"
    other = launch("--placement", "serial", "--init-from", f"{name}@best", "--total-env-steps", "32", "--run-name", "b")
    other.expect(0, 30.0)
    assert other.result()["updates"] == 1
    first = other.lines()[-1]["learner/weights_before"]
    assert first == float(np.asarray(best["weights"]["policy"])[0, 0])


def test_a_running_run_cannot_be_resumed(launch) -> None:
    run = launch(*FOREVER, "--snapshots.period-s", "0.5")
    run.until(lambda: list(run.runs_dir.glob("*/*/snapshots/state/tags/latest.json")), "a snapshot")
    text = resume(launch, run).expect_status(2, 30.0)
    assert "is running" in text
    assert run.popen.poll() is None


# -- restart ----------------------------------------------------------------------------------------------------------

RESTARTS = {
    "synchronous": (),
    "two actors": ("--num-actors", "2"),
    "asynchronous": ("--max-policy-lag", "none", "--num-actors", "2"),
    "lag of one": ("--max-policy-lag", "1"),
    "inline": ("--placement", "inline"),
    "zeromq": ("--transport", "zeromq"),
    "hosted": ("--num-actors", "4", "--num-groups", "4"),
}


@pytest.mark.nightly  # daily below; test_supervision kills more in these, and test_actor_host hosted actors
@pytest.mark.parametrize("case", RESTARTS)
def test_killed_actors_are_replaced_and_learning_continues(launch, case: str) -> None:
    run = launch(*FOREVER, "--restart", "3", *RESTARTS[case])
    run.await_updates()
    for number in range(3):  # at any point of its trajectory
        updates = run.lines()[-1]["updates"]
        victim = run.workers()["actor-0"]
        victim.kill()
        run.await_another("actor-0", victim.pid)
        run.await_updates(updates + 40 if number < 2 else updates + 80)
    assert run.text.count("actor-0 ended unexpectedly: killed by signal 9") == 3 and "restart 3 of 3" in run.text
    run.popen.terminate()
    run.expect(130, 15.0)
    assert_balanced(run.result(), unknown_allowed=case == "zeromq")


@pytest.mark.nightly
def test_actors_killed_at_their_most_frequent_points(launch) -> None:
    """The first waits for params after a commit; the second is inside a trajectory."""
    run = launch(*FOREVER, "--restart", "5", "--num-actors", "2", "--env.id", "worlds:SlowInSecondActor")
    run.await_updates()
    for victim in ("actor-0", "actor-1") * 2:
        updates, old = run.lines()[-1]["updates"], run.workers()[victim]
        old.kill()
        run.await_another(victim, old.pid)
        run.await_updates(updates + 15)
    run.popen.terminate()
    text = run.expect(130, 15.0)
    for actor in ("actor-0", "actor-1"):
        assert text.count(f"{actor} ended unexpectedly: killed by signal 9") == 2
    assert_balanced(run.result())


@pytest.mark.nightly
def test_exhausted_restart_budget_ends_the_run_and_names_the_worker(launch) -> None:
    text = launch(*FOREVER, "--restart", "1", "--env.id", "worlds:RaisesInStep").expect(1, 40.0)
    assert "restart 1 of 1" in text
    assert "WorkerDied: actor-0: EnvironmentFault" in text and "has used its 1 restart within 600 s" in text


# -- not finite -------------------------------------------------------------------------------------------------------


def test_update_that_is_not_finite_is_kept_and_can_be_replayed(launch) -> None:
    run = launch("--agent.nan-at-update", "7", "--placement", "inline")
    text = run.expect(1, 30.0)
    assert "NonFiniteUpdate: update 8 made loss = nan (1 of 2 metrics are not finite)" in text
    command = next(line for line in text.splitlines() if "Replay it with: " in line).split("Replay it with: ")[1]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    words = [sys.executable, "-m", "jsrl.cli.main", *command.split()[1:]]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=240, env=environment, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "update 8, repeated" in ended.stdout
    assert "loss" in ended.stdout and "<- not finite" in ended.stdout
    assert "the batch: all values are finite" in ended.stdout
    assert "params/weights/policy: 4 of 4 values" in ended.stdout
    assert SnapshotStore(run.folder / "snapshots" / "state").meta("latest")["updates"] == 7


@pytest.mark.nightly
def test_a_gradient_that_is_not_finite_is_neither_published_nor_saved(launch) -> None:
    run = launch("--agent.nan-gradient-at-update", "7", "--placement", "inline")
    text = run.expect(1, 30.0)
    assert "NonFiniteUpdate: update 8 made a state with NaN or infinity in it" in text
    saved = SnapshotStore(run.folder / "snapshots" / "state").load_snapshot("latest")
    assert saved.meta["updates"] == 7
    assert np.isfinite(saved.tree["state"]["params"]["weights"]["policy"]).all()
    lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert not any("state_finite" in name for line in lines for name in line)


# -- jax, and definitions of the user's -------------------------------------------------------------------------------


def test_actor_loads_no_jax_and_freezes_its_start_up_objects(launch) -> None:
    text = launch(*FOREVER, "--env.id", "worlds:TellsOfJax").expect(1, 30.0)
    told = re.search(r"RuntimeError in step: loaded: \[\], frozen: (\d+)", text)
    assert told and int(told[1]) > 10_000, text


def test_environment_that_imports_jax_is_reported_and_continues(launch) -> None:
    text = launch("--env.id", "worlds:ImportsJax").expect(0, 40.0)
    assert "actor-0: the environment imported jax" in text


SCRIPT = """
import dataclasses
import sys
sys.path[:0] = [{world!r}]
import gymnasium
import numpy as np
from tiny_agent import TinyConfig, tiny
from jsrl.envs.config import EnvConfig
from jsrl.experiment import AgentReference, EvaluatorConfig, Experiment
from jsrl.control.run import run

REWARD = 1.0

class Mine(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {{}}

    def step(self, action):
        return np.zeros(1, np.float32), REWARD if action else -REWARD, True, False, {{}}

class Doubled(gymnasium.RewardWrapper):
    def reward(self, reward):
        return 2.0 * reward

def mine(spec, rate):
    return tiny(TinyConfig(learning_rate=rate), spec)

@dataclasses.dataclass(frozen=True)
class MineConfig:
    rate: float = 0.0

    def factory(self, spec):
        return mine(spec, self.rate)

result = run(
    Experiment(
        name="mine", agent={agent}, env=EnvConfig(Mine, wrappers=(Doubled,)), num_envs=4,
        rollout_length=8, total_env_steps=10_000_000, stop_at_return=2.0,
        evaluator=EvaluatorConfig(episodes=4, num_envs=4, final_episodes=4, period_env_steps=64),
    ),
    runs_dir={runs!r}, display="quiet", placement={placement!r},
)
print("ENDED", result.ended, result.evaluation["return_mean"])
"""


@pytest.mark.parametrize(
    ("placement", "agent"), [("serial", 'AgentReference(mine, {"rate": 0.5})'), ("served", "MineConfig(0.5)")]
)
def test_definitions_of_a_script_reach_the_workers(tmp_path: Path, placement: str, agent: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(world=str(WORLD), runs=str(tmp_path / "runs"), placement=placement, agent=agent))
    ended = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=240, check=False)
    assert "ENDED stop_at_return 2.0" in ended.stdout, ended.stdout + ended.stderr
    (config,) = (tmp_path / "runs").glob("mine/*/experiment.json")
    stored = json.loads(config.read_text())["fields"]["env"]["fields"]
    assert stored["id"].endswith(":Mine") and not stored["id"].startswith("__main__")
    assert "imported jax" not in (config.parent / "logs" / "controller.log").read_text()


# -- lag --------------------------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_with_reuse_no_trajectory_is_acted_too_early(launch) -> None:
    """The smallest lag for two updates per batch: a trajectory acted earlier would be stale, and the run would stall."""
    run = launch("--learner.reuse", "2", "--max-policy-lag", "1")
    run.expect(0, 60.0)
    result = run.result()
    assert result["updates"] == 40 and not result["ledger"]["dropped"].get("stale")
    assert_balanced(result)


# -- the end ----------------------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_final_evaluation_waits_for_a_restarting_evaluator(launch) -> None:
    late = ("--restart", "3", "--supervision.backoff-s", "8")  # after the end of the training
    run = launch(*FOREVER, "--max-minutes", "0.1", "--evaluator.enabled", *late)
    run.await_updates(5)
    run.await_worker("evaluator").kill()
    text = run.expect(0, 60.0)
    assert "evaluator ended unexpectedly" in text and run.result()["ended"] == "max_minutes"
    assert run.result()["final"]["episodes"] == 4
