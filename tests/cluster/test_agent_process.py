"""Agents and the launcher that starts workers through them, without a run: starts, ends, detected losses and refusals."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import shutil
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jsrl.agents.impala import IMPALAConfig
from jsrl.cluster import children
from jsrl.cluster import launcher as host_launcher
from jsrl.cluster.archive import archive, code_file
from jsrl.cluster.facts import HostFacts
from jsrl.cluster.join_key import JoinKey
from jsrl.cluster.launcher import JoinedHosts, moved, with_start
from jsrl.cluster.members import GiveKeys, Message, Received, Send
from jsrl.cluster.members import Start as StartWorker
from jsrl.cluster.messages import (
    REPLACED,
    Beat,
    Begin,
    Exited,
    Keys,
)
from jsrl.cluster.port import HostHandle
from jsrl.cluster.this_host import own_facts
from jsrl.control.processes.launcher import Local
from jsrl.envs.config import EnvConfig
from jsrl.errors import ConfigError
from jsrl.experiment import Experiment
from jsrl.graph.launcher import Need, Start
from jsrl.graph.needs import needs_of
from jsrl.graph.plan import make_plan
from jsrl.references.importing import spawn_environment
from jsrl.services.runs.control import ControlServer
from jsrl.services.runs.control_bodies import Heartbeat, Stacks, Stage
from jsrl.services.runs.values import Registration
from jsrl.transport.door.keys import load_client_keys, load_server_keys, make_keys
from jsrl.transport.shared.locks import make_folder
from jsrl.workers.jobs import StartPoint
from jsrl.workers.kinds import find_kind, value_of
from tests.cluster.agents import Agent, await_that, joined, lives
from tests.cluster.test_members import place

LEASE_S, LOST_S = 4.0, 8.0  # a loaded machine must not end a lease


class World:
    """A launcher, agents, and the control connection; actors wait for streams that no process serves."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder, self.told, self.joins = folder, list[str](), 0
        make_folder(folder / "memory")
        self.control = ControlServer(f"ipc://{folder}/memory/control")
        own = own_facts("here", "127.0.0.1")
        self.launcher = JoinedHosts(
            Local(), own, 0, count, folder / "join.key", self.told.append, join_s=30.0, lease_s=LEASE_S, lost_s=LOST_S
        )
        self.agents = [self.join(name) for name in "abc"[:count]]
        e = Experiment(
            agent=IMPALAConfig(), env=EnvConfig("probe:action_matters"), num_envs=4, num_actors=4, num_groups=4,
            placement="served",
        )  # fmt: skip
        launcher = self.launcher
        self.plan = make_plan(
            e, str(folder), folder / "memory", place=lambda p: launcher.place(p.graph, needs_of(p), lambda: False)
        )
        make_keys(self.plan.keys)
        self.stages: dict[str, set[str]] = {}
        self.stacks = ""
        self.beats = 0

    def join(self, name: str, key: Path | None = None) -> Agent:
        self.joins += 1
        return Agent(key or self.launcher.join_key, name, self.folder / f"{self.joins}-{name}.txt")

    def start(self, name: str, incarnation: int = 0) -> HostHandle:
        job = dataclasses.replace(self.plan.job(name), incarnation=incarnation)
        variables = {"OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu", "PATH": "/nowhere"}
        start = Start(self.folder, self.control.address, spawn_environment(), variables, server=self.control)
        handle = self.launcher.start(job, start)
        assert isinstance(handle, HostHandle)
        return handle

    def listen(self) -> bool:
        """Read messages of workers."""
        for message in self.control.poll(0.02):
            if isinstance(message, Stage):
                self.stages.setdefault(message.worker, set()).add(message.stage)
            elif isinstance(message, Stacks):
                self.stacks = message.text
            self.beats += isinstance(message, Heartbeat)
        return True

    def await_workers(self, *handles: HostHandle) -> None:
        """Wait until workers look for their streams and their process ids are known."""
        names = {handle.remote.worker for handle in handles}
        await_that(
            lambda: self.listen() and all("connecting to streams" in self.stages.get(name, ()) for name in names)
        )
        await_that(lambda: all(handle.remote.pid is not None for handle in handles))

    def close(self) -> None:
        self.launcher.close()
        for agent in self.agents:
            agent.close()
        self.control.close()


@contextlib.contextmanager
def world_of(folder: Path, count: int) -> Iterator[World]:
    world = World(folder, count)
    try:
        yield world
    finally:
        world.close()
    assert not [child for agent in world.agents for child in agent.workers()]


