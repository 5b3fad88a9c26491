"""Learners of two ranks in a run: trained together, killed, stopped and stuck at any moment, and ended in order."""

from __future__ import annotations

import random
import re
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from jsrl.services.snapshots.store import SnapshotStore
from jsrl.tools.chaos.outside import HungProcess
from jsrl.transport.ledger.page import LEDGER, read_page
from jsrl.types import named_leaves
from tests.cluster.agents import Agent, hosts_without_files
from tests.system.launched import FOREVER, Launched, assert_balanced
from tests.system.test_broken_links import inner_end, ip

pytestmark = pytest.mark.slow
RANKS = ("learner", "rank-1")
TWO = ("--placement", "inline", "--num-actors", "2", "--learner.num-ranks", "2", "--learner.num-devices", "2")
AGAIN = (
    *("--restart", "50", "--supervision.backoff-s", "0.1", "--supervision.max-backoff-s", "0.5"),
    *("--snapshots.period-s", "0.5", *FOREVER),
)
RECOVERED_S = 30.0


def await_both(run: Launched, before: dict[str, int], timeout_s: float) -> None:
    """Wait until both ranks are new processes."""

    def others() -> bool:
        now = run.workers()
        return all(name in now and now[name].pid != before.get(name) for name in RANKS)

    run.until(others, "another life of both ranks", timeout_s)


def await_training(run: Launched, generation: int, timeout_s: float, more: int = 2) -> None:
    """Wait until some more trajectories are trained on in a generation."""

    def consumed() -> int:
        life = read_page(run.folder / LEDGER)
        return life.ledger.consumed if life is not None and life.generation == generation else 0

    begun = run.until(consumed, f"generation {generation}", timeout_s)
    run.until(lambda: consumed() > begun + more, "updates", timeout_s)


def pids(run: Launched) -> dict[str, int]:
    return {name: process.pid for name, process in run.workers().items() if name in RANKS}


def end(run: Launched) -> dict:
    run.popen.terminate()
    text = run.expect(130, 60.0)
    result = run.result()
    assert "did not leave" not in text and "while stopping" not in text, text
    assert_balanced(result, unknown_allowed=bool(result["legs"]) and "--listen" in run.words)
    return SnapshotStore(run.folder / "snapshots" / "state").meta("final")


def test_killed_rank_restarts_all_ranks_from_one_snapshot(launch) -> None:
    run = launch(*TWO, *AGAIN)
    run.await_updates(5, 180.0)
    before = pids(run)
    run.until(lambda: list((run.folder / "snapshots" / "state" / "tags").glob("latest.json")), "a snapshot", 60.0)
    run.workers()["rank-1"].kill()
    await_both(run, before, 60.0)
    await_training(run, 1, 180.0)
    meta = end(run)
    assert meta["generation"] == 1 and meta["updates"] > 0
    assert "rank-1 ended unexpectedly: killed by signal 9 (SIGKILL)" in run.text
    assert "restart 1 of 50 within 600 s, in 0.1 s, with all 2 ranks of learner" in run.text
    assert run.lines()[-1]["restarts/learner"] == 1


@pytest.mark.nightly
@pytest.mark.parametrize("fault", ["killed", "stopped", "stuck"])
@pytest.mark.parametrize("rank", RANKS)
def test_ranks_killed_at_ten_moments(launch, rank: str, fault: str) -> None:
    run = launch(*TWO, *AGAIN)
    run.await_updates(5, 120.0)
    took, moments = [], random.Random(f"{rank} {fault}")
    for generation in range(10):
        await_training(run, generation, 60.0)
        time.sleep(moments.uniform(0.0, 2.0))
        before, since_s = pids(run), time.monotonic()
        hung = harm(run.workers()[rank], fault)
        if hung is not None:
            run.until(hung.has_died, "the end of the stuck rank", RECOVERED_S)
        await_both(run, before, RECOVERED_S)
        await_training(run, generation + 1, RECOVERED_S)
        took.append(time.monotonic() - since_s)
    sys.stdout.write(f"{rank} {fault}: training again after {', '.join(f'{seconds:.1f}' for seconds in took)} s\n")
    assert max(took) <= RECOVERED_S
    assert end(run)["generation"] == 10


def harm(process: psutil.Process, fault: str) -> HungProcess | None:
    if fault == "stuck":
        return HungProcess(process.pid)
    process.send_signal(signal.SIGKILL if fault == "killed" else signal.SIGSTOP)
    return None


