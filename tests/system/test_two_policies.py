"""Two policies in one run with processes: the death of one learner does not affect the other, and a resume continues both."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jsrl.services.snapshots.store import SnapshotStore
from tests.system.launched import FOREVER, Launched, assert_balanced
from tests.system.test_supervision import counting

pytestmark = pytest.mark.slow
RUN = Path(__file__).parents[2] / "experiments" / "run.py"


def saved(run: Launched, policy: str = "") -> dict:
    return SnapshotStore(run.folder / "snapshots" / policy / "state").meta("latest")


def test_killed_learner_recovers_and_both_policies_resume(launch) -> None:
    """The update fails where rows or cores of two incarnations are mixed."""
    run = counting(launch, "--graph", "my_workers:two_policies", "--num-actors", "2", "--restart", "5")
    for policy in ("", "b"):
        run.until(
            (run.folder / "snapshots" / policy / "state" / "tags" / "latest.json").exists, f"a snapshot of {policy}"
        )
    other = run.await_worker("learner").pid
    killed = run.await_worker("learner-b")
    then = saved(run)
    killed.kill()
    run.await_another("learner-b", killed.pid)
    run.until(lambda: saved(run, "b")["generation"] == 1, "a snapshot of the next life of learner-b")
    run.until(lambda: saved(run)["updates"] > then["updates"] + 5, "training of the other")
    assert run.await_worker("learner").pid == other
    run.popen.terminate()
    run.expect(130, 40.0)
    assert_balanced(run.result())
    assert set(run.result()["legs"]) == {"samples-b.learner-b"}
    before = [saved(run), saved(run, "b")]
    assert [meta["generation"] for meta in before] == [0, 1]  # the other was not replaced

    more = max(meta["env_steps"] for meta in before) + 320
    again = launch("--resume", str(run.folder), "--total-env-steps", str(more), experiment="", runs_dir=run.runs_dir)
    again.expect(0, 60.0)
    result = json.loads((run.folder / "result.json").read_text())
    assert result["ended"] == result["others"]["b"]["ended"] == "total_env_steps"
    assert result["env_steps"] >= more and result["others"]["b"]["env_steps"] >= more
    assert saved(run)["updates"] > before[0]["updates"] and saved(run, "b")["updates"] > before[1]["updates"]
    assert "it continues with its changed graph" in again.text and "policy b:" in again.text
    assert_balanced(result)


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_killed_rank_restarts_the_ranks_of_its_policy_alone(launch) -> None:
    words = ("--placement", "inline", "--num-actors", "2", "--num-envs", "8", "--no-evaluator.enabled", *FOREVER)
    again = ("--restart", "5", "--supervision.backoff-s", "0.1", "--snapshots.period-s", "0.5")
    run = launch(*words, *again, "--learner.num-ranks", "2", experiment="chase", script=RUN)
    run.await_updates(3, 200.0)
    latest = run.folder / "snapshots" / "runner" / "state" / "tags" / "latest.json"
    run.until(latest.exists, "a snapshot of runner", 100.0)
    before = {name: process.pid for name, process in run.workers().items()}
    run.workers()["rank-runner-1"].kill()
    for name in ("learner-runner", "rank-runner-1"):
        run.await_another(name, before[name], 100.0)
    run.until(lambda: saved(run, "runner")["generation"] == 1, "a snapshot of the next generation of runner", 200.0)
    then = saved(run)["updates"]
    run.until(lambda: saved(run)["updates"] > then + 2, "training of the other policy", 100.0)
    now = run.workers()
    assert all(now[name].pid == before[name] for name in ("learner", "rank-1", "actor-0", "actor-1"))
    run.popen.terminate()
    run.expect(130, 60.0)
    assert saved(run)["generation"] == 0
    assert_balanced(run.result(), unknown_allowed=True)