def of_host(world: World, name: str) -> str:
    """Return an actor on a host."""
    actors = [job.name for job in world.plan.jobs if job.kind == "actor"]
    return next(actor for actor in actors if world.launcher._home.get(actor) == name)


@pytest.mark.slow
def test_workers_under_an_agent(tmp_path: Path) -> None:
    with world_of(tmp_path, 1) as world:
        (agent,) = world.agents
        handle = world.start("actor-0")
        world.await_workers(handle)
        assert handle.alive and handle.where == f"pid {handle.remote.pid} of host a" and handle.exit is None
        await_that(lambda: handle.usage() is not None)
        assert handle.usage().resident_bytes > 1e6 and world.launcher.busy_s() is None
        world.control.send_command(
            "actor-0", 0, "stacks"
        )  # a command of the control connection is returned through the agent
        await_that(lambda: world.listen() and "Thread" in world.stacks and world.beats)
        assert "Thread" in handle.stacks(5.0)
        (worker,) = agent.workers()
        assert_nothing_secret(world, [agent.process, worker])
        assert "jaxlib" not in Path(f"/proc/{agent.process.pid}/maps").read_text()  # it does not load jax
        assert worker.environ()["OMP_NUM_THREADS"] == "1" and worker.environ()["PATH"] != "/nowhere"
        again = Begin(handle.remote.host.membership, "actor", "actor-0", 0, b"{}", {}, number=2)
        world.launcher._port._do(Send(handle.remote.host.identity, again))
        time.sleep(0.3)
        assert agent.workers() == [worker]  # the same incarnation is started once
        handle.pause()
        await_that(lambda: (used := handle.usage()) is not None and used.state == "stopped")
        handle.resume()
        Path(handle.remote.host.folder, "logs", "actor-0.log").write_text("at work")
        assert handle.log == f"a:{handle.remote.host.folder}/logs/actor-0.log"
        handle.kill()
        assert Path(handle.log).read_text() == "at work" and Path(handle.log).parent == tmp_path / "logs"
        assert handle.exit.text == "killed by signal 9 (SIGKILL)" and handle.exit.status == -9 and not lives(worker)
        key = load_client_keys(Path(world.launcher.members.hosts[0].folder, "keys")).public
        world.launcher.close()
        assert load_server_keys(world.plan.keys).admits(key) == ""
        assert agent.ends() == (0, agent.log.read_text()) and "the run has ended" in agent.log.read_text()


@pytest.mark.slow
def test_end_of_a_worker_that_was_lost_with_a_connection_is_reported_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with world_of(tmp_path, 1) as world:
        handle, port, lost = world.start("actor-0"), world.launcher._port, list[object]()
        world.await_workers(handle)
        handled = world.launcher.members.handle

        def handle_most(message: Any, now_s: float) -> Any:
            if isinstance(message, Received) and isinstance(message.message, Exited) and not lost:
                lost.append(message)
                return []
            return handled(message, now_s)

        monkeypatch.setattr(world.launcher.members, "handle", handle_most)
        (worker,) = world.agents[0].workers()
        worker.kill()
        await_that(lambda: lost)
        assert handle.alive
        for number in list(port._connections):
            with socket.socket(fileno=os.dup(number)) as connection:
                connection.shutdown(socket.SHUT_RDWR)
        await_that(lambda: not handle.alive)
        assert handle.exit.status == -9 and handle.remote.host in world.launcher.members.hosts


def assert_nothing_secret(world: World, processes) -> None:
    """Check that no key of the run is in the arguments or environment of a process, or in its output."""
    keys = Path(str(world.plan.keys))
    (own,) = Path(world.launcher.members.hosts[0].folder).glob("keys/client.key")
    files = [world.launcher.join_key, keys / "client.key", own]
    assert load_client_keys(own).public != load_client_keys(keys).public  # its own key
    assert load_server_keys(keys).admits(load_client_keys(own).public) == load_client_keys(own).public.hex()
    secrets = [load_client_keys(path).secret.decode() for path in files]
    secrets += [load_server_keys(folder).secret.decode() for folder in (keys, own.parent)]
    assert len(set(secrets)) == len(secrets)
    for process in processes:
        text = " ".join([*process.cmdline(), *process.environ().values(), *world.told])
        assert not [secret for secret in secrets if secret in text]


