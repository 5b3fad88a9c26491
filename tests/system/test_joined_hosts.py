"""Runs with actors and servers on joined hosts: network namespaces without a common folder. One host is lost."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from jsrl.agents.dqn import DQNConfig
from jsrl.agents.ppo import PPOConfig
from jsrl.cli.main import main
from jsrl.cluster.engines import engine as engines
from jsrl.cluster.facts import HostFacts
from jsrl.cluster.launcher import JoinedHosts
from jsrl.cluster.members import RemoteWorker
from jsrl.control.processes.launcher import Local
from jsrl.control.result import STOPPED
from jsrl.control.run import run
from jsrl.envs.config import EnvConfig
from jsrl.experiment import (
    EvaluatorConfig,
    Experiment,
    InferenceConfig,
    LearnerConfig,
    PolicyConfig,
    ReplayConfig,
    SnapshotConfig,
    SupervisionConfig,
)
from jsrl.graph.needs import needs_of
from jsrl.graph.plan import make_plan
from jsrl.networks.model import NetworkConfig
from jsrl.services.runs.runs import read_metrics
from jsrl.services.snapshots.format import version_damage
from jsrl.services.snapshots.store import SnapshotStore
from jsrl.transport.ledger.leg_page import read_connections
from jsrl.transport.ledger.legs import SAMPLES, ledger_path, leg_folder, read_leg
from jsrl.transport.ledger.page import read_page
from jsrl.transport.ledger.reconcile import leg_ledger
from jsrl.types import named_leaves
from tests.cluster.agents import Agent, await_that, lives
from tests.control.test_director import DUEL, POLICIES, check_games
from tests.duel import MarkedConfig, WatchedLeague
from tests.marks import nightly, slow
from tests.system.joined import Events, agents_on, close_all, endless
from tests.system.launched import WORLD, assert_balanced

PROJECT = """
import gymnasium
import far_away_names

def make():
    return gymnasium.make(far_away_names.GAME)
"""


GRAPH = "my_workers:watched"  # with a worker of a user kind that only reads params


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A user's modules in a place that only this host sees."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "far_away_env.py").write_text(PROJECT)
    (folder / "far_away_names.py").write_text("GAME = 'CartPole-v1'")
    monkeypatch.syspath_prepend(str(folder))
    yield
    sys.modules.pop("far_away_env", None)
    sys.modules.pop("far_away_names", None)


class TrainingProgress:
    """The number of trajectories consumed by the learner of the run in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def some_more(self) -> None:
        """Wait until it has consumed some more trajectories."""
        before = self._consumed()
        await_that(lambda: self._consumed() >= before + 8, 300.0)

    def _consumed(self) -> int:
        ledger = read_leg(self._folder)
        return 0 if ledger is None else ledger.consumed


class KillServerAndHost(Events):
    """Kills a server on one host once trajectories flow, then the other host's agent, and ends the run after the recovery.

    Attributes:
      moved: workers that were restarted on the remaining host.
    """

    def __init__(self, launcher: JoinedHosts, agents: dict[str, Agent], folder: Path) -> None:
        super().__init__()
        self._launcher, self._trained = launcher, TrainingProgress(folder)
        (self._lost, self._lost_agent), (self._kept, self._kept_agent) = agents.items()
        self.moved = set[str]()

    def make(self) -> None:
        self._trained.some_more()
        for host in self._launcher.members.hosts:  # whose server reads the params that its host fetched
            await_that(lambda host=host: list(host.relays) == ["params.learner"])
        (server,) = [worker for worker in self._kept_agent.workers() if "inference" in worker.cmdline()]
        server.kill()
        self._trained.some_more()  # its actors use the other host's server, which is now lost too
        workers = self._lost_agent.workers()
        assert len(workers) > 2
        self._lost_agent.popen.kill()
        await_that(lambda: not any(lives(worker) for worker in workers))
        (host,) = [host for host in self._launcher.members.hosts if host.name == self._kept]
        await_that(lambda: len(host.names) == 2, 90.0)  # of its own server, and of that of the lost host
        self.moved = {life.worker for life in list(host.workers.values()) if life.incarnation and life.exit is None}
        self._trained.some_more()


