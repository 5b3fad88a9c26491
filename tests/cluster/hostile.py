"""A hostile host with a valid key: what it says, and a client that joins a run and says it."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import zmq

from jsrl.cluster.join_key import own_keys, read_key
from jsrl.cluster.messages import (
    Admitted,
    AnyAgentMessage,
    AnyControllerMessage,
    Beat,
    BeatReceived,
    Begin,
    Exited,
    Farewell,
    FilePart,
    Hello,
    Join,
    Part,
    Refused,
    TextReply,
    Usage,
    Welcome,
    WorkerMessages,
    decode,
    encode,
)
from jsrl.cluster.this_host import code_digest, versions
from jsrl.services.runs.control import encoded
from jsrl.services.runs.control_bodies import FINAL, AnyMessage, Bye, Crash, Event, Heartbeat, Report, Stacks, Stage
from jsrl.services.runs.message_limits import MAX_MESSAGE_BYTES
from jsrl.services.runs.values import Registration
from jsrl.transport.door.keys import ClientKeys
from jsrl.transport.network.curve import connect, incoming, outgoing

SCORE = {"return_mean": 9999.0, "return_ci95": 0.0, "episodes": 20}
AT = {"updates": 9, "env_steps": 9}
MILLION = 1_000_000


def sayings(worker: str, incarnation: int) -> Iterator[AnyMessage]:
    """Yield a message of every type in a worker's name."""
    yield Stage(worker, incarnation, "ready", 1)
    yield Heartbeat(worker, incarnation, 5, "update", 0.5)
    yield Report(worker, incarnation, {"learner/loss": 0.0}, AT | {"finished": True, FINAL: SCORE})
    yield Crash(worker, incarnation, "ValueError", "it crashed", "Traceback")
    yield Stacks(worker, incarnation, "stacks")
    yield Bye(worker, incarnation, AT)
    yield from events(worker, incarnation)


def events(worker: str, incarnation: int) -> Iterator[Event]:
    """Yield every event that only some kinds of workers send."""
    yield Event(worker, incarnation, "finished", "", AT)
    yield Event(worker, incarnation, "evaluated", "", SCORE | AT | {"metrics": {"evaluator/return_mean": 9999.0}})
    yield Event(worker, incarnation, "confirmed", "", SCORE | {"updates": 9})
    yield Event(worker, incarnation, FINAL, "", SCORE)
    yield Event(worker, incarnation, "filmed", "", AT | {"metrics": {}, "file": "1.mp4"})
    yield Event(worker, incarnation, "saved", "", {"store": "state", "version": 9, "tags": ["best"]})
    yield Event(worker, incarnation, "saving", "", {"version": 9})
    yield Event(worker, incarnation, "done", "", {"ticket": 1})
    yield Event(worker, incarnation, "scores", "", {"scores": []})
    yield Event(worker, incarnation, "command", "", {"command": "stop", "facts": {}, "worker": "learner"})
    yield Event(worker, incarnation, "stop", "", {"why": "enough"})