@pytest.mark.slow
def test_killed_agent_ends_its_workers_and_they_restart_elsewhere(tmp_path: Path) -> None:
    with world_of(tmp_path, 2) as world:
        mine, others = of_host(world, "a"), of_host(world, "b")
        first, second = world.start(mine), world.start(others)
        world.await_workers(first, second)
        host = next(agent for agent in world.agents if "as a" in agent.log.read_text())
        (worker,) = host.workers()
        host.popen.kill()
        await_that(lambda: not lives(worker))
        assert first.wait(LOST_S + 30.0) and first.exit.status is None
        assert first.exit.text == f"lost with its host a: it sent no message for {LOST_S:g} s"
        assert second.alive
        again = world.start(mine)
        assert again.remote.host.name == "b"
        world.await_workers(again)
        world.agents.append(world.join("a"))  # a new agent of the same host, with the same key file
        await_that(lambda: {host.name for host in world.launcher.members.hosts} == {"a", "b"})


@pytest.mark.nightly
def test_workers_of_a_suspended_agent_end_at_its_lease_and_it_joins_again_without_them(tmp_path: Path) -> None:
    with world_of(tmp_path, 1) as world:
        handle = world.start("actor-0")
        world.await_workers(handle)
        (agent,), membership = world.agents, handle.remote.host.membership
        (worker,) = agent.workers()
        agent.popen.send_signal(signal.SIGSTOP)
        await_that(lambda: not lives(worker))
        assert handle.wait(LOST_S + 30.0)
        agent.popen.send_signal(signal.SIGCONT)
        await_that(lambda: world.launcher.members.hosts)
        assert world.launcher.members.hosts[0].membership > membership and agent.popen.poll() is None
        assert (
            "no message from the controller for" in agent.log.read_text() and "1 worker ended" in agent.log.read_text()
        )


@pytest.mark.nightly
@pytest.mark.slow
def test_a_silent_controller_ends_the_lease(tmp_path: Path) -> None:
    with world_of(tmp_path, 1) as world:
        handle = world.start("actor-0")
        world.await_workers(handle)
        (agent,) = world.agents
        (worker,) = agent.workers()
        with world.launcher._port.changed:  # its thread does not answer now
            begin_s = time.monotonic()
            await_that(lambda: not lives(worker))
            assert time.monotonic() - begin_s > LEASE_S / 4
        await_that(lambda: not handle.alive)
        assert "joined again without workers" in handle.exit.text or "sent no message" in handle.exit.text
        await_that(lambda: world.launcher.members.hosts)


@pytest.mark.slow
def test_agent_exits_with_its_workers_when_its_starter_is_gone(tmp_path: Path) -> None:
    with world_of(tmp_path, 1) as world:
        handle = world.start("actor-0")
        world.await_workers(handle)
        (agent,) = world.agents
        agent.popen.send_signal(signal.SIGHUP)
        assert handle.wait(LOST_S - 1.0) and "its agent was told to end" in handle.exit.text
        status, text = agent.ends()
        assert status == 0 and text.endswith("this host has left the run: its agent was told to end\n")
        assert not Path(handle.remote.host.folder).exists()


@pytest.mark.slow
def test_agent_asked_to_end_leaves_once_its_workers_have_moved(tmp_path: Path) -> None:
    with world_of(tmp_path, 2) as world:
        mine = of_host(world, "a")
        handle = world.start(mine)
        world.await_workers(handle)
        agent = next(agent for agent in world.agents if "as a" in agent.log.read_text())
        agent.popen.terminate()
        await_that(lambda: world.launcher.moves() == {mine: "host a leaves"})
        again = world.start(mine, 1)  # although this incarnation has not left yet
        assert again.remote.host.name == "b" and handle.alive and agent.popen.poll() is None
        handle.kill()
        assert agent.ends()[0] == 0 and [host.name for host in world.launcher.members.hosts] == ["b"]
        assert world.launcher.moves() == {} and any("host a is gone" in line for line in world.told)


@pytest.mark.slow
def test_a_host_that_joins_late_gets_its_share_of_the_actors(tmp_path: Path) -> None:
    with world_of(tmp_path, 1) as world:
        world.launcher._home = {job.name: "a" for job in world.plan.jobs if job.kind == "actor"}
        handles = [world.start(name) for name in world.launcher._home]
        world.agents.append(world.join("b"))
        await_that(world.launcher.moves)
        moves = world.launcher.moves()
        worker = next(worker for worker, why in moves.items() if why == "host b has room for it")
        assert len(moves) < len(handles)
        assert world.start(worker, 1).remote.host.name == "b" and worker not in world.launcher.moves()
        assert all(handle.alive for handle in handles)


