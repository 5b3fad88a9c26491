"""A user's own kind of worker, transport and launcher, all defined here and unknown to jsrl."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from jsrl.agents.ppo import PPOConfig
from jsrl.cli.status import headline
from jsrl.control.processes.launcher import Local
from jsrl.control.run import run
from jsrl.envs.config import EnvConfig
from jsrl.errors import ConfigError, StreamTimeout
from jsrl.experiment import EvaluatorConfig, Experiment
from jsrl.graph.check import check
from jsrl.graph.graph import Graph
from jsrl.graph.launcher import Handle, Hosts, Need, Start
from jsrl.graph.placements import make_graph
from jsrl.networks.model import NetworkConfig
from jsrl.services.runs.process import ProcessIdentity
from jsrl.services.runs.state import RUNNING, read_state
from jsrl.transport.table import Transport, connect_ranks, find_transport, place_in, transport_at
from jsrl.types import version_updates
from jsrl.workers.jobs import Job
from jsrl.workers.kinds import Kind, Shown
from jsrl.workers.transform import TrajectoryTransform
from tests.system.launched import assert_balanced

HERE = "tests.control.test_user_parts"


class Mark(TrajectoryTransform):
    """Forwards trajectories with marked rewards."""

    def change(self, trajectory, entry) -> None:
        trajectory.reward[...] += self.job.settings["by"]


MARK = Kind(
    "mark",
    "markers",
    f"{HERE}:Mark",
    TrajectoryTransform.ports,
    loads_jax=False,
    shown=Shown(TrajectoryTransform.activities),
)


class Files(Transport):
    """Transfers params in files of a folder."""

    def bind_params(self, address: str, **options: Any) -> FilePublisher:
        return FilePublisher(address)

    def connect_params(self, address: str, **options: Any) -> FileSubscriber:
        return FileSubscriber(address)


FILES = Files()


class FilePublisher:
    def __init__(self, address: str) -> None:
        self.address, self._folder = address, Path(place_in(address))
        self._folder.mkdir(exist_ok=True)

    def publish(self, policy: int, version: int, values: list[np.ndarray]) -> None:
        new = self._folder / f"new-{policy}.npz"
        np.savez(new, *values, version=np.int64(version))
        os.replace(new, self._folder / f"{policy}.npz")

    def close(self) -> None:
        """Do nothing; the last params stay readable."""


class FileSubscriber:
    def __init__(self, address: str) -> None:
        self._folder, self._known = Path(place_in(address)), dict[int, int]()

    def _read(self, policy: int) -> tuple[int, list[np.ndarray]] | None:
        try:
            with np.load(self._folder / f"{policy}.npz", allow_pickle=False) as file:
                return int(file["version"]), [file[f"arr_{i}"] for i in range(len(file.files) - 1)]
        except FileNotFoundError:
            return None

    def poll(self, policy: int = 0) -> tuple[int, list[np.ndarray]] | None:
        found = self._read(policy)
        if found is None or found[0] == self._known.get(policy):
            return None
        self._known[policy] = found[0]
        return found

    def wait(self, policy: int, min_updates: int, timeout_s: float) -> None:
        until = time.monotonic() + timeout_s
        while (found := self._read(policy)) is None or version_updates(found[0]) < min_updates:
            if time.monotonic() > until:
                raise StreamTimeout(f"no params of {min_updates} updates within {timeout_s:g} s")
            time.sleep(0.005)

    def close(self) -> None:
        """Do nothing; nothing is held."""


class RecordingLauncher:
    """Starts workers as processes of this host, and records where their streams are bound."""

    def __init__(self) -> None:
        self._local = Local()
        self.bound: dict[str, str] = {}
        self.handles: list[Handle] = []

    def place(self, graph: Graph, needs: Sequence[Need], stop_asked: Callable[[], bool]) -> Hosts:
        return Hosts()

    def moves(self) -> dict[str, str]:
        return {}

    def start(self, job: Job, start: Start) -> Handle:
        self.bound |= {f"{job.name}.{port}": end.address for port, end in job.ends if end.address}
        self.handles.append(self._local.start(job, start))
        return self.handles[-1]

    def busy_s(self) -> None:
        return None

    def close(self) -> None:
        self._local.close()


def edited(graph: Graph) -> Graph:
    """Return the graph with a worker of MARK between actors and learner, and params in files."""
    marked = graph.insert(f"{HERE}:MARK", stream="samples", settings={"by": 0.5})
    return marked.with_stream("params", transport=f"{HERE}:FILES")


def small(**values) -> Experiment:
    agent = PPOConfig(network=NetworkConfig(hidden=(8,)), num_epochs=1, num_minibatches=1)
    shape = {"num_envs": 4, "num_groups": 2, "rollout_length": 8, "total_env_steps": 6 * 32, "placement": "served"}
    off = EvaluatorConfig(enabled=False)
    return Experiment(agent=agent, env=EnvConfig("CartPole-v1"), evaluator=off, **(shape | values))


@pytest.mark.slow
def test_user_kind_transport_and_launcher(tmp_path: Path) -> None:
    """Rows must be from the newest params, so the run only continues if params arrive."""
    launcher = RecordingLauncher()
    result = run(
        small(placement="inline"), runs_dir=tmp_path, name="own", graph=edited, launcher=launcher, display="log-only"
    )
    assert result.ended == "total_env_steps" and result.updates == 6
    assert launcher.bound["learner.params"].startswith(f"transport:{HERE}:FILES:/")
    assert len(launcher.handles) == 3 and not any(handle.alive for handle in launcher.handles)
    assert len(result.legs) == 1
    assert_balanced({"ledger": result.ledger, "legs": result.legs})


class WaitingLauncher(RecordingLauncher):
    """Waits long for its hosts; `states` has the states of the run as another host sees them meanwhile."""

    waits_for = "hosts: 1 of 2 joined"

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder, self.states, self.headlines = folder, list[str](), list[str]()

    def place(self, graph: Graph, needs: Sequence[Need], stop_asked: Callable[[], bool]) -> Hosts:
        elsewhere = self.folder.with_name("elsewhere")
        for _ in range(2):
            os.utime(self.folder / RUNNING, (0.0, 0.0))
            stop_asked()
            elsewhere.mkdir(exist_ok=True)
            (elsewhere / RUNNING).write_bytes(msgspec.json.encode(replace(ProcessIdentity.own(), boot="another")))
            os.utime(elsewhere / RUNNING, (0.0, (self.folder / RUNNING).stat().st_mtime))
            self.states.append(read_state(elsewhere).name)
            self.headlines.append(headline(read_state(self.folder)))
        raise ConfigError("no host joined")


def test_run_that_waits_for_hosts_is_not_silent_for_other_hosts(tmp_path: Path) -> None:
    launcher = WaitingLauncher(tmp_path / "experiment" / "own")
    with pytest.raises(ConfigError, match="no host joined"):
        run(small(), runs_dir=tmp_path, name="own", launcher=launcher, display="log-only")
    assert launcher.states == ["starting", "starting"]
    assert all("starting (waiting for hosts: 1 of 2 joined), process" in line for line in launcher.headlines)


def test_transport_is_refused_where_it_does_not_work() -> None:
    with pytest.raises(ConfigError, match="FILES carries no samples"):
        check(make_graph(small()).with_stream("samples", transport=f"{HERE}:FILES"))
    with pytest.raises(ConfigError, match=r"is Kind; a transport is a value of"):
        find_transport(f"{HERE}:MARK")
    with pytest.raises(ConfigError, match=r"'nowhere:TRANSPORT' cannot be imported .*No module named 'nowhere'"):
        transport_at("transport:nowhere:TRANSPORT:/somewhere")
    with pytest.raises(ConfigError, match=r"\(Files\) carries no ranks"):
        connect_ranks(f"transport:{HERE}:FILES:/somewhere", keys=None)
