"""Two policies in one run with processes: the death of one learner does not affect the other, and a resume continues both."""

from __future__ import annotations

import json

import pytest

from jsrl.snapshots.store import SnapshotStore
from tests.system.launched import Launched, assert_balanced
from tests.system.test_supervision import counting

pytestmark = pytest.mark.slow


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
    run.until(lambda: saved(run, "b")["epoch"] == 1, "a snapshot of the next life of learner-b")
    run.until(lambda: saved(run)["updates"] > then["updates"] + 5, "training of the other")
    assert run.await_worker("learner").pid == other
    run.popen.terminate()
    run.expect(130, 40.0)
    assert_balanced(run.result())
    assert set(run.result()["hops"]) == {"samples-b.learner-b"}
    before = [saved(run), saved(run, "b")]
    assert [meta["epoch"] for meta in before] == [0, 1]  # the other was not replaced

    more = max(meta["env_steps"] for meta in before) + 320
    again = launch("--resume", str(run.folder), "--total-env-steps", str(more), experiment="", runs_dir=run.runs_dir)
    again.expect(0, 60.0)
    result = json.loads((run.folder / "result.json").read_text())
    assert result["ended"] == result["others"]["b"]["ended"] == "total_env_steps"
    assert result["env_steps"] >= more and result["others"]["b"]["env_steps"] >= more
    assert saved(run)["updates"] > before[0]["updates"] and saved(run, "b")["updates"] > before[1]["updates"]
    assert "it continues with its changed graph" in again.text and "policy b:" in again.text
    assert_balanced(result)
