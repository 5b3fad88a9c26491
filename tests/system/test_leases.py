"""Hosts that do not hear the controller: their workers end at the lease, and are replaced 5 s later; nothing late is counted.

`python -m pytest -s -m nightly FILE` shows the times. test_agent_process.py checks the bounds with a clock moved by
hand.
"""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from jsrl.cluster.facts import HostFacts
from jsrl.cluster.launcher import JoinedHosts
from jsrl.cluster.members import JoinedHost
from jsrl.cluster.messages import CLOSED_LEASE_S, LEASE_S, LOST_S
from jsrl.control.processes.launcher import Local
from jsrl.control.result import STOPPED
from jsrl.control.run import run
from jsrl.transport.ledger.leg_page import read_connections
from jsrl.transport.ledger.legs import SAMPLES, leg_folder, read_leg
from tests.cluster.agents import Agent, await_that, lives
from tests.system.joined import Events, agents_on, close_all, endless
from tests.system.launched import assert_balanced
from tests.system.test_broken_links import inner_end

CUT_S, STOPPED_S = 60.0, 45.0


class Silence(Events):
    """Silences a host for a while, and ends the run once the host has joined again and the learner has trained on.

    Attributes:
      ended_s: from the beginning of the silence until the host's workers had ended. woken_s: the same, from its end.
      replaced_s: until the controller had started all of them elsewhere. joined_s: from the end until it joined again.
      late: trajectories that the learner got from the silent host's workers after the controller had replaced them.
      memberships: of the host, before and after. kept: the workers of the other host that lived on.
    """

    def __init__(self, launcher: JoinedHosts, agents: dict[str, Agent], folder: Path, fault: str) -> None:
        super().__init__()
        self._launcher, self._folder, self._fault = launcher, folder, fault
        (self._name, self._agent), (_, self._other) = agents.items()
        self._stopped: list[psutil.Process] = []
        self.ended_s = self.woken_s = self.replaced_s = self.joined_s = -1.0
        self.late, self.memberships, self.kept = -1, list[int](), list[psutil.Process]()

    def make(self) -> None:
        train_on(self._folder)
        host, others = self._host(), self._other.workers()
        lost = list(host.living_workers)
        pids = {life.pid for life in lost}
        workers = [process for process in self._agent.workers() if process.pid in pids]
        assert lost and len(workers) == len(lost)
        names = [f"{life.worker}.{life.incarnation}" for life in lost]
        before = -1
        self._silence()
        begun_s = time.monotonic()
        over_s = begun_s + (CUT_S if self._fault == "link down" else STOPPED_S)
        while (now_s := time.monotonic()) < over_s:
            if self.ended_s < 0 and not any(map(lives, workers)):
                self.ended_s = now_s - begun_s
            if self.replaced_s < 0 and all(self._launcher._at[life.worker] != self._name for life in lost):
                self.replaced_s, before = now_s - begun_s, self._received(names)
            time.sleep(0.02)
        self._end_silence()
        await_that(lambda: not any(map(lives, workers)))
        self.woken_s = time.monotonic() - over_s
        await_that(lambda: any(one.name == self._name for one in list(self._launcher.members.hosts)))
        self.joined_s = time.monotonic() - over_s
        self.memberships = [host.membership, self._host().membership]
        train_on(self._folder)
        assert before >= 0
        self.late = self._received(names) - before
        self.kept = [worker for worker in others if lives(worker)]

    def _silence(self) -> None:
        if self._fault == "link down":
            self._link("down")
            return
        self._stopped = [self._agent.process]
        self._stopped += self._agent.workers() if self._fault == "all processes stopped" else []
        for process in self._stopped:
            process.send_signal(signal.SIGSTOP)

    def _end_silence(self) -> None:
        if self._fault == "link down":
            self._link("up")
        for process in self._stopped:
            process.send_signal(signal.SIGCONT)

    def _link(self, state: str) -> None:
        subprocess.run(["ip", "-n", self._name, "link", "set", inner_end(self._name), state], check=True)

    def _host(self) -> JoinedHost:
        (host,) = [host for host in list(self._launcher.members.hosts) if host.name == self._name]
        return host

    def _received(self, names: list[str]) -> int:
        return sum(connection.received for connection in self._connections() if connection.name in names)

    def _connections(self) -> list[Any]:
        return read_connections(leg_folder(self._folder, SAMPLES))