MAIN = 'hostname "$NAME"; exec "$@"'


@pytest.fixture
def hosts() -> Iterator[tuple[str, list[str]]]:
    """Three networks that act as hosts with their own names, and the address of the first."""
    with hosts_without_files(3) as (address, names):
        net = address.rpartition(".")[0]
        lines = ["127.0.0.1 localhost", *(f"{net}.{i} {name}" for i, name in enumerate(names, 2))]
        folders = [Path("/etc/netns", name) for name in names]
        for folder in folders:  # `ip netns exec` shows this file as /etc/hosts
            folder.mkdir(parents=True)
            (folder / "hosts").write_text("\n".join(lines) + "\n")
        try:
            yield f"{net}.2", names
        finally:
            for folder in folders:
                shutil.rmtree(folder)


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("fault", ["killed", "stopped", "stuck"])
@pytest.mark.parametrize("rank", RANKS)
def test_ranks_on_two_hosts(hosts, tmp_path: Path, rank: str, fault: str) -> None:
    """The learner on one host, its other rank on a joined one: one of them has a fault at ten moments, both begin again."""
    address, (main, far, _) = hosts
    run = Launched(
        tmp_path,
        *(*TWO, *AGAIN, "--listen", f"{address}:7000", "--num-hosts", "1", "--join-key", str(tmp_path / "join.key")),
        within=["ip", "netns", "exec", main, "unshare", "--uts", "sh", "-c", MAIN.replace("$NAME", main), "sh"],
    )
    agent = None
    try:
        run.until((tmp_path / "join.key").exists, "the join key", 120.0)
        agent = Agent(tmp_path / "join.key", far, tmp_path / "far.txt", far)
        run.until(lambda: list(tmp_path.glob("*/*/experiment.json")), "the run", 120.0)
        await_training(run, 0, 300.0)
        took, moments = list[float](), random.Random(f"{rank} {fault} on two hosts")
        for generation in range(10):
            await_training(run, generation, 60.0)
            time.sleep(moments.uniform(0.0, 2.0))
            victim = run.workers()["learner"] if rank == "learner" else far_rank(agent)
            since_s, hung = time.monotonic(), harm(victim, fault)
            if hung is not None:
                run.until(hung.has_died, "the end of the stuck rank", RECOVERED_S)
            await_training(run, generation + 1, 2 * RECOVERED_S)
            took.append(time.monotonic() - since_s)
            sys.stdout.write(f"{rank} {fault}: training again after {took[-1]:.1f} s\n")
        meta = end(run)
        assert meta["generation"] == 10 and "samples.rank-1" in run.result()["legs"]
        assert max(took) <= RECOVERED_S
        assert agent.ends()[0] == 0
    finally:
        if agent is not None:
            agent.close()
        run.kill()


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_a_rank_that_is_cut_off_with_its_host_costs_no_restart(hosts, tmp_path: Path) -> None:
    """Updates fail before its host counts as lost."""
    address, (main, far, _) = hosts
    key = tmp_path / "join.key"
    run = Launched(
        tmp_path,
        *(*TWO, "--restart", "1", "--snapshots.period-s", "0.5", *FOREVER),
        *("--listen", f"{address}:7000", "--num-hosts", "1", "--join-key", str(key)),
        within=["ip", "netns", "exec", main, "unshare", "--uts", "sh", "-c", MAIN.replace("$NAME", main), "sh"],
    )
    agent = None
    try:
        run.until(key.exists, "the join key", 120.0)
        agent = Agent(key, far, tmp_path / "far.txt", far, patience_s=120.0)
        run.until(lambda: list(tmp_path.glob("*/*/experiment.json")), "the run", 120.0)
        await_training(run, 0, 100.0, more=30)
        ip("-n", far, "link", "set", inner_end(far), "down")
        time.sleep(40.0)
        ip("-n", far, "link", "set", inner_end(far), "up")
        await_training(run, 1, 100.0)
        text = (run.folder / "logs" / "controller.log").read_text()
        assert "started again, in" in text and "restart 1 of 1" not in text, text
        assert end(run)["generation"] == 1
    finally:
        if agent is not None:
            agent.close()
        run.kill()


def far_rank(agent: Agent) -> psutil.Process:
    """Return the process of the second rank on a joined host."""
    (rank,) = [worker for worker in agent.workers() if "rank" in worker.cmdline()]
    return rank