@pytest.mark.slow
@pytest.mark.usefixtures("project")
def test_run_survives_a_lost_server_and_a_lost_host(hosts, tmp_path: Path) -> None:
    address, networks = hosts
    experiment = endless(
        env=EnvConfig("far_away_env:make"),
        num_inference_servers=2,
        restart=1,
        supervision=SupervisionConfig(backoff_s=0.1),
        evaluator=EvaluatorConfig(enabled=True, episodes=1, final_episodes=1, num_envs=1),
    )
    told: list[str] = []
    learner, *_ = needs_of(make_plan(experiment, str(tmp_path), tmp_path))
    own = HostFacts("here", 2, learner.memory_mb + 1, address)  # so that what can leave leaves
    launcher = JoinedHosts(Local(), own, 0, 2, tmp_path / "join.key", told.append, lease_s=5.0, lost_s=8.0)
    agents = agents_on(launcher, networks, tmp_path)
    folder = tmp_path / "experiment" / "far"
    storm = KillServerAndHost(launcher, agents, folder)
    storm.start()
    try:
        result = run(experiment, runs_dir=tmp_path, name="far", launcher=launcher, display="log-only", hooks=[storm])
        assert storm.done and result.ended.startswith(STOPPED)
        servers = {name for name in storm.moved if name.startswith("inference")}
        assert len(servers) == 2  # its own, and with the lost host's two actors that one's
        assert len(storm.moved - {"evaluator"}) == 4
        assert ("evaluator" in storm.moved) == (launcher._laid["evaluator"] == networks[0])
        assert agents[networks[1]].ends()[0] == 0 and "the run has ended" in agents[networks[1]].log.read_text()
        assert not any(agent.workers() for agent in agents.values())
    finally:
        close_all(launcher, agents)
    assert_balanced(json.loads((folder / "result.json").read_text()), unknown_allowed=True)
    metrics = read_metrics(folder / "metrics.jsonl")
    assert metrics["restarts/actor"][-1] == metrics["restarts/inference"][-1] == 2
    assert any(f"host {networks[0]} is gone: it sent no message for 8 s" in line for line in told)
    assert launcher._laid["evaluator"] in networks and result.final["episodes"] == 1
    if "evaluator/return_mean" in metrics:  # the lost host may have saved the best and taken its score along
        assert "best" in SnapshotStore(folder / "snapshots" / "params").tags()
    assert not (tmp_path / "join.key").exists() and not (folder / "names").exists()


class RevokeHost(Events):
    """Stops all processes of a host, removes it with `jsrl stop --host`, and ends the run once the other host trains on.

    Attributes:
      gone_s: from the command until nobody was connected to the host. untouched: the other host kept its workers.
      end: exit status and output of the removed agent.
    """

    def __init__(self, launcher: JoinedHosts, agents: dict[str, Agent], folder: Path) -> None:
        super().__init__()
        self._launcher, self._agents, self._folder = launcher, agents, folder
        self._trained = TrainingProgress(folder)
        self.gone_s, self.untouched, self.end = 0.0, False, (0, "")

    def make(self) -> None:
        self._trained.some_more()
        (removed, removed_agent), (_, kept_agent) = self._agents.items()
        (host,) = [host for host in self._launcher.members.hosts if host.name == removed]
        (kept,) = [host for host in self._launcher.members.hosts if host.name != removed]
        workers, stopped = kept_agent.workers(), [removed_agent.process, *removed_agent.workers()]
        ends = ("self", str(kept_agent.popen.pid))
        assert any(connections(host.facts.address, pid) for pid in ends)
        for process in stopped:
            process.suspend()
        begun_s = time.monotonic()
        assert main(["stop", str(self._folder), "--host", removed]) == 0
        await_that(lambda: not any(connections(host.facts.address, pid) for pid in ends), 5.0)
        self.gone_s = time.monotonic() - begun_s
        self._trained.some_more()
        self.untouched = self._launcher.members.hosts == [kept] and all(lives(worker) for worker in workers)
        for process in stopped:
            with contextlib.suppress(psutil.NoSuchProcess):  # the agent, resumed first, has killed this worker
                process.resume()
        self.end = removed_agent.ends()