def train_on(folder: Path) -> None:
    """Wait until the learner of a run has trained on some more trajectories."""

    def consumed() -> int:
        ledger = read_leg(folder)
        return 0 if ledger is None else ledger.consumed

    before = consumed()
    await_that(lambda: consumed() >= before + 20, 120.0)


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("fault", ["link down", "all processes stopped", "agent stopped"])
def test_workers_of_a_silent_host_end_and_are_replaced(hosts, fault: str, tmp_path: Path) -> None:
    address, networks = hosts
    folder, own, told = tmp_path / "experiment" / "far", HostFacts("here", 1, 8_000, address), list[str]()
    launcher = JoinedHosts(Local(), own, 0, 2, tmp_path / "join.key", told.append, keep=["inference"])
    agents = agents_on(launcher, networks, tmp_path, patience_s=120.0)
    silence = Silence(launcher, agents, folder, fault)
    silence.start()
    hooks, experiment = [silence], endless(max_minutes=8.0, restart=1)  # which a lost host does not use up
    try:
        result = run(experiment, runs_dir=tmp_path, name="far", launcher=launcher, display="log-only", hooks=hooks)
        statuses = [
            agent.ends()[0] for agent in agents.values()
        ]  # they hear of the end, and end their workers, a little later
        left = [worker for agent in agents.values() for worker in agent.workers()]
    finally:
        close_all(launcher, agents)
    figures = (
        f"{fault}: after its begin, ended {silence.ended_s:.2f} s, replaced {silence.replaced_s:.2f} s; after its "
    )
    figures += f"end, ended {silence.woken_s:.2f} s, joined again {silence.joined_s:.2f} s; late {silence.late}\n"
    sys.stdout.write(figures)
    assert silence.done and result.ended.startswith(STOPPED) and statuses == [0, 0] and not left
    assert LOST_S - 1.0 <= silence.replaced_s <= LOST_S + 5.0  # the new ones have to be started
    if fault == "all processes stopped":
        assert silence.ended_s < 0 and silence.woken_s <= 1.0
    else:
        assert LEASE_S - 1.0 <= silence.ended_s <= LEASE_S + 1.0
    assert silence.late == 0 and silence.kept
    assert silence.memberships[1] > silence.memberships[0] and silence.joined_s <= 15.0
    assert any(f"host {networks[0]} is gone: it sent no message for {LOST_S:g} s" in line for line in told)
    assert "ended; joining again" in agents[networks[0]].log.read_text()
    assert_balanced(found := json.loads((folder / "result.json").read_text()), unknown_allowed=True)
    assert all(place.startswith("host ") for place in found["ledger"]["lost_at"])


JSRL = [sys.executable, "-m", "jsrl.cli.main"]
SIZE = shlex.split("--placement served --num-actors 2 --num-envs 8 --evaluator.enabled false --stop-at-return none")
LISTENS = shlex.split("--listen 127.0.0.1 --learner-on far --keep-here inference --restart 1 --display log-only")


@contextlib.contextmanager
def training(folder: Path, *more: str, patience_s: float = 20.0) -> Iterator[tuple[subprocess.Popen[bytes], Agent]]:
    """Yield `jsrl run` and the agent of its learner, once that has made updates; `folder` is to be the run's."""
    output, runs_dir = folder.parents[1] / "run.txt", folder.parents[1]
    words = [
        *JSRL,
        "run",
        folder.parent.name,
        "--run-name",
        folder.name,
        "--runs-dir",
        str(runs_dir),
        *SIZE,
        *LISTENS,
        *more,
    ]
    with output.open("wb") as log:
        controller = subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True)
    agent: Agent | None = None
    try:
        await_that(lambda: "jsrl join" in output.read_text(), 60.0)
        (key,) = re.findall(r"jsrl join (\S+)", output.read_text())
        agent = Agent(Path(key), "far", runs_dir / "far.txt", patience_s=patience_s)
        await_that(lambda: updates_of(folder) > 5, 120.0)
        yield controller, agent
    finally:
        controller.kill()
        controller.wait()
        if agent is not None:
            agent.close()