@pytest.mark.nightly
def test_a_learner_with_ranks_on_a_joined_host(hosts, tmp_path: Path) -> None:
    """The first rank is on another host than the run folder; each rank is killed once, and both begin again."""
    address, (main, first, second) = hosts
    words = ("--listen", f"{address}:7000", "--num-hosts", "2", "--join-key", str(tmp_path / "join.key"))
    run = Launched(
        tmp_path,
        *(*TWO, *AGAIN, *words, "--learner-on", first),
        within=["ip", "netns", "exec", main, "unshare", "--uts", "sh", "-c", MAIN.replace("$NAME", main), "sh"],
    )
    agents: list[Agent] = []
    try:
        run.until((tmp_path / "join.key").exists, "the join key", 120.0)
        for name in (first, second):
            agents.append(Agent(tmp_path / "join.key", name, tmp_path / f"{name}.txt", name))
        run.until(lambda: list(tmp_path.glob("*/*/experiment.json")), "the run", 120.0)
        await_training(run, 0, 300.0)
        snapshots = SnapshotStore(run.folder / "snapshots" / "state")
        run.until(lambda: snapshots.tags().get("latest"), "a snapshot in the run folder", 60.0)
        for generation, kind in enumerate(("rank", "learner"), 1):
            before = snapshots.meta("latest")["updates"]
            everybody = [*run.workers().values(), *(worker for agent in agents for worker in agent.workers())]
            (victim,) = [worker for worker in everybody if kind in worker.cmdline()]
            victim.kill()
            await_training(run, generation, 300.0)
            assert snapshots.meta("latest")["updates"] >= before
        meta = end(run)
        assert meta["generation"] == 2 and meta["updates"] > 0 and len(run.result()["legs"]) >= 1
        assert [agent.ends()[0] for agent in agents] == [0, 0]
    finally:
        for agent in agents:
            agent.close()
        run.kill()


@pytest.mark.nightly
def test_two_ranks_of_two_devices_equal_one_of_four(launch, tmp_path) -> None:
    """50 updates of the same trajectories: SGD, on two processes with two devices each and on one with four."""
    common = ("--placement", "inline", "--num-actors", "2", "--deterministic", "--total-env-steps", str(50 * 32))
    runs = []
    for ranks, devices in ((2, 2), (1, 4)):
        run = launch(
            *common,
            "--learner.num-ranks",
            str(ranks),
            "--learner.num-devices",
            str(devices),
            runs_dir=tmp_path / f"{ranks}",
        )
        run.expect(0, 180.0)
        runs.append(run)
    assert_equal_after_fifty_updates(*runs)


def assert_equal_after_fifty_updates(*runs: Launched) -> None:
    states = [SnapshotStore(run.folder / "snapshots" / "state").load("final").tree["state"] for run in runs]
    one, other = (dict(named_leaves(state)) for state in states)
    assert one.keys() == other.keys() and one["updates"] == 50
    for name in one:
        np.testing.assert_allclose(one[name], other[name], rtol=0, atol=1e-6, err_msg=name)


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_two_ranks_on_two_hosts_equal_one_of_four_devices(hosts, launch, tmp_path: Path) -> None:
    address, (main, far, _) = hosts
    common = ("--placement", "inline", "--num-actors", "2", "--deterministic", "--total-env-steps", str(50 * 32))
    words = ("--listen", f"{address}:7000", "--num-hosts", "1", "--join-key", str(tmp_path / "join.key"))
    two = Launched(
        tmp_path / "two",
        *(*common, *words, "--learner.num-ranks", "2", "--learner.num-devices", "2"),
        within=["ip", "netns", "exec", main, "unshare", "--uts", "sh", "-c", MAIN.replace("$NAME", main), "sh"],
    )
    agent = None
    try:
        two.until((tmp_path / "join.key").exists, "the join key", 120.0)
        agent = Agent(tmp_path / "join.key", far, tmp_path / "far.txt", far)
        text = two.expect_status(0, 300.0)
        assert re.search(rf"^  {far} .* rank-1", text, re.MULTILINE) and agent.ends()[0] == 0
    finally:
        if agent is not None:
            agent.close()
        two.kill()
    one = launch(*common, "--learner.num-devices", "4", runs_dir=tmp_path / "one")
    one.expect(0, 180.0)
    assert_equal_after_fifty_updates(two, one)
