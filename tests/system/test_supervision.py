"""Workers that die, stop or hang in a run with restarts: replaced in time, fenced, nothing lost or mixed."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest

from jsrl.services.snapshots.store import SnapshotStore
from jsrl.transport.ledger.leg_page import pages_in, read_connections
from jsrl.transport.ledger.legs import SAMPLES, leg_folder, read_leg
from jsrl.transport.ledger.page import LEDGER, read_page
from tests.marks import nightly
from tests.patience import stretched
from tests.system.launched import Launched, assert_balanced

pytestmark = pytest.mark.slow
RECOVERED_S = 30.0  # the time it took is printed


def counting(launch, *arguments: str) -> Launched:
    """Start the run whose update fails where rows or cores of two incarnations are mixed."""
    run = launch(*arguments, experiment="counting")
    run.await_updates(5)
    return run


def consumed(run: Launched) -> tuple[int, int]:
    """Return (generation, trajectories consumed) from the ledger's page."""
    life = read_page(run.folder / LEDGER)
    assert life is not None
    return life.generation, life.ledger.consumed


def saved_updates(run: Launched) -> int:
    """Return the updates of the last committed snapshot."""
    latest = run.folder / "snapshots" / "state" / "tags" / "latest.json"
    return SnapshotStore(run.folder / "snapshots" / "state").meta("latest")["updates"] if latest.exists() else 0


def await_snapshot(run: Launched) -> None:
    run.until(lambda: saved_updates(run), "a snapshot")


def await_training(run: Launched, since_s: float, worker: str, old_pid: int) -> float:
    """Wait until the worker has a new process and trajectories are consumed again; return the seconds since a time."""
    run.await_another(worker, old_pid, RECOVERED_S)
    while True:
        before = consumed(run)
        time.sleep(0.2)
        now = consumed(run)
        if now[0] == before[0] and now[1] > before[1] + 2:
            return time.monotonic() - since_s
        assert run.popen.poll() is None, run.text
        assert time.monotonic() - since_s < stretched(RECOVERED_S), (
            f"{worker}: no training after its replacement\n{run.text}"
        )


def end(run: Launched, transport: str = "shared-memory") -> dict:
    """Stop the run in order; return its result, whose ledgers must reconcile."""
    run.popen.terminate()
    text = run.expect(130, 20.0)
    assert "NOT BALANCED" not in text and "not finite" not in text, text
    result = run.result()
    assert_balanced(result, unknown_allowed=transport == "zeromq")
    return result


@pytest.mark.parametrize(
    ("workers", "arguments"),
    [
        nightly(("actor-0", "inference-0", "learner"), ("--num-actors", "2")),
        (("learner", "parameter-server", "inference-0", "actor-0"), ("--transport", "zeromq")),
    ],
    ids=["shared-memory", "zeromq"],
)
def test_killed_workers_are_replaced_and_incarnations_are_not_mixed(launch, workers, arguments) -> None:
    run = counting(launch, *arguments)
    await_snapshot(run)
    survivors = run.workers()
    for worker in workers:
        saved, (generation, _) = saved_updates(run), consumed(run)
        victim, since_s = run.workers()[worker], time.monotonic()
        survivors = {name: p.pid for name, p in run.workers().items() if name != worker}
        victim.kill()
        took_s = await_training(run, since_s, worker, victim.pid)
        print(f"{worker}: kill -> training again in {took_s:.1f} s")  # noqa: T201
        assert {
            name: p.pid for name, p in run.workers().items() if name != worker
        } == survivors  # no other worker restarted
        if worker == "learner":
            assert consumed(run)[0] == generation + 1
            job = json.loads((run.folder / "jobs" / "learner.json").read_text())
            assert (
                saved <= start_point_of(job)["updates"]
            )  # at most the updates after the last committed snapshot are lost
    end(run, "zeromq" if "zeromq" in arguments else "shared-memory")
    line = {name: value for each in run.lines() for name, value in each.items()}
    kinds = {worker.rstrip("-0123456789").replace("-", "_") for worker in workers}
    assert {name for name in line if name.startswith("restarts/")} == {f"restarts/{kind}" for kind in kinds}