def attacks(membership: int, own: str, others: list[str], num_metrics: int) -> Iterator[tuple[str, AnyAgentMessage]]:
    """Yield (title, message) of a host on which only incarnation 0 of the actor `own` is."""
    for worker, incarnation in [(own, MILLION), *((other, 0) for other in others)]:
        for message in sayings(worker, incarnation):
            title = f"{type(message).__name__} {getattr(message, 'name', '')} of {worker}, {incarnation}"
            yield title, WorkerMessages(membership, [encoded(message)])
        yield f"exit of {worker}", Exited(membership, worker, incarnation, 1, "it ended", "")
        yield f"usage of {worker}", Beat(membership, 1.0, [], [Usage(worker, incarnation, 1, "running")])
        yield f"beat with {worker}", Beat(membership, 1.0, [encoded(Heartbeat(worker, incarnation, 5))])
    for event in events(own, 0):
        yield f"{event.name} of an actor", WorkerMessages(membership, [encoded(event)])
    score = Report(own, 0, {"evaluator/return_mean": 9999.0})
    yield "another kind's metric", WorkerMessages(membership, [encoded(score)])
    yield "bytes that are no message", WorkerMessages(membership, [b"\xff\x00garbage"])
    yield "a huge stage", WorkerMessages(membership, [raw(own, "stage", stage="x" * (10 << 20), pid=1)])
    names = {f"actor/{number}": 1.0 for number in range(num_metrics)}
    yield "very many metrics", WorkerMessages(membership, [raw(own, "report", metrics=names)])
    for name in (f"samples.{others[0]}", "s" * 164, "%/" * 82, "../x", ""):
        entry = Registration(name, "tcp://10.0.0.9:7", 0, 1, "evil")
        yield f"the name {name[:20]!r}", Beat(membership, 1.0, [], [], [entry])
    for file in ("snapshots/state/tags/latest.json", f"logs/{others[0]}.log"):
        yield f"the file {file}", FilePart(membership, Part(file, 0, b"evil", True))
    yield "a reply that was not asked for", TextReply(membership, 77, "x" * (1 << 20))
    yield "another key", Join(membership, zmq.curve_keypair()[0].decode())


def raw(worker: str, kind: str, **fields: Any) -> bytes:
    """Return a message as a program that cuts nothing would send it."""
    import msgspec

    return msgspec.msgpack.encode({"kind": kind, "worker": worker, "incarnation": 0, **fields})


class HostileHost:
    """Joins a run with its key file.

    Attributes:
      begun: workers that it was asked to start. replies: to its beats. end: why it was sent away; empty: it was not.
      membership: its number.
    """

    def __init__(self, key: Path, name: str) -> None:
        self._address, keys = read_key(key, 20.0)
        self._context = zmq.Context()
        self.begun, self.end, self.membership, self.replies = list[str](), "", 0, 0
        own = own_keys(keys)
        self._connect(keys)
        self.say(Join(0, own.public.decode()))
        assert isinstance(self.hear(), Admitted)
        self._socket.close()
        self._connect(own)
        self.say(
            Hello(0, session=name, name=name, boot=name, versions=versions(), code=code_digest(), folder="/tmp/x",
                  address="127.0.0.1", cores=4, memory_mb=8_000)
        )  # fmt: skip
        welcome = self.hear()
        assert isinstance(welcome, Welcome)
        self.membership = welcome.membership

    def _connect(self, keys: ClientKeys) -> None:
        self.keys = keys
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.IDENTITY, secrets.token_bytes(8).hex().encode())  # kept when it connects again
        connect(self._socket, f"tcp://{self._address}", keys).close()

    def say(self, message: AnyAgentMessage | bytes) -> None:
        """Send a message, or bytes; they are lost once its connection has ended."""
        body = message if isinstance(message, bytes) else encode(message)
        with contextlib.suppress(zmq.Again):  # ZeroMQ has given up the connection, as its key is refused
            self._socket.send_multipart(outgoing([body], self.keys), zmq.NOBLOCK)

    def hear(self, timeout_s: float = 30.0) -> AnyControllerMessage | None:
        """Return the controller's next message; None: none came in time."""
        if not self._socket.poll(int(1000 * timeout_s)):
            return None
        (body,) = incoming(self._socket.recv_multipart(), self.keys, MAX_MESSAGE_BYTES)
        message: AnyControllerMessage = decode(body, AnyControllerMessage)
        if isinstance(message, Begin):
            self.begun.append(message.worker)
        elif isinstance(message, BeatReceived):
            self.replies += 1
        elif isinstance(message, Refused | Farewell):
            self.end = message.text
        return message

    def obey(self, seconds: float, until: Any = lambda: False) -> None:
        """Send beats and hear the controller for a while, or until something holds."""
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s and not (self.end or until()):
            self.say(Beat(self.membership, 1.0, []))
            while self.hear(0.1) is not None and not self.end:
                pass

    def close(self) -> None:
        """Close its connection."""
        self._context.destroy(linger=0)
