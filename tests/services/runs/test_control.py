"""The control connection between heartbeats: its thread sleeps and is woken by pending messages; pauses of a process."""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
import zmq

from jsrl.services.runs import control, process
from jsrl.services.runs.control import HEARTBEAT_S, LEASE_GRACE_S, MAX_MESSAGES, ControlClient, ControlServer, encoded
from jsrl.services.runs.control_bodies import Bye, Command, Event, Heartbeat, Stage
from jsrl.services.runs.process import PAUSE_S, HostLease, Pauses
from jsrl.workers.kinds import find_kind
from jsrl.workers.process import slowness

DEADLINE_S = 10.0


@pytest.fixture
def transport(tmp_path, monkeypatch):
    monkeypatch.setattr(control, "HEARTBEAT_S", 3600.0)
    before = open_files()
    server = ControlServer(f"ipc://{tmp_path}/control")
    client = ControlClient(server.address, "actor-0", 0)
    assert isinstance(heard(server, Heartbeat), Heartbeat)  # the first one at once, the next in an hour
    yield server, client
    client.close()
    server.close()
    assert not open_files() - before  # there may be fewer, if garbage of earlier tests was collected


def open_files() -> Counter[str]:
    """Return what this process has open: sockets, pipes and files individually, others by kind."""
    found = Counter[str]()
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the one of the listing itself
            found[os.readlink(f"/proc/self/fd/{descriptor}")] += 1
    return found


def heard(server, kind, worker=""):
    until = time.monotonic() + DEADLINE_S
    while time.monotonic() < until:
        for message in server.poll(0.1):
            if isinstance(message, kind) and message.worker.startswith(worker):
                return message
    raise AssertionError(f"no {kind.__name__} within {DEADLINE_S:g} s")


def test_worker_messages_do_not_wait_for_the_next_heartbeat(transport):
    server, client = transport
    for number in range(3):
        client.send(Event, name="note", text=str(number))
        assert heard(server, Event).text == str(number)


def test_facts_that_cannot_be_sent_do_not_end_the_control_thread(transport):
    server, client = transport
    with pytest.raises(TypeError, match="a fact is of type object; facts are numbers, texts, lists and dicts"):
        client.send(Event, name="note", facts={"seen": object()})
    client.send(Event, name="note", facts={"count": np.int64(3), "scores": np.arange(2)})
    assert heard(server, Event).facts == {"count": 3, "scores": [0, 1]}


def test_a_text_that_is_not_utf8_arrives(transport):  # such as an error that names a file of a Latin-1 system
    server, client = transport
    client.send(Event, name="note", text="gr\udcf6\udcdfe")
    assert heard(server, Event).text == "gr\\udcf6\\udcdfe"


def test_controller_messages_arrive_between_heartbeats(transport):
    server, client = transport
    server.send_command("actor-0", 0, "evaluate", {"number": 7})
    assert client.commands.get(timeout=DEADLINE_S).facts == {"number": 7}
    server.send_command("actor-0", 0, "stop")
    assert client.stop.wait(DEADLINE_S)


def lose_connections(server):
    """Let the server recreate its socket, as a network does that breaks for a moment."""
    known = server._waiting
    server.close()
    server.__init__(server.address)
    server._waiting = known


def test_commands_during_a_reconnection_arrive_in_order(transport):
    server, client = transport
    lose_connections(server)
    for number in range(3):  # workers reconnect after 0.1 to 0.2 s
        server.send_command("actor-0", 0, "evaluate", {"number": number})
    server.send_command("actor-0", 0, "stop")
    client.send(Event, name="note", text="reconnected")
    assert heard(server, Event).text == "reconnected"
    assert client.stop.wait(DEADLINE_S)
    assert [client.commands.get_nowait().facts["number"] for _ in range(3)] == [0, 1, 2]


def test_messages_of_other_hosts_are_taken_and_commands_to_their_workers_are_forwarded(transport):
    server, client = transport
    forwarded = list[tuple[str, int, Command]]()
    server.forward = lambda worker, number, frame: forwarded.append(
        (worker, number, msgspec.msgpack.decode(frame, type=Command))
    )
    threading.Timer(0.05, server.take, [[Heartbeat("actor-7", 2, progress=0)]]).start()
    assert heard(server, Heartbeat, "actor-7").incarnation == 2
    server.send_command("actor-7", 2, "stop")
    server.send_command("actor-7", 1, "stop")  # which has said nothing
    server.send_command("actor-0", 0, "stop")
    assert client.stop.wait(DEADLINE_S)
    assert forwarded == [("actor-7", 2, Command("stop"))]


def test_few_commands_wait_for_a_worker_that_is_gone(transport, monkeypatch):
    server, _ = transport
    monkeypatch.setattr(control, "MAX_COMMANDS", 5)
    gone = ControlClient(server.address, "actor-1", 0)
    heard(server, Heartbeat)
    gone.close()
    lose_connections(server)
    for number in range(20):
        server.send_command("actor-1", 0, "evaluate", {"number": number})
        server.send_command("unknown", 0, "evaluate", {"number": number})
    assert [len(commands) for name, commands in server._waiting.items() if name != b"actor-0/0"] == [5]


def test_close_sends_queued_messages_without_waiting(transport):
    server, client = transport
    client.send(Bye, facts={"rows": 3})
    began_s = time.monotonic()
    client.close(DEADLINE_S)
    assert time.monotonic() - began_s < DEADLINE_S / 2
    assert heard(server, Bye).facts == {"rows": 3}
    client.send(Event, name="note", text="after the end")  # nothing listens, and it is not an error
    client.close()