@pytest.mark.slow
def test_foreign_replaced_or_readable_keys_are_refused(tmp_path: Path) -> None:
    with world_of(tmp_path, 1) as world:
        await_that(lambda: world.launcher.members.hosts)
        old, foreign = tmp_path / "old.key", JoinKey(tmp_path / "foreign.key")
        foreign.publish(world.launcher.address)
        shutil.copy(world.launcher.join_key, old)
        world.launcher._key.replace()
        world.agents += [world.join("x", old), world.join("y", foreign.path)]
        for agent, key in zip(world.agents[1:], (old, foreign.path), strict=True):
            status, text = agent.ends()
            assert status == 1 and f"does not accept the key {key}: `jsrl stop RUN --host` replaced it" in text
            assert "client.key" not in text
        foreign.path.chmod(0o644)
        world.agents.append(world.join("z", foreign.path))
        status, text = world.agents[-1].ends()
        assert status == 2 and "others may read this secret" in text
        assert [host.name for host in world.launcher.members.hosts] == ["a"]
        world.agents.append(world.join("a"))
        status, text = world.agents[0].ends()
        assert status == REPLACED and "a new agent has taken the place of this one" in text


def test_worker_of_a_lost_host_moves_to_a_lightly_loaded_host_with_its_gpu(tmp_path: Path) -> None:
    launcher = JoinedHosts(Local(), own_facts("here", "127.0.0.1"), 0, 1, tmp_path / "join.key", lambda line: None)
    try:
        facts = [
            HostFacts("b", 4, 100),
            HostFacts("c", 4, 100, gpus=1),
            HostFacts("d", 8, 100),
            HostFacts("tiny", 64, 10),
        ]
        hosts = [joined(launcher, one) for one in facts]
        launcher._port.tell(place(hosts[0], "actor-9"))
        needs = [Need("inference-0", "serves", gpus=0), Need("actor-0"), Need("inference-1", "serves", gpus=2)]
        needs = [dataclasses.replace(need, memory_mb=20) for need in needs]
        launcher._needs = {need.worker: need for need in (*needs, Need("actor-9"))}
        launcher._home = dict.fromkeys(launcher._needs, "a")
        found = [launcher._host_for(need.worker) for need in needs]
        assert [host and host.name for host in found] == ["c", "c", None]
        launcher._home["actor-0"] = "b"
        assert launcher._host_for("actor-0") is hosts[0]
        asked: list[tuple] = []

        def variables_on(gpus, here):
            asked.append((gpus, here))
            return {"CUDA_VISIBLE_DEVICES": "0", "PATH": "/nowhere"}

        launcher._laid = {"inference-0": "c", "inference-1": "c", "learner": "here"}
        start = Start(tmp_path, "", spawn_environment(), {}, None, False, variables_on)
        job = SimpleNamespace(name="inference-2")
        assert launcher._variables_on(hosts[1], job, start) == {"CUDA_VISIBLE_DEVICES": "0"}  # type: ignore[arg-type]
        assert asked == [(["0"], {"inference-0", "inference-1", "inference-2"})]
    finally:
        launcher.close()


def test_remote_learner_starts_from_a_snapshot_in_its_host_folder(tmp_path: Path) -> None:
    e = Experiment(agent=IMPALAConfig(), env=EnvConfig("probe:action_matters"), num_envs=4, placement="served")
    job = make_plan(e, str(tmp_path / "run"), tmp_path / "memory").job("learner")
    own, other = tmp_path / "run" / "snapshots" / "state", tmp_path / "other" / "state"
    (other / "7").mkdir(parents=True)
    (other / "7" / "manifest.json").write_text("{}")

    def begins(restore: str | None) -> str | None:
        asked = dataclasses.replace(job, start_point=StartPoint(restore=restore, params_only=True))
        return moved(with_start(asked), "/far/run", "10.0.0.9").start_point.restore

    assert begins(None) is None and begins(f"{own}@7") == "/far/run/snapshots/state@7"
    assert not (tmp_path / "run" / "begins-with").exists()
    assert begins(f"{other}@7") == "/far/run/begins-with@7"  # a copy from another run, which the host does not see
    assert (tmp_path / "run" / "begins-with" / "7" / "manifest.json").exists()
    assert value_of(find_kind("learner").travel.keeps_files, job) == ("snapshots/state", "failed-update", "begins-with")