def connections(address: str, pid: str) -> list[str]:
    """Return the lines of established TCP connections to an IPv4 address, in the network of a process."""
    lines = [line.split() for line in Path("/proc", pid, "net", "tcp").read_text().splitlines()[1:]]
    there = bytes(map(int, address.split(".")))[::-1].hex().upper()
    return [" ".join(words) for words in lines if words[2].partition(":")[0] == there and words[3] == "01"]


@pytest.mark.slow
def test_revoked_host_loses_its_connections_and_others_keep_theirs(hosts, tmp_path: Path) -> None:
    address, networks = hosts
    told: list[str] = []
    launcher = JoinedHosts(Local(), HostFacts("here", 2, 8_000, address), 0, 2, tmp_path / "join.key", told.append)
    agents = agents_on(launcher, networks, tmp_path)
    folder = tmp_path / "experiment" / "far"
    revoke = RevokeHost(launcher, agents, folder)
    revoke.start()
    try:
        result = run(
            endless(restart=1), runs_dir=tmp_path, name="far", launcher=launcher, display="log-only", hooks=[revoke]
        )
    finally:
        close_all(launcher, agents)
    assert revoke.done and revoke.untouched and result.ended.startswith(STOPPED)
    print(f"connections were gone after {revoke.gone_s:.1f} s")  # noqa: T201
    assert revoke.end[0] != 0 and any(f"host {networks[0]} is gone: its key was revoked" in line for line in told)
    assert_balanced(json.loads((folder / "result.json").read_text()), unknown_allowed=True)