def test_the_deadline_of_a_call_starts_again_when_its_next_slot_begins(tmp_path, monkeypatch):
    class Call:
        slot = 0

        def __str__(self):
            return f"slot {self.slot}"

    monkeypatch.setattr(control, "HEARTBEAT_S", 0.01)
    server = ControlServer(f"ipc://{tmp_path}/control")
    client = ControlClient(server.address, "actor-0", 0)
    call = Call()
    client._activity = (call, time.monotonic() - 100.0, 1000.0)
    beats = [heard(server, Heartbeat)]
    while beats[-1].activity != "slot 1":
        if beats[-1].activity == "slot 0":
            call.slot = 1
        beats.append(heard(server, Heartbeat))
    inside_s = {beat.activity: beat.activity_s for beat in beats}
    client.close()
    server.close()
    assert inside_s["slot 0"] >= 100.0 and inside_s["slot 1"] < 50.0


def test_a_slow_worker_beats_less_often(tmp_path, monkeypatch):
    monkeypatch.setattr(control, "HEARTBEAT_S", 0.01)
    server = ControlServer(f"ipc://{tmp_path}/control")
    client = ControlClient(server.address, "actor-0", 0)
    heard(server, Heartbeat)
    client.slowness = 1e6
    heard(server, Heartbeat)  # it was due already
    time.sleep(0.3)
    beats = [message for message in server.poll(0) if isinstance(message, Heartbeat)]
    assert len(beats) <= 2  # of 30
    client.close()
    server.close()


def test_heartbeat_traffic_is_bounded_for_thousands_of_actors():
    actors, learner = find_kind("actor"), find_kind("learner")
    assert [slowness(actors, workers, 30.0) for workers in (3, 50, 1000)] == [1.0, 1.0, 20.0]
    assert slowness(learner, 1000, 30.0) == 1.0
    for silence_s in (5.0, 30.0, 300.0):  # none of any number of workers seems to hang
        assert 2 * HEARTBEAT_S * slowness(actors, 100_000, silence_s) < silence_s


def test_worker_ends_after_the_lease_of_its_host(tmp_path, monkeypatch):
    clock, statuses = [100.0], []
    monkeypatch.setattr(process, "now_s", lambda: clock[0])
    monkeypatch.setattr(os, "_exit", statuses.append)
    agent = HostLease(tmp_path, extends=True)
    worker = SimpleNamespace(lease=HostLease(tmp_path))
    agent.extend(115.0)
    assert ControlClient._check_lease(worker) == 15.0 + LEASE_GRACE_S and not statuses
    clock[0] = 116.0
    ControlClient._check_lease(worker)
    assert len(statuses) == 1 and statuses[0] != 0
    agent.extend(130.0)
    assert ControlClient._check_lease(worker) > 0.0 and len(statuses) == 1
    assert ControlClient._check_lease(SimpleNamespace(lease=None)) == math.inf


def test_one_wrong_message_drops_no_other_and_nobody_uses_another_name(tmp_path: Path) -> None:
    server = ControlServer(f"ipc://{tmp_path}/control")
    context = zmq.Context()
    right = [encoded(Stage("actor-0", 0, stage, 42)) for stage in ("building", "ready")]
    wrong = [b"\xff", encoded(Stage("learner", 0, "ready", 42)), encoded(Stage("actor-0", 1, "ready", 42))]
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.IDENTITY, b"actor-0/0")
    socket.connect(server.address)
    socket.send_multipart([wrong[0], right[0], *wrong[1:], right[1]])
    assert [message.stage for message in server.poll(20.0)] == ["building", "ready"] and server.refused == 3
    context.destroy(linger=0)
    server.close()


def test_a_flood_from_other_hosts_is_read_in_turns_and_one_heartbeat_of_each_worker(tmp_path: Path) -> None:
    server, count = ControlServer(f"ipc://{tmp_path}/control"), 5 * MAX_MESSAGES // 2
    server.take([Event("actor-0", 0, "note", str(number)) for number in range(count)])
    for first in range(0, count, MAX_MESSAGES):
        numbers = range(first, min(first + MAX_MESSAGES, count))
        assert [message.text for message in server.poll(60.0)] == [str(number) for number in numbers]
    for _ in range(2):
        server.take([Heartbeat(name, 0, number) for number in range(1_000) for name in ("actor-0", "actor-1")])
        assert [message.worker for message in server.poll(60.0)] == ["actor-0", "actor-1"]
    server.close()


@pytest.mark.parametrize(
    ("gap_s", "cpu_s", "wait_s", "since_s"),
    [
        (40.0, 0.0, 0.0, 1.0),  # stopped for 40 s, then 1 s
        (40.0, 20.0, 0.0, 51.0),  # another thread computed
        (PAUSE_S - 0.5, 0.0, 0.0, 11.0 + PAUSE_S - 0.5),  # too short
        (8.0, 0.0, 8.0, 19.0),  # its own wait
    ],
)
def test_deadlines_begin_after_the_last_pause(gap_s, cpu_s, wait_s, since_s):
    now, cpu = [100.0], [5.0]
    pauses = Pauses(lambda: now[0], lambda: cpu[0])
    began_s = now[0] - 10.0
    now[0], cpu[0] = now[0] + gap_s, cpu[0] + cpu_s
    pauses.look(wait_s)
    now[0] += 1.0
    pauses.look()
    assert pauses.since(began_s) == pytest.approx(since_s)
    assert pauses.since(now[0]) == 0.0
    assert pauses.now() - began_s == pytest.approx(min(since_s, 1.0) + 10.0 if since_s == 1.0 else since_s)
