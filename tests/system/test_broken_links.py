"""The link of the learner's host breaks for 5 s and for 60 s, each time while a snapshot is on its way to the run folder."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest

from jsrl.cluster.facts import HostFacts
from jsrl.cluster.launcher import JoinedHosts
from jsrl.control.processes.launcher import Local
from jsrl.control.run import run
from jsrl.experiment import SnapshotConfig
from jsrl.services.snapshots.format import version_damage
from jsrl.services.snapshots.store import SnapshotStore
from jsrl.transport.ledger.legs import read_leg
from tests.cluster.agents import await_that
from tests.system.joined import Events, agents_on, close_all, endless
from tests.system.launched import assert_balanced

SHAPED = ["root", "tbf", "rate", "100mbit", "burst", "64kb", "latency", "300ms"]  # a snapshot takes a second or more


class Breaks(Events):
    """Takes the link of the learner's host down twice, and ends the run once all has gone on.

    Attributes:
      incarnations: of the learner after the first break. hosts: of the learner, before and after the second.
    """

    def __init__(self, launcher: JoinedHosts, network: str, folder: Path) -> None:
        super().__init__()
        self._launcher, self._network, self._folder = launcher, network, folder
        self.incarnations, self.hosts, self._version = list[int](), list[str](), 0

    def make(self) -> None:
        self._await_snapshot()
        self._break_link(5.0)
        self._await_snapshot()
        self._await_snapshot()
        (host,) = [host for host in self._launcher.members.hosts if host.name == self._network]
        self.incarnations = [remote.incarnation for remote in host.workers.values() if remote.worker == "learner"]
        self._break_link(60.0)
        self._await_snapshot()

    def _break_link(self, seconds: float) -> None:
        """Take the link down while a file is on its way."""
        self.hosts.append(self._launcher._at["learner"])
        await_that(lambda: list((self._folder / "snapshots").rglob("*.draft")), 60.0)
        link = ["ip", "-n", self._network, "link", "set", inner_end(self._network)]
        subprocess.run([*link, "down"], check=True)
        time.sleep(seconds)
        subprocess.run([*link, "up"], check=True)
        self.hosts.append(self._launcher._at["learner"])

    def _await_snapshot(self) -> None:
        """Wait until there is a newer whole snapshot in the run folder, and the learner has trained since."""
        store, before = SnapshotStore(self._folder / "snapshots" / "state"), self._consumed()
        await_that(lambda: "latest" in store.tags() and store.resolve("latest") > self._version, 200.0)
        self._version = store.resolve("latest")
        store.load("latest")
        await_that(lambda: self._consumed() > before, 100.0)

    def _consumed(self) -> int:
        ledger = read_leg(self._folder)
        return 0 if ledger is None else ledger.consumed


def inner_end(network: str) -> str:
    """Return the name of a network's end of its link."""
    tag, _, number = network.removeprefix("jsrl-").rpartition("-")
    return f"ji{tag}{number}"


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_a_learner_goes_on_after_five_seconds_and_elsewhere_after_sixty(hosts, tmp_path: Path) -> None:
    address, networks = hosts
    experiment = endless((512, 512), max_minutes=8.0, restart=2, snapshots=SnapshotConfig(period_s=0.5))
    folder, own = tmp_path / "experiment" / "far", HostFacts("here", 2, 8_000, address)
    for network in networks:
        within = ["ip", "netns", "exec", network]
        subprocess.run([*within, "tc", "qdisc", "add", "dev", inner_end(network), *SHAPED], check=True)
    said: list[str] = []
    launcher = JoinedHosts(Local(), own, 0, 2, tmp_path / "join.key", said.append, learner_on=networks[0])
    agents = agents_on(launcher, networks, tmp_path)
    breaks = Breaks(launcher, networks[0], folder)
    breaks.start()
    try:
        result = run(experiment, runs_dir=tmp_path, name="far", launcher=launcher, display="log-only", hooks=[breaks])
    finally:
        close_all(launcher, agents)
    assert breaks.done and breaks.incarnations == [0]
    assert breaks.hosts[:3] == [networks[0]] * 3 and breaks.hosts[3] != networks[0]
    assert [line for line in said if f"host {networks[0]} is gone" in line], said
    store = SnapshotStore(folder / "snapshots" / "state")
    assert not [path for path in folder.rglob("*.draft")]
    assert all(version_damage(store.folder / str(version)) is None for version in store.versions())
    assert store.load("final").meta["updates"] == result.updates
    assert_balanced(json.loads((folder / "result.json").read_text()), unknown_allowed=True)