def ended_s(agent: Agent) -> float:
    """Return after how many seconds all workers of an agent have ended."""
    begun_s, workers = time.monotonic(), agent.workers()
    assert workers
    await_that(lambda: not any(map(lives, workers)))
    return time.monotonic() - begun_s


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_snapshot_of_a_learner_that_lost_its_controller_stays_on_its_host(tmp_path: Path) -> None:
    folder = tmp_path / "ppo_cartpole" / "lost"
    with training(folder, "--total-env-steps", "1000000000", "--snapshots.period-s", "1000") as (controller, agent):
        controller.kill()
        took_s = ended_s(agent)
        sys.stdout.write(f"workers ended {took_s:.2f} s after the controller was killed\n")
        status, text = agent.ends(60.0)
    assert status == 1 and CLOSED_LEASE_S - 1.0 <= took_s <= CLOSED_LEASE_S + 1.0
    assert not (folder / "snapshots" / "state" / "tags").exists()
    (updates,) = re.findall(r"snapshots/state: version ([\d,]+)", text)
    copy, resume = (shlex.split(line.removeprefix("jsrl join:")) for line in text.splitlines()[-3:-1])
    assert copy[:2] == ["scp", "-r"] and resume == ["jsrl", "run", "--resume", str(folder)] and copy[3] == str(folder)
    shutil.copytree(copy[2].removeprefix("far:"), folder / "snapshots", dirs_exist_ok=True)  # as scp would do
    more = ["--total-env-steps", "20000", "--placement", "inline", "--num-actors", "1"]
    again = subprocess.run([*JSRL, *resume[1:], *more], capture_output=True, text=True, timeout=300, check=False)
    assert again.returncode == 0, again.stdout + again.stderr
    assert f"updates {updates.replace(',', '')} " in again.stderr and updates_of(folder) > int(updates.replace(",", ""))


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_workers_end_while_the_controller_is_stopped_and_return_after_it(tmp_path: Path) -> None:
    folder, log = tmp_path / "ppo_cartpole" / "stopped", tmp_path / "far.txt"
    with training(folder, "--total-env-steps", "1000000000", patience_s=120.0) as (controller, agent):
        controller.send_signal(signal.SIGSTOP)
        stopped_s = time.monotonic()
        took_s = ended_s(agent)
        time.sleep(STOPPED_S - (time.monotonic() - stopped_s))
        controller.send_signal(signal.SIGCONT)
        woken_s = time.monotonic()
        await_that(lambda: log.read_text().count("joined the run at") == 2, 60.0)
        joined_s = time.monotonic() - woken_s
        await_that(agent.workers, 60.0)
        train_on(folder)
        controller.send_signal(signal.SIGINT)
        assert controller.wait(120.0) in (0, 130)
        assert agent.ends(20.0)[0] == 0 and not agent.workers()
    sys.stdout.write(
        f"controller stopped: ended {took_s:.2f} s after it stopped; joined again {joined_s:.2f} s after it woke\n"
    )
    assert LEASE_S - 1.0 <= took_s <= LEASE_S + 1.0
    assert (folder / "snapshots" / "state" / "tags" / "final.json").exists()
    assert_balanced(json.loads((folder / "result.json").read_text()), unknown_allowed=True)


def updates_of(folder: Path) -> int:
    """Return the number of updates in the last line of a run's metrics."""
    path = folder / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return int(json.loads(lines[-1]).get("updates", 0)) if lines else 0