def test_modules_go_once_to_each_host_as_they_were_at_the_first_start(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "mine").mkdir()
    module = tmp_path / "mine" / "edited_later.py"
    module.write_text("VALUE = 1")
    monkeypatch.syspath_prepend(tmp_path / "mine")
    monkeypatch.setattr(host_launcher, "modules_named", lambda tree: {"edited_later"})
    e = Experiment(agent=IMPALAConfig(), env=EnvConfig("probe:action_matters"), num_envs=4, placement="served")
    job = make_plan(e, str(tmp_path / "run"), tmp_path / "memory").job("learner")
    job = dataclasses.replace(job, place=dataclasses.replace(job.place, keys=str(make_keys(tmp_path / "keys"))))

    def full_disk(*given: Any, **named: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    digest, content = archive({"edited_later"})
    told, sent = list[Message](), list[Any]()
    (tmp_path / "run").mkdir()
    launcher = JoinedHosts(Local(), own_facts("here", "127.0.0.1"), 0, 1, tmp_path / "join.key", lambda line: None)
    try:
        hosts = [joined(launcher, HostFacts(name, 4, 100, "127.0.0.1")) for name in "ab"]
        monkeypatch.setattr(launcher._port, "tell", told.append)
        monkeypatch.setattr(launcher._port, "send_file", lambda *given: sent.append(given))
        start = Start(tmp_path, "", spawn_environment(), {})
        for writes in ("write_atomic", "admit_hosts"):  # the controller tries again later
            with monkeypatch.context() as patch, pytest.raises(OSError):
                patch.setattr(host_launcher, writes, full_disk)
                launcher._begin(hosts[0], job, start)
        for incarnation in range(2):
            for host in hosts:
                launcher._begin(host, dataclasses.replace(job, incarnation=incarnation), start)
            module.write_text("VALUE = 2")
    finally:
        monkeypatch.undo()
        launcher.close()
    begun = [(message.begin.code, message.needs_files) for message in told if isinstance(message, StartWorker)]
    assert begun == [(digest, True)] * 4 and archive({"edited_later"})[0] != digest
    assert sent == [(host, code_file(digest)) for host in hosts]
    assert (tmp_path / "run" / code_file(digest)).read_bytes() == content


def test_hosts_that_read_params_form_a_tree_under_the_learner(tmp_path: Path) -> None:
    launcher = JoinedHosts(Local(), own_facts("here", "127.0.0.1"), 0, 1, tmp_path / "join.key", lambda line: None)
    try:
        for i in range(6):
            host = joined(launcher, HostFacts(f"h{i}", 4, 100))
            launcher._port.tell(place(host, "actor-9" if i == 1 else f"inference-{i}"))
            launcher._port.tell(GiveKeys(host.membership, Keys(host.membership, b"", b""), "ab"))
            relays = {"params.learner": f"tcp://ab@relay {i}"} if i != 2 else {}
            launcher._port.tell(Received(host.key, host.identity, Beat(host.membership, 1.0, [], relays=relays)))
        launcher._params = {"params.learner": {f"inference-{i}" for i in range(6)}, "params.other": set()}
        names = {"params.learner": Registration("params.learner", "tcp://10.0.0.1:7", 0, 1, "here")}
        parents = {membership: found["params.learner"] for membership, found in launcher._parents(names).items()}
        root = names["params.learner"].address
        first = "tcp://ab@relay 0"
        assert parents == {1: [root], 3: [root], 4: [root], 5: [first, root], 6: [first, root]}
        assert launcher._parents({}) == {}
    finally:
        launcher.close()


def test_an_agent_counts_its_own_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "accelerators", lambda: ["4", "6"])
    assert [children.own_gpus(text) for text in ("", "0", "1,0", "2")] == ["", "4", "6,4", ""]


def test_missing_hosts_are_reported_in_one_sentence(tmp_path: Path) -> None:
    launcher = JoinedHosts(
        Local(), own_facts("here", "127.0.0.1"), 0, 2, tmp_path / "join.key", lambda line: None, join_s=0.05
    )
    try:
        with pytest.raises(
            ConfigError, match=r"0 of 2 hosts joined within 0.05 s: none. Start `jsrl join /.*join.key`"
        ):
            launcher.place(None, (), lambda: False)  # type: ignore[arg-type]
        with pytest.raises(KeyboardInterrupt):
            launcher.place(None, (), lambda: True)  # type: ignore[arg-type]
        assert launcher.waits_for == "hosts: 0 of 2 joined"
    finally:
        launcher.close()
    assert not list(tmp_path.iterdir())
    with pytest.raises(ConfigError, match="min_hosts is 3, expected 1 to 2"):
        JoinedHosts(Local(), own_facts("here", "127.0.0.1"), 0, 2, tmp_path / "join.key", print, least=3)
