"""Send garbage, oversized and repeated messages to a run's sockets, like an unauthorised client, until told to stop.

  python benchmarks/strangers.py /dev/shm/jsrl-UID/PID-XXXX [--jobs RUN/jobs] [--per-s 200] [--seed 0]

The sockets are found from the run's files: Unix sockets in its folder of shared memory, and the addresses in its registry
of names. Each round opens a new connection and sends messages broken by benchmarks/fuzz.py, random bytes without a protocol,
and, with --jobs, repeated valid hellos of the run's living workers. It prints `ready` before
the first one, and on SIGTERM the number of messages as JSON.
It gets no information beyond these folders.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import socket
import stat
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec
import zmq

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from benchmarks.fuzz import answered, change_value, examples, flip, mutate

FOUND_S = 1.0  # between scans for sockets: replaced workers bind new ones
ROUND = 20  # messages over one connection
LARGE_BYTES = 1 << 21
CONTROL = [
    {"kind": "heartbeat", "worker": "stranger", "incarnation": 0, "progress": 1},
    {"kind": "report", "worker": "stranger", "incarnation": 0, "metrics": {"a": 1.0}, "facts": {"b": [1]}},
    {"kind": "crash", "worker": "stranger", "incarnation": 0, "error": "x", "text": "y", "trace": "z"},
    {"kind": "bye", "worker": "stranger", "incarnation": 0, "facts": {}},
]
ASKED = {"name": "stranger", "incarnation": 0, "groups": [[0, 2]], "schema": [["observation", [4], "float32"]]}


@dataclass(frozen=True)
class Target:
    """A socket of the run: `zmq` at an endpoint, or `packets` at a path."""

    name: str
    protocol: str
    place: str


def find_targets(folder: Path) -> list[Target]:
    """Return every socket that a run has bound, from its files."""
    found = []
    for path in sorted((folder / "names").glob("[!.]*.json")):
        with contextlib.suppress(OSError, ValueError, KeyError):
            address = str(json.loads(path.read_text())["address"])
            if address.startswith(("tcp://", "ipc://")):
                found.append(Target(unquote(path.stem), "zmq", address))
    named = {target.place for target in found}
    for path in sorted(folder.rglob("*")):
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(path.lstat().st_mode) and f"ipc://{path}" not in named:
                speaks_zmq = path.name == "control"
                place = f"ipc://{path}" if speaks_zmq else str(path)
                found.append(Target(path.name, "zmq" if speaks_zmq else "packets", place))
    return found


def repeated_hellos(jobs: Path | None) -> list[tuple[str, list[bytes]]]:
    """Return (protocol, frames) of hellos that the run's living actors have sent before, for each kind of stream."""
    if jobs is None:
        return []
    from jsrl.references.reference import from_json
    from jsrl.transport.door.hello import Hello, hello_frames, hello_of_producer
    from jsrl.transport.wire.schema import flatten_schema

    hellos: list[tuple[str, list[bytes]]] = []
    for path in sorted(jobs.glob("actor-*.json")):
        job = from_json(json.loads(path.read_text()))
        e, producer = job.experiment, job.producer
        samples = hello_frames(hello_of_producer(producer, e.groups, flatten_schema(job.schemas.trajectory)))
        first = job.index * e.ring
        groups = dict.fromkeys(range(first, first + e.ring), e.group_size)
        asked = [bytes(frame) for frame in hello_frames(Hello(producer, groups, flatten_schema(job.schemas.act)))]
        hellos.append(("zmq", [bytes(frame) for frame in samples]))
        hellos += [("zmq", asked), ("packets", asked)]
    return hellos


