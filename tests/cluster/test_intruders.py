"""Unauthorised access to a run: hellos with wrong, foreign, unadmitted and dropped keys, and garbage where a worker starts.

The short forms run daily; `python -m pytest -m nightly FILE` makes 10,000 joins and 100,000 starts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import psutil
import pytest
import zmq

from jsrl.cluster.children import Children
from jsrl.cluster.join_key import own_keys
from jsrl.cluster.launcher import JoinedHosts
from jsrl.cluster.messages import (
    AnyControllerMessage,
    Beat,
    Begin,
    Hello,
    Welcome,
    decode,
    encode,
)
from jsrl.cluster.this_host import code_digest, own_facts, versions
from jsrl.control.processes import launcher as local
from jsrl.control.processes.launcher import Local
from jsrl.errors import CodecError, ConfigError
from jsrl.graph.launcher import Start
from jsrl.services.runs.message_limits import MAX_MESSAGE_BYTES
from jsrl.transport.door.keys import ClientKeys, load_client_keys
from jsrl.transport.network.curve import incoming, outgoing
from jsrl.workers.kinds import find_kind
from tests.cluster.agents import admitted
from tests.marks import slow

AT_ONCE = 20
ENDED = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
ENDED |= zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED


def hello(session: str, name: str) -> Hello:
    return Hello(
        0, session=session, name=name, boot=name, versions=versions(), code=code_digest(), folder="/tmp/x",
        address="127.0.0.1", cores=4, memory_mb=100,
    )  # fmt: skip


class Client:
    """A client that tries to join and sends a message once connected."""

    def __init__(self, context: zmq.Context, address: str, keys: ClientKeys, words: bytes) -> None:
        self.keys = keys
        self.socket = context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.RECONNECT_IVL, -1)
        self.socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.public)
        self.socket.setsockopt(zmq.CURVE_SECRETKEY, keys.secret)
        self.socket.setsockopt(zmq.CURVE_SERVERKEY, keys.server)
        self.monitor = self.socket.get_monitor_socket(int(ENDED))
        self.socket.connect(f"tcp://{address}")
        with contextlib.suppress(zmq.Again):  # already refused: the monitor has the event
            self.say(words)

    def say(self, words: bytes) -> None:
        self.socket.send_multipart(outgoing([words], self.keys), zmq.NOBLOCK)

    def answer(self) -> Any:
        """Return the controller's answer, after waiting for it; None: the controller closed the connection."""
        poller = zmq.Poller()
        for source in (self.socket, self.monitor):
            poller.register(source, zmq.POLLIN)
        assert poller.poll(30_000), "neither an answer nor a closed connection within 30 s"
        if self.socket.poll(0):
            (body,) = incoming(self.socket.recv_multipart(), self.keys, MAX_MESSAGE_BYTES)
            return decode(body, AnyControllerMessage)
        return None

    def close(self) -> None:
        self.socket.disable_monitor()
        self.monitor.close(linger=0)
        self.socket.close()


class Port:
    """The port of a run, one joined host, and keys of hosts that may not join."""

    def __init__(self, folder: Path) -> None:
        self.told: list[str] = []
        own = own_facts("here", "127.0.0.1")
        self.launcher = JoinedHosts(Local(), own, 0, 1, folder / "join.key", self.told.append)
        self.context = zmq.Context()
        self.context.set(zmq.MAX_SOCKETS, 4096)
        self.join = load_client_keys(self.launcher.join_key)
        self.used, self.dropped = admitted(self.launcher._port, self.launcher._key), own_keys(self.join)
        self.member = Client(self.context, self.launcher.address, self.used, encode(hello("mine", "a")))
        welcome = self.member.answer()
        assert isinstance(welcome, Welcome)
        self.membership = welcome.membership

    def attempts(self, number: int) -> tuple[str, ClientKeys, bytes]:
        """Return one attempt: its name, keys, and first message."""
        rng = random.Random(number)
        kind = ("foreign", "wrong", "join", "dropped", "garbage")[number % 5]
        words = encode(hello(f"s{number}", f"h{number}"))
        public, secret = zmq.curve_keypair()
        if kind == "foreign":
            return kind, dataclasses.replace(self.used, public=public, secret=secret), words
        if kind == "wrong":
            return kind, dataclasses.replace(self.used, server=public), words
        if kind == "garbage":
            return kind, self.join, rng.randbytes(rng.randrange(1, 400)) if rng.random() < 0.5 else mutated(words, rng)
        return kind, self.join if kind == "join" else self.dropped, words

    def close(self) -> None:
        self.member.close()
        self.context.destroy(linger=0)
        self.launcher.close()


def mutated(frame: bytes, rng: random.Random) -> bytes:
    """Return a frame with some bytes changed, added or removed."""
    found = bytearray(frame)
    for _ in range(rng.randrange(1, 5)):
        at = rng.randrange(len(found)) if found else 0
        how = rng.randrange(3)
        if how == 0 and found:
            found[at] = rng.randrange(256)
        elif how == 1:
            found[at:at] = rng.randbytes(rng.randrange(1, 9))
        else:
            del found[at : at + rng.randrange(1, 9)]
    return bytes(found)


