"""Many actors, forked by one host: cheap, quickly ready, named when they die, and ended with their host."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import psutil
import pytest

from tests.patience import stretched
from tests.system.launched import FOREVER, Launched

FOUR = ("--num-actors", "4", "--num-groups", "4")
SIXTEEN = ("--num-actors", "16", "--num-groups", "16", "--num-envs", "16")
slow = pytest.mark.slow
nightly = pytest.mark.nightly


def host_of(run: Launched) -> psutil.Process | None:
    """Return the actor host of a run, while it lives."""
    try:
        return next((c for c in psutil.Process(run.popen.pid).children() if c.name() == "actor-host"), None)
    except psutil.Error:
        return None


def forked(run: Launched, count: int) -> dict[str, psutil.Process]:
    """Return worker name -> process of `count` actors, once the host has forked them all."""

    def all_of_them() -> dict[str, psutil.Process] | None:
        host = host_of(run)
        actors = {child.name(): child for child in host.children()} if host is not None else {}
        return actors if len(actors) == count and "actor-host" not in actors else None

    actors = run.until(all_of_them, f"{count} forked actors")
    run._seen.update({actor.pid: actor for actor in actors.values()})
    return actors


def private_mb(process: psutil.Process) -> float:
    lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) * 1024 / 1e6


def assert_died(run: Launched, *words: str) -> float:
    status, took_s = run.end(10.0)
    assert status == 1, run.text
    for word in ("WorkerDied", *words):
        assert word in run.text, run.text
    run.assert_nothing_left()
    return took_s


@pytest.mark.nightly
def test_sixteen_actors_share_loaded_memory(launch) -> None:
    run = launch(*FOREVER, *SIXTEEN)
    actors = forked(run, 16)
    assert sorted(actors) == sorted(f"actor-{i}" for i in range(16))
    run.await_updates()
    host = host_of(run)
    assert host is not None
    assert host.num_threads() == 1
    used = {name: private_mb(actor) for name, actor in actors.items()}
    print(f"private MB of 16 actors: {min(used.values()):.1f} to {max(used.values()):.1f}")  # noqa: T201
    assert max(used.values()) < 20.0, used
    for actor in actors.values():
        mapped = Path(f"/proc/{actor.pid}/maps").read_text()
        assert "libzmq" in mapped or "_zmq" in mapped  # the file shows what is loaded
        assert "jaxlib" not in mapped
    assert len({os.getsid(actor.pid) for actor in actors.values()}) == 16
    run.popen.terminate()
    _, took_s = run.end(15.0)
    print(f"16 actors: asked to end -> ended in {took_s:.2f} s")  # noqa: T201
    run.assert_nothing_left()
    assert (run.folder / "logs" / "actor-host.log").read_text() == ""


@nightly
def test_run_with_an_actor_host_ends_normally(launch) -> None:
    text = launch(*FOUR).expect(0, 60.0)
    assert "balanced" in text
    assert "NOT BALANCED" not in text
    assert "while stopping" not in text


@nightly
def test_small_run_has_no_actor_host(launch) -> None:
    run = launch(*FOREVER, "--num-actors", "2", "--num-groups", "2")
    run.await_updates()
    assert host_of(run) is None


@nightly  # daily: with a child of its environment, below
def test_a_killed_actor_is_named(launch) -> None:
    run = launch(*FOREVER, *FOUR)
    actors = forked(run, 4)
    run.await_updates()
    actors["actor-2"].kill()
    took_s = assert_died(run, "actor-2", "killed by signal 9 (SIGKILL)")
    print(f"hosted actor: kill -> exit in {took_s:.2f} s")  # noqa: T201


@slow
def test_a_killed_actor_is_replaced_and_then_all_actors_of_a_killed_host(launch) -> None:
    run = launch(*FOREVER, *FOUR, "--restart", "2")
    actors = forked(run, 4)
    run.await_updates()
    actors["actor-2"].kill()
    start = time.monotonic()
    replacement = run.await_another("actor-2", actors["actor-2"].pid)
    print(f"hosted actor: kill -> replacement exists in {time.monotonic() - start:.2f} s")  # noqa: T201
    assert (
        replacement.ppid() == host_of(run).pid and "--incarnation" not in replacement.cmdline()
    )  # it was forked as well
    updates = max(line.get("updates", 0) for line in run.lines())
    run.await_updates(updates + 20)
    assert actors["actor-3"].is_running()
    host = host_of(run)
    assert host is not None
    before = {child.name(): child.pid for child in host.children()}
    assert before.keys() >= {"actor-0", "actor-1", "actor-3"}
    host.kill()

    def replaced() -> bool:
        now = run.workers()
        return all(name in now and now[name].pid != pid for name, pid in before.items())

    run.until(replaced, "replacements of all")
    updates = max(line.get("updates", 0) for line in run.lines())
    run.await_updates(updates + 20)
    run.popen.terminate()
    run.end(15.0)
    assert "with its actor host, killed by signal 9 (SIGKILL)" in run.text and "actor-host.log" in run.text
    run.assert_nothing_left()


@nightly  # daily: a killed host is named, above
@pytest.mark.parametrize("early", [pytest.param(False, id="at work"), pytest.param(True, id="in start-up")])
def test_killed_host_ends_its_actors_and_is_named(launch, early: bool) -> None:
    run = launch(*FOREVER, *FOUR)
    if not early:
        forked(run, 4)
        run.await_updates()
    run.until(lambda: host_of(run), "the actor host").kill()
    took_s = assert_died(run, "with its actor host, killed by signal 9 (SIGKILL)", "actor-host.log")
    print(f"actor host: kill -> exit in {took_s:.2f} s")  # noqa: T201


@slow
def test_hosted_actors_exit_when_the_controller_is_killed(launch) -> None:
    run = launch(*FOREVER, *FOUR)
    forked(run, 4)
    run.await_updates()
    os.kill(run.popen.pid, signal.SIGKILL)
    start = time.monotonic()
    run.popen.wait()
    while left := run.left_processes():
        assert time.monotonic() - start < stretched(5.0), left
        time.sleep(0.02)


@pytest.mark.nightly
def test_a_stopped_host_does_not_keep_a_run_from_ending(launch) -> None:
    run = launch(*FOREVER, *FOUR)
    actors = forked(run, 4)
    run.await_updates()
    host = host_of(run)
    assert host is not None
    host.suspend()
    run.workers()["learner"].kill()
    took_s = assert_died(run, "learner")
    print(f"stopped host, learner killed: exit in {took_s:.2f} s")  # noqa: T201
    assert not any(actor.is_running() and actor.status() != psutil.STATUS_ZOMBIE for actor in actors.values())


@pytest.mark.nightly
def test_a_child_of_a_hosted_environment_does_not_outlive_the_run(launch) -> None:
    run = launch(*FOREVER, *FOUR, "--env.id", "worlds:HasChild")
    actors = forked(run, 4)
    run.await_updates()
    run.workers()
    actors["actor-1"].kill()
    assert_died(run, "actor-1", "killed by signal 9 (SIGKILL)")


@slow
def test_an_environment_with_threads_is_not_forked(launch, monkeypatch) -> None:
    monkeypatch.setenv("AWKWARD", "starts a thread")
    run = launch(*FOREVER, *FOUR, "--env.id", "awkward_worlds:Awkward")
    run.await_updates()
    actors = [worker for name, worker in run.workers().items() if name.startswith("actor-") and name != "actor-host"]
    assert len(actors) == 4
    assert re.search("started 1 threads", (run.folder / "logs" / "actor-host.log").read_text())
    actors[1].kill()
    assert_died(run, "killed by signal 9 (SIGKILL)")


@slow
def test_import_error_of_an_environment_is_reported_by_the_actor(launch, monkeypatch) -> None:
    monkeypatch.setenv("AWKWARD", "raises")
    run = launch(*FOREVER, *FOUR, "--env.id", "awkward_worlds:Awkward")
    assert run.end(60.0)[0] == 1
    assert "the import gave up on purpose" in run.text
    assert "WorkerDied: actor-" in run.text
    run.assert_nothing_left()