class Stranger:
    """Sends messages; `sent` counts them by target, `answers` the replies."""

    def __init__(self, folder: Path, jobs: Path | None, per_s: float, seed: int) -> None:
        self._folder, self._per_s, self._chance = folder, per_s, random.Random(seed)
        self._known, self._hellos = examples(), repeated_hellos(jobs)
        self._context = zmq.Context()
        self.sent: Counter[str] = Counter()
        self.answers: Counter[str] = Counter()

    def run(self, stop: threading.Event) -> None:
        """Send until told to stop."""
        looked_s, targets = 0.0, list[Target]()
        begin_s = time.monotonic()
        parent = os.getppid()
        while not stop.is_set() and os.getppid() == parent:
            now = time.monotonic()
            if now - looked_s > FOUND_S:
                looked_s, targets = now, find_targets(self._folder)
            if targets:
                self._round(self._chance.choice(targets))
            ahead_s = self.sent.total() / self._per_s - (time.monotonic() - begin_s)
            stop.wait(max(ahead_s, 0.0) if targets else 0.2)
        self._context.destroy(linger=0)

    def _round(self, target: Target) -> None:
        kind = self._chance.random()
        with contextlib.suppress(OSError, zmq.ZMQError):  # the worker behind it may be down for a while
            if kind < 0.1:
                self._noise(target)
            elif target.protocol == "zmq":
                self._zmq(target)
            else:
                self._packets(target)

    def _count(self, target: Target, number: int = 1) -> None:
        self.sent[target.name] += number

    def _noise(self, target: Target) -> None:
        """Return random bytes without a protocol, for a bare connection."""
        if target.place.startswith("tcp://"):
            host, _, port = target.place.removeprefix("tcp://").partition("?")[0].rpartition(":")
            bare = socket.create_connection((host, int(port)), 1.0)
        else:
            bare = socket.socket(
                socket.AF_UNIX, socket.SOCK_STREAM if target.protocol == "zmq" else socket.SOCK_SEQPACKET
            )
            bare.settimeout(1.0)
            bare.connect(target.place.removeprefix("ipc://"))
        with bare:
            noise = (b"GET / HTTP/1.1\r\n\r\n", b"\0" * 64, b"\xff" + bytes(8) + b"\x7f", b"")
            bare.sendall(self._chance.choice(noise) + self._chance.randbytes(self._chance.choice((0, 9, 4096))))
            self._count(target)

    def _zmq(self, target: Target) -> None:
        dealer = self._context.socket(zmq.DEALER)
        dealer.setsockopt(zmq.LINGER, 200)
        dealer.setsockopt(zmq.SNDTIMEO, 500)
        dealer.setsockopt(zmq.RECONNECT_IVL, -1)
        try:
            dealer.connect(target.place)
            for _ in range(ROUND):
                dealer.send_multipart(self._frames(target) or [b""])
                self._count(target)
            until_s = time.monotonic() + 0.05
            while (left_s := until_s - time.monotonic()) > 0 and dealer.poll(int(1000 * left_s)):
                self.answers[answered(dealer.recv_multipart())[:40]] += 1
        finally:
            dealer.close()

    def _frames(self, target: Target) -> list[bytes]:
        chance = self._chance
        if target.name == "control" and chance.random() < 0.7:
            value = dict(chance.choice(CONTROL))
            if chance.random() < 0.8:
                fields = change_value({k: v for k, v in value.items() if k != "worker"}, chance)
                value = {**fields, "worker": "stranger"} if isinstance(fields, dict) else fields
            with contextlib.suppress(msgspec.MsgspecError, OverflowError, RecursionError, UnicodeDecodeError):
                return [msgspec.msgpack.encode(value)]
        hellos = [frames for protocol, frames in self._hellos if protocol == "zmq"]
        if hellos and chance.random() < 0.2:
            return chance.choice(hellos)
        return mutate(chance.choice(self._known), chance, LARGE_BYTES)

    def _packets(self, target: Target) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as bare:
            bare.settimeout(0.2)
            bare.connect(target.place)
            for _ in range(self._chance.choice((1, 1, 3))):
                bare.send(self._packet())
                self._count(target)
            with contextlib.suppress(TimeoutError):
                self.answers["packet" if bare.recv(1 << 16) else "closed"] += 1

    def _packet(self) -> bytes:
        chance = self._chance
        hellos = [frames[0] for protocol, frames in self._hellos if protocol == "packets"]
        kind = chance.random()
        if hellos and kind < 0.2:
            return chance.choice(hellos)
        if kind < 0.6:
            fields: Any = change_value({k: v for k, v in ASKED.items() if k != "name"}, chance)
            fields = {**fields, "name": "stranger"} if isinstance(fields, dict) else fields
            with contextlib.suppress(msgspec.MsgspecError, OverflowError, RecursionError, UnicodeDecodeError):
                return msgspec.msgpack.encode(fields)[: 1 << 17]
        if kind < 0.8:
            return flip(msgspec.msgpack.encode(ASKED), chance)
        return chance.randbytes(chance.choice((1, 29, 64, 4096, 100_000)))


def main() -> int:
    """Send until SIGTERM, then print the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="of the run's shared memory and sockets")
    parser.add_argument("--jobs", type=Path, help="of the run's jobs, whose hellos are repeated")
    parser.add_argument("--per-s", type=float, default=200.0, help="messages a second at most")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    stranger = Stranger(given.folder, given.jobs, given.per_s, given.seed)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())  # before that it ends at once: importing may take long
    print("ready", flush=True)
    stranger.run(stop)
    print(json.dumps({"sent": stranger.sent, "answers": stranger.answers}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