@pytest.mark.slow
def test_deterministic_run_is_bit_identical_with_server_and_learner_on_another_host(
    tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.syspath_prepend(str(WORLD))
    experiment = Experiment(
        agent=PPOConfig(network=NetworkConfig(hidden=(8,)), num_epochs=1, num_minibatches=1),
        num_envs=4,
        placement="served",
        num_actors=2,
        rollout_length=16,
        total_env_steps=5 * 64,
        deterministic=True,
        learner=LearnerConfig(threads=3),  # more than this host's core, so that the other workers go to the other one
        evaluator=EvaluatorConfig(enabled=False),
    )
    alone = run(experiment, runs_dir=tmp_path, name="alone", placement="serial", graph=GRAPH, display="log-only")
    own, results = HostFacts("here", 1, 8_000, "127.0.0.1"), [alone]
    for learner_on in ("here", "far"):
        launcher = JoinedHosts(Local(), own, 0, 1, tmp_path / "join.key", lambda line: None, learner_on=learner_on)
        agent = Agent(launcher.join_key, "far", tmp_path / "far.txt")
        try:
            far = run(
                experiment, runs_dir=tmp_path, name=learner_on, launcher=launcher, graph=GRAPH, display="log-only"
            )
            acting = launcher._home.get("inference-0"), launcher._home.get("watch")
            assert launcher._at["learner"] == learner_on and (learner_on == "far" or acting == ("far", "far"))
        finally:
            launcher.close()
            agent.close()
        assert leg_ledger(far.ledger).balanced
        results.append(far)
    stores = [SnapshotStore(result.folder / "snapshots" / "state") for result in results]
    one, *others = (dict(named_leaves(store.load("final").tree["state"])) for store in stores)
    for other in others:
        assert one.keys() == other.keys() and not [name for name in one if one[name].tobytes() != other[name].tobytes()]


@pytest.mark.nightly
@pytest.mark.parametrize("placement", [slow("served"), nightly("inline")])
def test_frozen_players_are_copied_to_the_host_that_plays_them(placement: str, tmp_path: Path) -> None:
    duel = dataclasses.replace(DUEL, placement=placement, num_actors=2, total_env_steps=60 * 32)
    if placement == "served":  # one server for three policies
        policies = {name: PolicyConfig(MarkedConfig()) for name in POLICIES}
        league = WatchedLeague(
            main=("main",),
            main_exploiters=("hunter",),
            league_exploiters=("rover",),
            min_env_steps=100,
            max_env_steps=200,
        )
        duel = dataclasses.replace(duel, policies=policies, director=league, inference=InferenceConfig(shared=True))
    launcher = JoinedHosts(
        Local(), HostFacts("here", 1, 8_000, "127.0.0.1"), 0, 1, tmp_path / "join.key", lambda line: None
    )
    agent = Agent(launcher.join_key, "far", tmp_path / "far.txt")
    try:
        result = run(duel, runs_dir=tmp_path, name="far", launcher=launcher, display="log-only")
        acting = {"served": "inference-0", "inline": "actor-0"}[placement]
        assert acting in launcher._home
    finally:
        launcher.close()
        agent.close()
    assert result.updates == 60
    frozen = {name.partition("@")[0] for name in check_games(result) if "frozen-" in name}
    assert frozen == (set(POLICIES) if placement == "served" else {"main"})


class JoinAndLeave(Events):
    """Lets a second host join during a run, asks the first one to end once actors have moved, and ends the run.

    Attributes:
      moved: workers on the second host before the first one left. left: exit status and output of the first one's agent.
    """

    def __init__(self, launcher: JoinedHosts, folder: Path) -> None:
        super().__init__()
        self._launcher, self._folder = launcher, folder
        self._join("first")
        self.moved, self.left = set[str](), (-1, "")

    def _join(self, name: str) -> None:
        self.agent = Agent(self._launcher.join_key, name, self._folder / f"{name}.txt")

    def make(self) -> None:
        trained = TrainingProgress(self._folder / "experiment" / "moves")
        trained.some_more()
        first = self.agent
        self._join("second")
        await_that(lambda: len(self._launcher.members.hosts) == 2)
        second = self._launcher.members.hosts[1]
        await_that(lambda: second.num_living == 2 and all(life.pid for life in second.living_workers))
        self.moved = {life.worker for life in second.living_workers}
        trained.some_more()
        first.popen.terminate()
        self.left = first.ends()
        trained.some_more()


@pytest.mark.slow
def test_actors_move_to_a_host_that_joins_late_and_away_from_one_that_leaves(tmp_path: Path) -> None:
    experiment = endless()
    own = HostFacts("here", 1, 8_000, "127.0.0.1")
    launcher = JoinedHosts(Local(), own, 0, 2, tmp_path / "join.key", lambda line: None, least=1)
    moves = JoinAndLeave(launcher, tmp_path)
    moves.start()
    try:
        result = run(experiment, runs_dir=tmp_path, name="moves", launcher=launcher, display="log-only", hooks=[moves])
    finally:
        launcher.close()
        moves.agent.close()
    assert moves.done and result.ended.startswith(STOPPED) and len(moves.moved) == 2
    assert moves.left[0] == 0 and "has left the run: its agent was told to end" in moves.left[1]
    ledger = leg_ledger(result.ledger)
    assert ledger.balanced, ledger
    assert not result.ledger["dropped"].get("lost")
    assert "restarts/actor" not in read_metrics(result.folder / "metrics.jsonl")  # a move is not a restart


class Agents:
    """An engine that starts its agents on this host; see jsrl.cluster.engines.engine.Engine."""

    hosts = ("one", "two")

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.agents: dict[str, Agent] = {}

    def begin(self, host: str, key: Path) -> None:
        self.agents[host] = Agent(key, host, self._folder / f"{host}.txt")

    def ended(self, host: str) -> str:
        status = self.agents[host].popen.poll()
        return "" if status is None else f"it ended with status {status}"

    def close(self) -> None:
        for agent in self.agents.values():
            agent.close()


class KillAgents(Events):
    """Kills the agents of two hosts alternately, each time at a random moment of its work, and ends the run.

    Attributes:
      gone_s, replaced_s: for each kill, when all processes of the host were gone, and when all its actors ran elsewhere.
    """

    def __init__(self, launcher: JoinedHosts, engine: Agents, folder: Path, kills: int) -> None:
        super().__init__()
        self._launcher, self._engine, self._trained, self._kills = launcher, engine, TrainingProgress(folder), kills
        self.gone_s, self.replaced_s = list[float](), list[float]()

    def make(self) -> None:
        draw = random.Random(1)
        self._trained.some_more()
        for number in range(self._kills):
            name = self._engine.hosts[number % 2]
            await_that(lambda name=name: self._works(name), 120.0)
            time.sleep(draw.uniform(0.0, 4.0))
            self._kill(name)
        self._trained.some_more()

    def _lives(self) -> list[RemoteWorker]:
        hosts = list(self._launcher.members.hosts)
        return [life for host in hosts for life in host.living_workers if life.pid is not None]

    def _works(self, name: str) -> bool:
        return any(life.host.name == name for life in self._lives())

    def _kill(self, name: str) -> None:
        agent, lost = self._engine.agents[name], [life for life in self._lives() if life.host.name == name]
        workers, killed_s = agent.workers(), time.monotonic()
        agent.popen.kill()
        await_that(lambda: not any(lives(worker) for worker in workers))
        self.gone_s.append(time.monotonic() - killed_s)
        await_that(lambda: all(self._is_replaced(life) for life in lost), 120.0)
        self.replaced_s.append(time.monotonic() - killed_s)

    def _is_replaced(self, lost: RemoteWorker) -> bool:
        if self._launcher._at[lost.worker] == "here":  # no host existed at this moment
            return True
        return any(life.worker == lost.worker and life.incarnation > lost.incarnation for life in self._lives())


class LoseHost(Events):
    """Kills the agent of a host of a synchronous run with inline acting; ends the run once its actors train elsewhere.

    Attributes:
      meanwhile: trajectories consumed from the end of the host's workers until the first of them was replaced.
    """

    def __init__(self, launcher: JoinedHosts, agents: dict[str, Agent], folder: Path) -> None:
        super().__init__()
        self._launcher, self._folder, self._trained = launcher, folder, TrainingProgress(folder)
        (self._lost, self._agent), *_ = agents.items()
        self.meanwhile = -1

    def make(self) -> None:
        self._trained.some_more()
        workers = self._agent.workers()
        lost = [worker for worker, host in list(self._launcher._at.items()) if host == self._lost]
        assert lost
        self._agent.popen.kill()
        await_that(lambda: not any(lives(worker) for worker in workers))
        before = self._trained._consumed()
        await_that(lambda: any(self._launcher._at[worker] != self._lost for worker in lost), 60.0)
        self.meanwhile = self._trained._consumed() - before
        self._trained.some_more()
        for worker in lost:
            await_that(lambda worker=worker: self._received(f"{worker}.1") > 10, 90.0)

    def _received(self, name: str) -> int:
        return sum(c.received for c in read_connections(leg_folder(self._folder, SAMPLES)) if c.name == name)


@pytest.mark.nightly  # daily on one host: test_supervision
def test_a_synchronous_run_goes_on_before_the_actors_of_a_lost_host_are_replaced(hosts, tmp_path: Path) -> None:
    address, networks = hosts
    experiment = endless(placement="inline", restart=1)
    launcher = JoinedHosts(
        Local(), HostFacts("here", 2, 8_000, address), 0, 2, tmp_path / "join.key", lambda line: None
    )
    agents, folder = agents_on(launcher, networks, tmp_path), tmp_path / "experiment" / "far"
    loss = LoseHost(launcher, agents, folder)
    loss.start()
    try:
        result = run(experiment, runs_dir=tmp_path, name="far", launcher=launcher, display="log-only", hooks=[loss])
    finally:
        close_all(launcher, agents)
    assert loss.done and result.ended.startswith(STOPPED)
    assert loss.meanwhile > 5 * 4  # batches; without it one batch at most
    assert np.nanmax(result.metrics["learner/policy_lag_max"]) == 0
    assert_balanced(json.loads((folder / "result.json").read_text()), unknown_allowed=True)


@pytest.mark.nightly
def test_agents_killed_twenty_times_return_and_actors_are_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "LIVED_S", 1.0)  # the kills follow each other faster than an agent proves stable
    experiment = endless(max_minutes=20.0, restart=1)  # which the loss of a host does not use up
    engine, told = Agents(tmp_path), list[str]()
    own = HostFacts("here", 1, 8_000, "127.0.0.1")
    launcher = JoinedHosts(Local(), own, 0, 2, tmp_path / "join.key", told.append, engine=engine, keep=["inference"])
    kills = KillAgents(launcher, engine, tmp_path / "experiment" / "killed", 20)
    kills.start()
    try:
        result = run(experiment, runs_dir=tmp_path, name="killed", launcher=launcher, display="log-only", hooks=[kills])
    finally:
        launcher.close()
    (tmp_path / "figures.json").write_text(json.dumps([sorted(kills.gone_s), sorted(kills.replaced_s), result.ledger]))
    assert kills.done and result.ended.startswith(STOPPED) and len(kills.replaced_s) == 20
    assert max(kills.gone_s) <= 2.0 and sorted(kills.replaced_s)[18] <= 15.0
    assert sum("joined" in line for line in told) >= 21 and not launcher._given_up
    assert_balanced(json.loads((result.folder / "result.json").read_text()), unknown_allowed=True)