@pytest.mark.parametrize("transport", ["shared-memory", nightly("zeromq")])
def test_a_synchronous_run_goes_on_while_an_actor_is_replaced(launch, transport: str) -> None:
    """The others make its rows with the same params; afterwards each makes its own again."""
    inline = ("--placement", "inline", "--num-actors", "3", "--num-envs", "6", "--num-groups", "3")
    slowly = ("--supervision.backoff-s", "2", "--supervision.max-backoff-s", "2")
    run = counting(launch, *inline, *slowly, "--transport", transport)

    def received() -> int:
        connections = read_connections(leg_folder(run.folder, SAMPLES))
        return sum(c.received for c in connections if c.name == "actor-1.1")

    victim = run.workers()["actor-1"]
    victim.kill()
    victim.wait()
    _, before = consumed(run)
    run.until(lambda: consumed(run)[1] > before + 30, "10 updates without it")
    assert received() == 0
    run.until(lambda: received() > 20, "trajectories of its replacement")
    result = end(run, transport)
    lags = [line["learner/policy_lag_max"] for line in run.lines() if "learner/policy_lag_max" in line]
    assert max(lags) == 0 and lags
    assert result["ledger"]["dropped"].get("stale", 0) < 10


@pytest.mark.nightly
@pytest.mark.parametrize("transport", ["shared-memory", nightly("zeromq")])
def test_producers_and_consumers_are_killed_and_the_ledger_reconciles(launch, transport: str) -> None:
    run = counting(
        launch, "--num-actors", "2", "--placement", "inline", "--max-policy-lag", "none", "--transport", transport
    )
    await_snapshot(run)
    for worker in ("actor-0", "learner", "actor-1", "learner"):
        victim, since_s = run.workers()[worker], time.monotonic()
        victim.kill()
        await_training(run, since_s, worker, victim.pid)
    result = end(run, transport)
    connections = read_connections(leg_folder(run.folder, SAMPLES))
    assert len(connections) >= 2 + 4
    produced = sum(c.committed for c in connections)
    assert produced <= result["ledger"]["produced"] <= produced + 2  # each killed actor may have been inside a commit
    assert result["ledger"]["dropped"]["rolled_back"] > 0
    page = sorted(pages_in(leg_folder(run.folder, SAMPLES)))[-1]
    with page.open("r+b") as file:  # a producer that counted one commit twice would show here
        words = np.frombuffer(file.read(), np.int64).copy()
        words[9:11] += 1
        file.seek(0)
        file.write(words.tobytes())
    found = read_leg(run.folder)
    assert found is not None and not found.balanced


@pytest.mark.nightly
def test_actor_of_a_killed_server_fails_over_and_returns(launch) -> None:
    away_s = 10.0
    servers = ("--num-inference-servers", "2", "--num-actors", "2", "--supervision.backoff-s", f"{away_s}")
    run = counting(launch, *servers, "--max-policy-lag", "none")
    run.workers()["inference-0"].kill()
    since_s, (_, before) = time.monotonic(), consumed(run)
    run.until(lambda: "reconnected its streams with inference-1" in run.text, "actor-0 to go to the other server", 8.0)
    run.until(lambda: consumed(run)[1] > before + 20, "trajectories of both", 8.0)
    returned = "inference-0" in run.workers()
    assert (away_s if returned else 0.0) < time.monotonic() - since_s < stretched(away_s)
    run.until(lambda: "reconnected its streams with inference-0" in run.text, "actor-0 to come back")
    end(run)


@pytest.mark.nightly
@pytest.mark.parametrize("transport", ["shared-memory", "zeromq"])
def test_actor_of_a_hung_server_fails_over_once_it_is_declared_lost(launch, transport: str) -> None:
    silence_s, noticed_s = 4.0, 4.0
    servers = (
        "--num-inference-servers",
        "2",
        "--num-actors",
        "2",
        "--transport",
        transport,
        "--max-policy-lag",
        "none",
    )
    run = counting(launch, *servers, "--deadlines.silence-s", f"{silence_s}", "--supervision.backoff-s", "10")
    folder = leg_folder(run.folder, SAMPLES)
    run.until(lambda: sum(c.received > 0 for c in read_connections(folder)) == 2, "trajectories of both actors", 60.0)
    hung = run.workers()["inference-0"]
    hung.suspend()
    since_s, (_, before) = time.monotonic(), consumed(run)
    run.until(lambda: "reconnected its streams with inference-1" in run.text, "actor-0 to go over", RECOVERED_S)
    heard_s = 0.5  # its last heartbeat may be that old when it is suspended
    assert silence_s - heard_s < time.monotonic() - since_s < silence_s + noticed_s
    run.until(lambda: consumed(run)[1] > before + 20, "trajectories of both", 8.0)
    run.await_another("inference-0", hung.pid, RECOVERED_S)
    run.until(lambda: "reconnected its streams with inference-0" in run.text, "actor-0 to come back")
    end(run, transport)


