"""The watchdog's reports of real runs: on demand, and when workers are stopped, hold the GIL, or die."""

from __future__ import annotations

import re
import signal
import time

import psutil
import pytest

from tests.system.launched import FOREVER, Launched

pytestmark = pytest.mark.slow


def sections(run: Launched, number: int) -> dict[str, str]:
    """Return worker -> its section of a report; the rest is under an empty name."""
    (path,) = (run.folder / "watchdog").glob(f"{number:04d}-*.txt")
    head, *parts = re.split(r"^== ", path.read_text(), flags=re.MULTILINE)
    return {"": head} | {re.match(r"[a-z0-9-]+", part)[0]: part for part in parts}


def await_report(run: Launched, number: int) -> dict[str, str]:
    run.until(lambda: f"/watchdog/{number:04d}-" in run.text, f"report {number}")
    return sections(run, number)


@pytest.mark.nightly
def test_all_workers_dump_stacks_on_demand_and_continue(launch) -> None:
    run = launch("--num-actors", "2", experiment="counting")
    run.await_updates(20)
    before = {name: process.pid for name, process in run.workers().items()}
    for number in (1, 2):
        asked_s = time.monotonic()
        run.popen.send_signal(signal.SIGUSR1)
        seen = await_report(run, number)
        print(f"report {number} after {time.monotonic() - asked_s:.2f} s")  # noqa: T201
        assert set(seen) == {"", *before, "controller"}
        for name, pid in before.items():
            assert f"incarnation 0, pid {pid}, " in seen[name] and "'ready' since" in seen[name]
            assert "thread MainThread:" in seen[name] and "thread control:" in seen[name] and "in _loop" in seen[name]
        assert "SIGUSR1 asked for it" in seen[""] and "ledger: produced" in seen[""] and "balanced" in seen[""]
        assert "learner/queue_depth" in seen["learner"] and "learner/policy_lag_max" in seen["learner"]
        assert "ledger/in_flight" in seen["learner"] and "inference/params_updates" in seen["inference-0"]
        assert "in _watch" in seen["controller"]
    updates = run.lines()[-1]["updates"]
    run.await_updates(updates + 20)
    assert {name: process.pid for name, process in run.workers().items()} == before
    run.popen.terminate()
    run.expect(130, 20.0)
    assert not list((run.folder / "logs").glob("*.stacks"))


def test_serial_run_dumps_its_stack(launch) -> None:
    run = launch(*FOREVER, "--placement", "serial")
    run.await_updates(2)
    run.popen.send_signal(signal.SIGUSR1)
    seen = await_report(run, 1)
    assert "in run" in seen["controller"] and "serial.py" in seen["controller"]
    run.popen.terminate()
    run.expect(130, 20.0)


def test_run_stopped_and_continued_as_a_whole_goes_on(launch) -> None:
    run = launch(*FOREVER, "--placement", "served", "--deadlines.silence-s", "4", "--actor.step-deadline-s", "4")
    run.await_updates(5)
    workers = run.workers()
    whole = [psutil.Process(run.popen.pid), *workers.values()]
    for process in whole:  # as `scontrol suspend` and a paused container do
        process.suspend()
    time.sleep(8.0)
    for process in whole:
        process.resume()
    run.await_updates(run.lines()[-1]["updates"] + 20)
    assert {name: process.pid for name, process in run.workers().items()} == {n: p.pid for n, p in workers.items()}
    assert "warning" not in run.text
    run.popen.terminate()
    run.expect(130, 20.0)


@pytest.mark.nightly
def test_report_of_a_stopped_worker_shows_the_others(launch) -> None:
    run = launch("--deadlines.silence-s", "1.5", experiment="counting")
    run.await_updates(5)
    victim = run.workers()["inference-0"]
    victim.suspend()
    seen = await_report(run, 1)
    assert "inference-0 sent no message for 2 s" in seen[""]
    assert f"pid {victim.pid}, stopped" in seen["inference-0"] and "SIGCONT" in seen["inference-0"]
    assert "in _loop" in seen["actor-0"] and "in _loop" in seen["learner"]
    run.until(lambda: "reconnected its streams" in run.text, "the actor to go on")
    assert "(watchdog report: " in run.text and "restart 1 of 10" in run.text
    run.popen.terminate()
    run.expect(130, 20.0)


@pytest.mark.nightly
def test_report_shows_the_stack_of_a_worker_holding_the_gil(launch) -> None:
    run = launch(*FOREVER, "--env.id", "worlds:HoldsTheGil", "--deadlines.silence-s", "2")
    text = run.expect(1, 30.0)
    assert "WorkerDied: actor-0 sent no message for 2 s" in text and "0001-actor-0.txt" in text
    seen = sections(run, 1)
    assert "in misbehave" in seen["actor-0"] and "most recent call first" in seen["actor-0"]  # by a signal handler
    assert "in _loop" in seen["learner"]


def test_report_of_a_hang_shows_every_thread(launch) -> None:
    run = launch(*FOREVER, "--env.id", "worlds:HangsInStep", "--actor.step-deadline-s", "1.5")
    text = run.expect(1, 30.0)
    assert "WorkerDied: actor-0: EnvironmentFault" in text and "time.sleep(3600.0)" in text
    where = r"group 0 \(slot \d, episode 19, step \d, first reset with seed \d+\)"
    assert re.search(f"worlds:HangsInStep', {where}, did not return within 1.5 s", text)
    seen = sections(run, 1)
    assert "in misbehave" in seen["actor-0"] and "thread control:" in seen["actor-0"]  # sent before it ended
    assert "did not return within 1.5 s" in seen[""]
