"""The learner's host is cut off for 5 s and for 50 s, each time while a snapshot is on its way to the run folder.

First its link is down, so that connecting fails at once. Then packets vanish, so that nothing answers a connect.
"""

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
    """Cuts the learner's host off twice, and ends the run once all has gone on.

    Attributes:
      incarnations: of the learner after the first time. hosts: of the learner, before and after each.
      back_s: until the host had joined again, once packets passed again.
    """

    def __init__(self, launcher: JoinedHosts, network: str, folder: Path) -> None:
        super().__init__()
        self._launcher, self._network, self._folder = launcher, network, folder
        self.incarnations, self.hosts, self._version, self.back_s = list[int](), list[str](), 0, 0.0

    def make(self) -> None:
        self._await_snapshot()
        inner = ["-n", self._network, "link", "set", inner_end(self._network)]
        self._cut_off([*inner, "down"], 5.0, [*inner, "up"])
        self._await_snapshot()
        self._await_snapshot()
        (host,) = [host for host in self._launcher.members.hosts if host.name == self._network]
        self.incarnations = [remote.incarnation for remote in host.workers.values() if remote.worker == "learner"]
        outer, bridge = outer_end(self._network), bridge_of(self._network)
        self._cut_off(["link", "set", outer, "nomaster"], 50.0, ["link", "set", outer, "master", bridge])
        begun_s = time.monotonic()
        await_that(lambda: self._network in [host.name for host in self._launcher.members.hosts])
        self.back_s = time.monotonic() - begun_s
        self._await_snapshot()

    def _cut_off(self, begin: list[str], seconds: float, end: list[str]) -> None:
        """Cut the host off, by these commands of `ip`, while a file is on its way."""
        self.hosts.append(self._launcher._at["learner"])
        await_that(lambda: list((self._folder / "snapshots").rglob("*.draft")), 60.0)
        ip(*begin)
        time.sleep(seconds)
        ip(*end)
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


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def inner_end(network: str) -> str:
    """Return the name of a network's end of its link; see tests.cluster.agents.namespaces."""
    tag, _, number = network.removeprefix("jsrl-").rpartition("-")
    return f"ji{tag}{number}"


def outer_end(network: str) -> str:
    return inner_end(network).replace("ji", "jo")


def bridge_of(network: str) -> str:
    return f"jb{network.split('-')[1]}"


def know_each_other(address: str, network: str) -> None:
    """Let a host know this host's hardware address: if it must ask for it, a connect fails where packets vanish."""
    bridge = bridge_of(network)
    mac = Path(f"/sys/class/net/{bridge}/address").read_text().strip()
    ip("link", "set", bridge, "address", mac)  # else it changes with the links
    ip("-n", network, "neigh", "replace", address, "lladdr", mac, "dev", inner_end(network), "nud", "permanent")


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_a_learner_goes_on_after_five_seconds_and_elsewhere_after_fifty(hosts, tmp_path: Path) -> None:
    address, networks = hosts
    experiment = endless((512, 512), max_minutes=8.0, restart=2, snapshots=SnapshotConfig(period_s=0.5))
    folder, own = tmp_path / "experiment" / "far", HostFacts("here", 2, 8_000, address)
    for network in networks:
        within = ["ip", "netns", "exec", network]
        subprocess.run([*within, "tc", "qdisc", "add", "dev", inner_end(network), *SHAPED], check=True)
    know_each_other(address, networks[0])
    said: list[str] = []
    launcher = JoinedHosts(Local(), own, 0, 2, tmp_path / "join.key", said.append, learner_on=networks[0])
    agents = agents_on(launcher, networks, tmp_path, patience_s=120.0)
    breaks = Breaks(launcher, networks[0], folder)
    breaks.start()
    try:
        result = run(experiment, runs_dir=tmp_path, name="far", launcher=launcher, display="log-only", hooks=[breaks])
    finally:
        close_all(launcher, agents)
    assert breaks.done and breaks.incarnations == [0]
    assert breaks.hosts[:3] == [networks[0]] * 3 and breaks.hosts[3] != networks[0]
    assert breaks.back_s < 15.0  # the kernel's next attempt would come 73 s after the first packet that vanished
    assert [line for line in said if f"host {networks[0]} is gone" in line], said
    store = SnapshotStore(folder / "snapshots" / "state")
    assert not [path for path in folder.rglob("*.draft")]
    assert all(version_damage(store.folder / str(version)) is None for version in store.versions())
    assert store.load("final").meta["updates"] == result.updates
    assert_balanced(json.loads((folder / "result.json").read_text()), unknown_allowed=True)