class ReplayMoves(Events):
    """Kills the replay worker on its host, lets that host leave once it works again, and ends the run after that.

    Attributes:
      received: trajectories that replay had received, at each look: before the kill, after it, and on the other host.
    """

    def __init__(self, launcher: JoinedHosts, agents: dict[str, Agent], folder: Path) -> None:
        super().__init__()
        self._launcher, self._agents, self._folder = launcher, agents, folder
        self.received = list[int]()

    def make(self) -> None:
        trained, store = TrainingProgress(self._folder), SnapshotStore(self._folder / "snapshots" / "params")
        trained.some_more()
        await_that(lambda: "best" in store.tags(), 120.0)
        agent = self._agents[self._launcher._at["replay-0"]]
        self._await_more()
        (worker,) = [worker for worker in agent.workers() if "replay" in worker.cmdline()]
        worker.kill()
        trained.some_more()
        self._await_more()
        agent.popen.terminate()
        agent.ends(60.0)
        trained.some_more()
        self._await_more()

    def _await_more(self) -> None:
        """Wait until replay has received more than at the first look: the learner may train on batches drawn before."""
        first = self._look()
        await_that(lambda: self._look() > first, 300.0)

    def _look(self) -> int:
        life = read_page(ledger_path(self._folder, "samples.replay-0"))
        assert life is not None
        self.received.append(life.ledger.received)
        return self.received[-1]


