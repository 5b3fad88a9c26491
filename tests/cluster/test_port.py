"""The controller's port for hosts: the run folder when a host is lost, a connection made again. No process, no agent."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import zmq

from jsrl.cluster.join_key import JoinKey
from jsrl.cluster.kept_files import PART_BYTES
from jsrl.cluster.members import AgentEnded, Members, Received, Start, Tell
from jsrl.cluster.messages import (
    AnyAgentMessage,
    AnyControllerMessage,
    Beat,
    Begin,
    FilePart,
    Part,
    Signal,
    Stored,
    Welcome,
    decode,
    encode,
)
from jsrl.cluster.port import HostHandle, HostPort
from jsrl.cluster.this_host import code_digest, versions
from jsrl.services.runs.message_limits import MAX_MESSAGE_BYTES
from jsrl.services.snapshots.players import PLAYERS_FOLDER
from jsrl.transport.network.curve import connect, incoming, outgoing
from tests.cluster.agents import admitted, await_that
from tests.cluster.test_members import HELLO, place


def test_a_snapshot_half_sent_by_a_lost_host_leaves_the_run_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jsrl.cluster.port.LOOK_S", 0.02)
    key, run = JoinKey(tmp_path / "join.key"), tmp_path / "run"
    members = Members("here", versions(), code_digest())
    port = HostPort("tcp://127.0.0.1:0", key, members, lambda line: None)
    try:
        port.serve(SimpleNamespace(), tmp_path / "names", run, dict, lambda names: {})
        name = admitted(port, key).public.decode()
        sent = [
            ("6", "arrays/x", True),
            ("6", "manifest.json", True),
            ("7", "arrays/x", True),
            ("7", "arrays/y", False),
        ]
        port.tell(Received(name, b"id", HELLO))
        (host,) = members.hosts
        port.tell(place(host, "learner"))
        port.tell(
            Start(
                host.membership, Begin(host.membership, "learner", "learner", 0, b"{}", {}, keeps=["snapshots/state"])
            )
        )
        for version, file, whole in sent:
            part = FilePart(host.membership, Part(f"snapshots/state/{version}/{file}", 0, b"1", whole))
            port.tell(Received(name, b"id", part))
        await_that((run / "snapshots/state/7/arrays/y.draft").exists)
        port.tell(AgentEnded("a", "its link is down"))
        await_that(lambda: not (run / "snapshots/state/7").exists())
        assert (run / "snapshots/state/6/manifest.json").exists()
    finally:
        port.close("done")


def test_a_host_that_closes_its_connection_is_lost_before_its_silence_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jsrl.cluster.messages.CLOSED_LOST_S", 0.3)
    key = JoinKey(tmp_path / "join.key")
    members = Members("here", versions(), code_digest(), lost_s=600.0)
    port = HostPort("tcp://127.0.0.1:0", key, members, lambda line: None)
    keys, context = admitted(port, key), zmq.Context()
    try:
        socket = context.socket(zmq.DEALER)
        connection = connect(socket, port.address, keys)
        socket.send_multipart(outgoing([encode(HELLO)], keys))
        assert port.wait(lambda: bool(members.hosts), 30.0)
        (host,) = members.hosts
        connection.close()
        socket.close(linger=0)
        assert port.wait(lambda: bool(host.lost), 30.0)
        assert "its connection was closed" in host.lost
    finally:
        context.destroy(linger=0)
        port.close("done")


def test_many_orders_at_once_do_not_stop_the_port(tmp_path: Path) -> None:
    """With a thousand workers its thread blocked on its own wake-up, as nobody else empties the buffer."""
    lines, done = list[str](), threading.Event()
    port = HostPort("tcp://127.0.0.1:0", JoinKey(tmp_path / "join.key"), Members("", versions(), ""), lines.append)

    def orders() -> None:
        for number in range(20_000):
            port.tell(AgentEnded(f"host-{number}", "its link is down"))
        done.set()

    try:
        port._run_in_thread(orders)
        assert done.wait(30.0)
    finally:
        if done.is_set():
            port.close("done")


def test_the_controller_waits_for_nothing_from_a_host_that_it_does_not_hear(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jsrl.cluster.members.HEARD_S", 0.3)
    for limit in ("GONE_S", "ANSWER_S"):
        monkeypatch.setattr(f"jsrl.cluster.port.{limit}", 60.0)
    key = JoinKey(tmp_path / "join.key")
    members = Members("here", versions(), code_digest(), lost_s=600.0)
    port = HostPort("tcp://127.0.0.1:0", key, members, lambda line: None)
    try:
        port.tell(Received(admitted(port, key).public.decode(), b"id", HELLO))
        (host,) = members.hosts
        port.tell(place(host, "actor-0"))
        port.tell(Start(host.membership, Begin(host.membership, "actor", "actor-0", 0, b"{}", {})))
        handle, begun_s = HostHandle(port, host.workers["actor-0", 0]), time.monotonic()
        assert handle.is_heard
        handle.kill()  # no agent executes it
        assert handle.alive and not handle.is_heard and not host.lost
        assert (handle.stacks(60.0), handle.tail(15)) == ("", "")
        assert time.monotonic() - begun_s < 30.0
    finally:
        port.close("done")


def test_an_order_to_a_host_that_reconnects_arrives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jsrl.cluster.members.AGAIN_S", 0.05)
    key = JoinKey(tmp_path / "join.key")
    members = Members("here", versions(), code_digest())
    port = HostPort("tcp://127.0.0.1:0", key, members, lambda line: None)
    keys, context = admitted(port, key), zmq.Context()
    try:
        socket = context.socket(zmq.DEALER)
        socket.setsockopt(zmq.IDENTITY, b"agent")
        connection = connect(socket, port.address, keys)

        def answer() -> AnyControllerMessage | None:
            if not socket.poll(100):
                return None
            (body,) = incoming(socket.recv_multipart(), keys, MAX_MESSAGE_BYTES)
            return decode(body, AnyControllerMessage)

        socket.send_multipart(outgoing([encode(HELLO)], keys))
        await_that(lambda: isinstance(answer(), Welcome))
        (host,) = members.hosts
        socket.disconnect(port.address)
        sent = threading.Event()
        port.tell(Tell(host.membership, Signal(host.membership, "actor-0", 0, "kill")))
        port._run_in_thread(sent.set)
        assert sent.wait(30.0)
        socket.connect(port.address)

        def found() -> bool:
            socket.send_multipart(outgoing([encode(Beat(host.membership, 1.0, []))], keys))
            return isinstance(answer(), Signal)

        await_that(found)
    finally:
        connection.close()
        context.destroy(linger=0)
        port.close("done")


def test_a_frozen_player_is_sent_as_its_host_confirms_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, run = JoinKey(tmp_path / "join.key"), tmp_path / "run"
    members = Members("here", versions(), code_digest())
    port = HostPort("tcp://127.0.0.1:0", key, members, lambda line: None)
    keys, context = admitted(port, key), zmq.Context()
    name, content = f"players/main/3-{'0' * 32}.npz", bytes(5 * PART_BYTES + 7)
    for folder, held in ((tmp_path / "other", b"of the run in the working directory"), (run, content)):
        (folder / PLAYERS_FOLDER / "main").mkdir(parents=True)
        (folder / name).write_bytes(held)
    monkeypatch.chdir(tmp_path / "other")
    try:
        socket = context.socket(zmq.DEALER)
        connection = connect(socket, port.address, keys)
        socket.send_multipart(outgoing([encode(HELLO)], keys))
        assert port.wait(lambda: bool(members.hosts), 30.0)
        (host,), membership = members.hosts, members.hosts[0].membership

        def sent(answer: AnyAgentMessage, count: int) -> list[Part]:
            """Return so many parts, or those that come within half a second, after an answer of the host."""
            found = list[Part]()
            socket.send_multipart(outgoing([encode(answer)], keys))
            while len(found) < count and socket.poll(30_000 if count else 500):
                (body,) = incoming(socket.recv_multipart(), keys, MAX_MESSAGE_BYTES)
                message: AnyControllerMessage = decode(body, AnyControllerMessage)
                found += [message.part] if isinstance(message, FilePart) else []
            return found

        wanted = Beat(membership, 1.0, [], wanted=["main/3"])
        socket.send_multipart(outgoing([encode(wanted)], keys))
        assert port.wait(lambda: bool(host.wanted), 30.0)
        port._add_players(host)
        port.serve(SimpleNamespace(), tmp_path / "names", run, dict, lambda names: {})
        parts = sent(wanted, 2)
        assert not sent(wanted, 0)  # no more until they are confirmed
        for part in parts:
            parts += sent(Stored(membership, name, part.at + len(part.content), part.digest), 6 - len(parts) and 1)
        assert b"".join(part.content for part in parts) == content and parts[-1].last and parts[-1].digest
        assert not sent(wanted, 0)  # it has arrived, which the next heartbeat does not say yet
    finally:
        connection.close()
        context.destroy(linger=0)
        port.close("done")
