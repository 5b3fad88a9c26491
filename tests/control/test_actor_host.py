"""The controller's side of an actor host, without a run: after any kill, all processes end and are accounted for."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from jsrl.agents.impala import IMPALAConfig
from jsrl.control.processes import actor_host
from jsrl.control.processes.launcher import Local
from jsrl.control.supervised import SupervisedWorker
from jsrl.envs.config import EnvConfig
from jsrl.experiment import Experiment
from jsrl.graph.devices import process_environment
from jsrl.graph.launcher import Start
from jsrl.graph.plan import Plan, make_plan
from jsrl.references.importing import spawn_environment
from jsrl.services.runs.control import ControlServer
from jsrl.transport.shared.locks import make_folder
from tests.marks import nightly, slow
from tests.patience import stretched

ACTORS, NICE = 6, 3


class Hosted:
    """A host and its actors, which wait for streams that no process serves."""

    def __init__(self, plan: Plan, control: ControlServer, folder: Path) -> None:
        self._control = control
        jobs = [job for job in plan.jobs if job.kind == "actor"]
        variables = process_environment(plan, jobs[0], [])
        start = Start(folder, control.address, spawn_environment(), variables, forks=True, nice=NICE)
        self.launcher = Local()
        self.actors = [SupervisedWorker(job, self.launcher.start(job, start)) for job in jobs]
        assert self.launcher.host is not None
        self.host = self.launcher.host

    def let_run(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._control.poll(0.01)
            assert all(actor.alive for actor in self.actors)

    def await_forks(self) -> None:
        until = time.monotonic() + 30.0
        while any(actor.handle.pid is None for actor in self.actors):
            assert time.monotonic() < until
            self.let_run(0.01)

    def left(self) -> list[psutil.Process]:
        """Return the living processes of this host; all show its command line."""
        found = []
        for process in psutil.process_iter():
            try:
                if self._control.address in process.cmdline():
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def assert_gone(self, timeout_s: float = 3.0) -> None:
        begun_s = time.monotonic()
        while left := self.left():
            assert time.monotonic() - begun_s < stretched(timeout_s), left
            time.sleep(0.01)


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    experiment = Experiment(
        agent=IMPALAConfig(), env=EnvConfig("probe:action_matters"), num_envs=ACTORS, num_actors=ACTORS, num_groups=ACTORS,
        placement="served",
    )  # fmt: skip
    return make_plan(experiment, "", tmp_path_factory.mktemp("memory"))


@pytest.fixture
def hosted(plan: Plan, tmp_path: Path) -> Iterator[Hosted]:
    control = ControlServer(f"ipc://{make_folder(tmp_path / 'memory')}/control")
    hosted = Hosted(plan, control, tmp_path)
    try:
        yield hosted
    finally:
        hosted.launcher.close()
        control.close()
        hosted.assert_gone()


MOMENTS = (0.0, nightly(0.05), nightly(0.15), 0.2, nightly(0.25), nightly(0.3), 0.4, slow(0.6))


@pytest.mark.parametrize("after_s", MOMENTS)
def test_actors_killed_at_any_moment_end(hosted: Hosted, after_s: float) -> None:
    hosted.let_run(after_s)
    for actor in hosted.actors:
        actor.handle.kill()
        assert actor.handle.exit.status == -signal.SIGKILL
    assert all("signal 9 (SIGKILL)" in actor.handle.exit.text for actor in hosted.actors)
    forked = [actor.handle.pid for actor in hosted.actors if actor.handle.pid is not None]
    assert not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in forked)


@pytest.mark.parametrize("after_s", MOMENTS)
def test_host_killed_at_any_moment_ends_all_its_actors(hosted: Hosted, after_s: float) -> None:
    hosted.let_run(after_s)
    hosted.host.popen.kill()
    for actor in hosted.actors:
        assert actor.handle.wait(stretched(5.0)) and actor.handle.exit.status == -signal.SIGKILL
        assert "with its actor host, killed by signal 9 (SIGKILL)" in actor.handle.exit.text
    hosted.assert_gone()


@pytest.mark.slow
def test_signals_that_slurm_sends_to_all_processes_end_neither_host_nor_actors(hosted: Hosted) -> None:
    hosted.let_run(0.05)  # some are just being forked
    for wait_s in (0.0, 0.1):
        hosted.await_forks()
        for pid in (hosted.host.popen.pid, *(actor.handle.pid for actor in hosted.actors)):
            os.kill(pid, signal.SIGTERM)
            os.kill(pid, signal.SIGINT)
        hosted.let_run(0.1 + wait_s)  # all live


def test_process_list_shows_the_actor_in_place_of_its_host(hosted: Hosted) -> None:
    hosted.await_forks()
    first, until = psutil.Process(hosted.actors[0].handle.pid), time.monotonic() + 10.0
    while (words := first.cmdline())[2:4] != ["jsrl.workers", "actor-0"]:
        assert time.monotonic() < until, words
        time.sleep(0.01)
    assert psutil.Process(hosted.host.popen.pid).cmdline()[3] == "actor-host"


def test_ended_actor_is_distinguished_from_living_ones(hosted: Hosted) -> None:
    hosted.await_forks()
    third = hosted.actors[3]
    os.kill(third.handle.pid, signal.SIGSEGV)
    begin = time.monotonic()
    while third.alive:
        assert time.monotonic() - begin < stretched(3.0)
        time.sleep(0.005)
    assert third.handle.exit.text == "killed by signal 11 (SIGSEGV)"
    assert [actor.name for actor in hosted.actors if actor.alive] == [f"actor-{i}" for i in range(ACTORS) if i != 3]


def test_actors_make_way_for_their_host(hosted: Hosted) -> None:
    hosted.await_forks()
    own, until = os.nice(0), time.monotonic() + 5.0
    while {psutil.Process(actor.handle.pid).nice() for actor in hosted.actors} != {min(own + NICE, 19)}:
        assert time.monotonic() < until
        time.sleep(0.01)
    assert psutil.Process(hosted.host.popen.pid).nice() == own  # it reports their ends


@pytest.mark.slow
def test_stopped_host_does_not_delay_the_end(hosted: Hosted) -> None:
    hosted.await_forks()
    hosted.host.popen.send_signal(signal.SIGSTOP)
    begin = time.monotonic()
    for actor in hosted.actors:
        actor.handle.kill()
    hosted.launcher.close()
    assert time.monotonic() - begin < stretched(3.0)


def test_waits_on_large_file_descriptors() -> None:
    """A process with more than 1,023 open files, such as a notebook."""
    one, other = socket.socketpair()
    with one, other, socket.socket(fileno=fcntl.fcntl(one.fileno(), fcntl.F_DUPFD_CLOEXEC, 1_100)) as large:
        other.send(b"x")
        actor_host._await(large, select.POLLIN, 5.0)
        assert large.recv(1) == b"x"