@pytest.mark.nightly
def test_replay_and_evaluator_on_joined_hosts_keep_counts_and_files(hosts, tmp_path: Path) -> None:
    address, networks = hosts
    experiment = Experiment(
        agent=DQNConfig(network=NetworkConfig(hidden=(8,))),
        env=EnvConfig("CartPole-v1"),
        num_envs=8,
        placement="served",
        num_actors=2,
        rollout_length=16,
        replay=ReplayConfig(kind="host", capacity=4_000, min_size=200, batch_size=16, updates_per_env_step=0.0625),
        total_env_steps=10**9,
        max_minutes=8.0,
        restart=2,
        evaluator=EvaluatorConfig(episodes=2, final_episodes=2, num_envs=2),
    )
    needs = {need.worker: need for need in needs_of(make_plan(experiment, str(tmp_path), tmp_path))}
    memory_mb = needs["learner"].memory_mb + needs["inference-0"].memory_mb + 1  # nothing else fits
    own = HostFacts("here", 2, memory_mb, address)
    launcher = JoinedHosts(Local(), own, 0, 2, tmp_path / "join.key", lambda line: None, keep=["inference"])
    agents = agents_on(launcher, networks, tmp_path)
    folder = tmp_path / "experiment" / "far"
    moves = ReplayMoves(launcher, agents, folder)
    moves.start()
    try:
        result = run(experiment, runs_dir=tmp_path, name="far", launcher=launcher, display="log-only", hooks=[moves])
    finally:
        close_all(launcher, agents)
    assert moves.done and result.ended.startswith(STOPPED)
    assert set(launcher._laid.values()) - {"here"} == {launcher._laid["replay-0"], launcher._laid["actor-1"], *networks}
    assert moves.received == sorted(moves.received)  # each incarnation continues the counts of the previous one
    assert json.loads((folder / "replay" / "0" / "counters.json").read_text())["drawn"] > 0
    SnapshotStore(folder / "snapshots" / "params").load("best")
    assert_balanced(json.loads((folder / "result.json").read_text()), unknown_allowed=True)