def start_point_of(job: dict) -> dict:
    """Return the fields of the job's start point, at any depth of the JSON form."""
    if isinstance(job, dict):
        if isinstance(job.get("start_point"), dict):
            start = job["start_point"]
            return start if "updates" in start else next(v for v in start.values() if isinstance(v, dict))
        return next((found for value in job.values() if (found := start_point_of(value))), {})
    return {}


@pytest.mark.nightly
def test_learner_killed_while_writing_resumes_from_a_committed_snapshot(launch) -> None:
    run = counting(launch, "--snapshots.period-s", "0.05", "--agent.width", "300000")
    await_snapshot(run)
    for pause_s in (0.0, 0.031):
        time.sleep(pause_s)
        victim, saved = run.workers()["learner"], saved_updates(run)
        since_s = time.monotonic()
        victim.kill()
        await_training(run, since_s, "learner", victim.pid)
        start = start_point_of(json.loads((run.folder / "jobs" / "learner.json").read_text()))
        assert start["updates"] >= saved > 0
    assert end(run)["updates"] > 0


@pytest.mark.parametrize("worker", [*(nightly(w) for w in ("actor-0", "inference-0")), "learner"])
def test_stopped_worker_is_replaced_and_its_late_messages_are_ignored(launch, worker: str) -> None:
    run = counting(launch, "--deadlines.silence-s", "1.5")
    await_snapshot(run)
    victim, since_s = run.workers()[worker], time.monotonic()
    victim.suspend()
    took_s = await_training(run, since_s, worker, victim.pid)
    print(f"{worker}: stopped -> training again in {took_s:.1f} s, found by its silence of 1.5 s")  # noqa: T201
    assert not victim.is_running()  # killed before it was replaced: it cannot wake up
    end(run)


def test_replay_workers_learner_and_evaluator_are_replaced_independently(launch) -> None:
    run = launch(experiment="replayed")
    run.await_updates(50)
    await_snapshot(run)
    for worker in ("replay-0", "learner", "evaluator"):
        victim, since_s = run.workers()[worker], time.monotonic()
        others = {name: p.pid for name, p in run.workers().items() if name != worker}
        victim.kill()
        took_s = await_training(run, since_s, worker, victim.pid)
        print(f"{worker}: kill -> training in {took_s:.1f} s")  # noqa: T201
        assert {name: p.pid for name, p in run.workers().items() if name != worker} == others
    scored = len([line for line in run.lines() if "evaluator/return_mean" in line])
    run.until(
        lambda: len([line for line in run.lines() if "evaluator/return_mean" in line]) > scored, "another score", 60.0
    )
    result = end(run)
    assert result["legs"]["samples.replay-0"]["consumed"] > 0
    assert "ledger of samples.replay-0: produced" in run.text


@pytest.mark.nightly  # daily with `--env.on-fault restart-actor`: test_env_faults
def test_an_environment_that_hangs_is_replaced_with_its_actor(launch) -> None:
    run = launch("--env.id", "worlds:HangsOnce", "--restart", "1", "--actor.step-deadline-s", "2")
    text = run.expect(0, 60.0)
    assert "did not return within 2 s" in text and "restart 1 of 1" in text


@pytest.mark.nightly
def test_restart_budgets_are_per_kind_and_report_exhaustion(launch) -> None:
    run = counting(launch, "--supervision.restarts.inference", "1")
    for text in ("restart 1 of 1", "has used its 1 restart within 600 s"):
        run.await_worker("inference-0").kill()
        if "used" not in text:
            run.until(lambda words=text: words in run.text, text)
            run.until(lambda: "reconnected its streams" in run.text, "the actor to go on")
        else:
            assert text in run.expect(1, 20.0)
    assert "WorkerDied: inference-0" in run.text and f"(to continue: jsrl run --resume {run.folder})" in run.text