@pytest.mark.parametrize(
    "count",
    [
        slow(100),
        pytest.param(10_000, marks=[pytest.mark.nightly, pytest.mark.timeout(3_600)]),
    ],
)
def test_joining_needs_an_admitted_key(count: int, tmp_path: Path) -> None:
    with contextlib.closing(Port(tmp_path)) as port:
        ends, bytes_before = Counter[str](), 0
        for begin in range(0, count, AT_ONCE):
            tries = [port.attempts(number) for number in range(begin, min(begin + AT_ONCE, count))]
            clients = [Client(port.context, port.launcher.address, keys, words) for _, keys, words in tries]
            for (kind, *_), client in zip(tries, clients, strict=True):
                if kind not in ("garbage", "join"):  # which are dropped without an answer
                    assert client.answer() is None
                    ends[kind] += 1
            port.member.say(encode(Beat(port.membership, 1.0, [])))
            assert port.member.answer().sent_s == 1.0  # the run's own host is served throughout
            for client in clients:
                client.close()
            if begin < count // 5:
                bytes_before = psutil.Process().memory_info().rss
        assert psutil.Process().memory_info().rss - bytes_before < 20 << 20
        assert [host.name for host in port.launcher.members.hosts] == ["a"]
        assert ends == dict.fromkeys(("foreign", "wrong", "dropped"), count // 5)
        assert 0 < sum("was dropped" in line for line in port.told) <= 13  # of two fifths of the attempts


BEGIN = Begin(
    7, "actor", "actor-3", 2, b'{"kind": "actor"}', {"OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}, "ab" * 32, True
)
NASTY = (
    "", "..", "../../etc/passwd", "a/../../b", "/bin/sh", "-c", "--job=/etc/passwd", "os:system", "subprocess:run", "actor;id",
    "$(id)", "`id`", "a b", "a\0b", "a\nb", "x" * 100_000, "\N{SNOWMAN}", -1, 2**31, 2**63, 1.5, True, None, [], {},
    b"\xff", {"LD_PRELOAD": "/tmp/x.so"}, {"PYTHONPATH": "/tmp"}, {"PATH": "/tmp"}, {"XLA_FLAGS": 3}, ["actor"],
)  # fmt: skip


class Started:
    """Records the processes that would have been started; nothing is started."""

    def __init__(self) -> None:
        self.commands: list[list[str]] = []

    def __call__(self, command: Any, **options: Any) -> None:
        assert isinstance(command, list) and not options.get("shell")
        self.commands.append(command)
        raise OSError("nothing is started here")

    def host(self, start: Start) -> SimpleNamespace:
        """Replace the process that forks actors."""

        def fork(job: Path, name: str, incarnation: int, log: Path) -> None:
            self([sys.executable, "-m", "jsrl.workers", "--job", str(job), "--name", name, "--log", str(log)])

        return SimpleNamespace(start=fork)


def altered(rng: random.Random) -> bytes:
    """Return the start message of a worker with one field altered."""
    if rng.random() < 0.5:
        return mutated(encode(BEGIN), rng)
    fields = msgspec.to_builtins(BEGIN) | {"job": BEGIN.job}
    for _ in range(rng.randrange(1, 3)):
        name = rng.choice([*fields, "command"])
        fields[name] = rng.choice(NASTY)
        if rng.random() < 0.1:
            del fields[name]
    return msgspec.msgpack.encode(fields)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[Started]:
    found = Started()
    monkeypatch.setattr(local, "Leader", found)
    monkeypatch.setattr(local, "ActorHost", found.host)
    yield found


@pytest.mark.parametrize(
    "count", [3_000, pytest.param(100_000, marks=[pytest.mark.nightly, pytest.mark.timeout(3_600)])]
)
def test_malformed_start_messages_run_nothing(count: int, tmp_path: Path, started: Started) -> None:
    folder, kinds, begun = tmp_path / "inner" / "agent", set[str](), 0
    folder.mkdir(parents=True)
    rng = random.Random(0)
    for _ in range(count):
        try:
            message = decode(altered(rng), AnyControllerMessage)
        except CodecError:
            continue
        if isinstance(message, Begin):
            begun += 1
            kinds.add(message.worker_kind)
            with contextlib.suppress(OSError, UnicodeDecodeError):
                Children(folder, "ipc:///nowhere").begin(message)
    assert begun > count / 100 and started.commands  # some are still valid
    for words in started.commands:
        assert words[:3] == [sys.executable, "-m", "jsrl.workers"]
        assert all(re.fullmatch(r"--[a-z]+|[\w.:/@-]*", word) for word in words[3:]), words
    written = [path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()]
    assert all(re.fullmatch(r"inner/agent/(jobs|logs)/[\w.-]+", str(path)) for path in written), written
    for kind in kinds - {"actor"}:
        with pytest.raises(ConfigError):
            find_kind(kind)