class LearnerMoves(Events):
    """Kills a learner on its host, then that host's agent, each after a snapshot, and ends the run once another one trains.

    Attributes:
      snapshots: the newest version in the run folder before each kill, and at the end. hosts: of the learner.
    """

    def __init__(self, launcher: JoinedHosts, agents: dict[str, Agent], folder: Path) -> None:
        super().__init__()
        self._launcher, self._agents, self._folder = launcher, agents, folder
        self.snapshots, self.hosts = [0], list[str]()

    def make(self) -> None:
        trained = TrainingProgress(self._folder)
        trained.some_more()
        self._await_snapshot()
        agent = self._agents[self.hosts[-1]]
        (learner,) = [worker for worker in agent.workers() if "learner" in worker.cmdline()]
        learner.kill()
        trained.some_more()
        self._await_snapshot()
        agent.popen.kill()
        await_that(lambda: self._launcher._at["learner"] != self.hosts[-1], 60.0)
        trained.some_more()
        self._await_snapshot()

    def _await_snapshot(self) -> None:
        store = SnapshotStore(self._folder / "snapshots" / "state")
        await_that(lambda: "latest" in store.tags() and store.resolve("latest") > self.snapshots[-1], 60.0)
        self.snapshots.append(store.resolve("latest"))
        store.load("latest")
        self.hosts.append(self._launcher._at["learner"])


@pytest.mark.nightly
def test_learner_on_a_joined_host_resumes_from_its_last_snapshot_on_any_host(hosts, tmp_path: Path) -> None:
    address, networks = hosts
    experiment = endless(restart=2, snapshots=SnapshotConfig(period_s=0.5))
    own, folder = HostFacts("here", 2, 8_000, address), tmp_path / "experiment" / "far"
    join = functools.partial(JoinedHosts, Local(), own, 0, 2, tmp_path / "join.key", lambda line: None)
    launcher = join(learner_on=networks[0], lease_s=5.0, lost_s=8.0)
    agents = agents_on(launcher, networks, tmp_path)
    moves = LearnerMoves(launcher, agents, folder)
    moves.start()
    try:
        first = run(experiment, runs_dir=tmp_path, name="far", launcher=launcher, display="log-only", hooks=[moves])
    finally:
        close_all(launcher, agents)
    assert moves.done and first.ended.startswith(STOPPED)
    assert moves.hosts[:2] == [networks[0]] * 2 and moves.hosts[2] == networks[1]
    store = SnapshotStore(folder / "snapshots" / "state")
    assert store.resolve("final") == store.resolve("latest") >= moves.snapshots[-1]
    assert not [path for path in folder.rglob("*.draft")]
    assert all(version_damage(store.folder / str(version)) is None for version in store.versions())
    assert len(store.versions()) <= 4  # files removed by the learner are removed here as well
    assert_balanced(json.loads((folder / "result.json").read_text()), unknown_allowed=True)
    launcher = join(learner_on=networks[1])
    agents = agents_on(launcher, networks, tmp_path)
    limited = dataclasses.replace(experiment, total_env_steps=first.env_steps + 20 * 128)
    try:
        second = run(limited, runs_dir=tmp_path, resume="far", launcher=launcher, display="log-only")
    finally:
        close_all(launcher, agents)
    assert second.updates == first.updates + 20 and launcher._at["learner"] == networks[1]
    assert SnapshotStore(folder / "snapshots" / "state").load("final").meta["updates"] == second.updates
    other = dataclasses.replace(limited, total_env_steps=5 * 128)
    launcher = join(learner_on=networks[0])
    agents = agents_on(launcher, networks, tmp_path)
    try:
        third = run(other, runs_dir=tmp_path, name="b", init_from="far@final", launcher=launcher, display="log-only")
    finally:
        close_all(launcher, agents)
    assert third.updates == 5 and launcher._at["learner"] == networks[0]
