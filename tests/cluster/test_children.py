"""The workers of an agent, without processes: who is measured when there are many, and how often reports are read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import zmq

from jsrl.cluster.children import MOST_MEASURED, Children, ChildrenControl
from jsrl.control.processes import actor_host
from jsrl.services.runs.control import encoded
from jsrl.services.runs.control_bodies import Stage
from jsrl.services.runs.values import ResourceUsage
from tests.cluster.agents import await_that


def test_of_many_workers_some_are_measured_in_turn_the_new_ones_first(tmp_path: Path) -> None:
    children = Children(tmp_path, "")
    used = ResourceUsage("running", 1.0, 2, 3)
    for number in range(2 * MOST_MEASURED):
        children._handles[f"actor-{number}", 0] = SimpleNamespace(pid=number, usage=lambda: used)
    rounds = [{one.worker for one in children.usage()} for _ in range(2)]
    assert len(rounds[0]) == len(rounds[1]) == MOST_MEASURED and not rounds[0] & rounds[1]
    children._handles["new", 0] = SimpleNamespace(pid=None, usage=lambda: None)
    assert "new" not in {one.worker for one in children.usage()}  # its process is not known yet
    children._handles["new", 0] = SimpleNamespace(pid=1, usage=lambda: used)
    assert "new" in {one.worker for one in children.usage()}


def test_end_of_a_worker_is_reported_after_its_last_messages(tmp_path: Path) -> None:
    children = Children(tmp_path, "")
    children._handles["actor-0", 3] = SimpleNamespace(alive=False, exit=None, tail=lambda lines: "its log")
    assert children.ended() == []
    (ended,) = children.ended()
    assert (ended.worker, ended.incarnation, ended.tail) == ("actor-0", 3, "its log") and not children.ended()


def test_messages_of_workers_that_have_ended_do_not_reach_a_later_membership(tmp_path: Path) -> None:
    """The controller would hold this host responsible for them."""
    control, context = ChildrenControl(zmq.Context(), tmp_path), zmq.Context()
    children = SimpleNamespace(has=lambda identity: identity == b"actor-0/1")
    try:
        sockets = {}
        for incarnation in (0, 1):
            socket = sockets[incarnation] = context.socket(zmq.DEALER)
            socket.setsockopt(zmq.IDENTITY, f"actor-0/{incarnation}".encode())
            socket.connect(control.address)
        stages = {number: encoded(Stage("actor-0", number, "ready", 42)) for number in sockets}
        for number in (0, 1, 1):
            sockets[number].send(stages[number])
        heard = list[bytes]()

        def listens() -> bool:
            control.listen(children)  # type: ignore[arg-type]
            heard.extend(control.frames(beats=True))
            return len(heard) == 2

        await_that(listens)
        assert heard == [stages[1]] * 2 and control.last_words() == [stages[1]]
        control.forget()
        assert not control.last_words() and not control.ready
    finally:
        context.destroy(linger=0)
        control.socket.context.destroy(linger=0)


def test_a_host_of_many_actors_is_read_once_for_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actor_host, "LOOK_S", 60.0)
    host = object.__new__(actor_host.ActorHost)
    host.popen = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    reads: list[float] = []
    host._listened_s, host.listen = 0.0, lambda timeout_s=0.0: reads.append(timeout_s)  # type: ignore[method-assign]
    actors = [actor_host.HostedActor(host, number) for number in range(250)]
    try:
        assert all(actor.poll() is None for actor in actors) and len(reads) == 1
    finally:
        host.popen.kill()
        host.popen.wait()
    assert all(actor.poll() == -9 for actor in actors)  # its end is seen at once
