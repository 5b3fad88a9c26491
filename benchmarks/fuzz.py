"""Send broken messages to the codec and to live sockets: every one must end in a typed error, none in a crash.

Run: python benchmarks/fuzz.py [--frames 1000000] [--seed 0] [--targets codec,samples,...] [--output FILE]

Valid messages of each stream are mutated: bits flipped, truncated, extended, frames lost, doubled, swapped, oversized; headers
of valid size with other numbers, other nesting, impossible counts. Half of the connections send a valid hello
first; some send a message without end. Each target has one process, which also reports its memory: more than twice its
limit of a message is a failure of the codec, more than LIVE_BYTES a failure of a socket.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import resource
import struct
import subprocess
import sys
import tempfile
import threading
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import zmq

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from benchmarks.endless import FRAME_BYTES, as_sent, shake_hands
from jsrl.errors import CodecError, JsrlError, StreamTimeout
from jsrl.services.runs.control import ControlServer
from jsrl.transport.base import InferenceSpec, ProducerId, Reply
from jsrl.transport.door.hello import Hello, HelloMessage, JoinRules, hello_frames, hello_of_producer
from jsrl.transport.ends.area import AreaLayout
from jsrl.transport.network import call, latest, reliable
from jsrl.transport.shared.connections import connect_socket
from jsrl.transport.table import (
    bind_inference,
    bind_params,
    bind_samples,
    connect_inference,
    connect_params,
    connect_samples,
)
from jsrl.transport.wire.message import pack, unpack
from jsrl.transport.wire.schema import flatten_schema, make_layout
from jsrl.types import ArraySpec, Discrete, EnvSpec, make_trajectory_spec

SIZE = struct.Struct("<I")
HEADER_BYTES = 1 << 16
ANY = msgspec.msgpack.Decoder(HelloMessage | reliable.Sample | reliable.Sync | call.Request | call.Bye | latest.Want)
# fmt: off
ODD = (
    0, 1, -1, 2**7, 2**8, 2**15, 2**31 - 1, 2**31, 2**32, 2**40, 2**53, 2**62, 2**63 - 1, -(2**31), -(2**63), 2**64 - 1,
)
ODD_VALUES: tuple[Any, ...] = (
    *ODD, None, True, "", "float32", "object", "V8", "x" * 500, b"\0" * 9, [], {}, [[]], 1e308, [0] * 40,
)
# fmt: on
MAX_CHANGED_BYTES = 20_000
LIVE = ("samples", "inference", "params", "segment", "control")
TARGETS = ("codec", *LIVE)
CODEC_BYTES = 2 << 20  # memory limit of decoding a message
LIVE_BYTES = 128 << 20  # memory limit of a live socket, with the thousands of messages in ZeroMQ's queues
STRANGERS = tuple(f"stranger-{i}" for i in range(32))
JOIN_RULES = JoinRules(frozenset({"good", *STRANGERS}), num_groups=4, rows=4)
UNFINISHED, MOST_OPEN = 0.05, 8  # share of rounds with a message without end; number of such connections that stay open
SPEC = InferenceSpec(ArraySpec((4,), "float32"), ArraySpec((), "int32"), ArraySpec((), "float32"), (), ())
SCHEMA = make_trajectory_spec(EnvSpec(ArraySpec((4,), "float32"), Discrete(2)), (), (), num_rows=3, num_envs=2)


# -- mutations --------------------------------------------------------------------------------------------------------


def change_value(value: Any, chance: random.Random) -> Any:
    """Return a msgpack value with a part of it replaced, removed, repeated or nested."""
    if isinstance(value, list) and value and chance.random() < 0.85:
        at = chance.randrange(len(value))
        kind = chance.random()
        if kind < 0.1:
            return value[:at] + value[at + 1 :]
        if kind < 0.2:
            return [*value, *[value[at]] * chance.choice((1, 3, 5000))]
        return [*value[:at], change_value(value[at], chance), *value[at + 1 :]]
    if isinstance(value, dict) and value and chance.random() < 0.85:
        key = chance.choice(list(value))
        rest = {k: v for k, v in value.items() if k != key}
        kind = chance.random()
        if kind < 0.1:
            return rest
        if kind < 0.2:
            return rest | {chance.choice(("", "x" * 300, "kind")): value[key]}
        return rest | {key: change_value(value[key], chance)}
    if chance.random() < 0.1:
        for _ in range(chance.choice((1, 20, 300))):
            value = [value]
        return value
    return chance.choice(ODD_VALUES)


def change_header(frame: bytes, chance: random.Random) -> bytes:
    """Return a first frame whose header has other values, or other bytes, and a valid size."""
    size = SIZE.unpack_from(frame)[0] if len(frame) >= SIZE.size else 0
    body, rest = frame[SIZE.size :][:size], frame[SIZE.size :][size:]
    kind = chance.random()
    if kind < 0.7 and len(body) < MAX_CHANGED_BYTES:  # repeating it again would grow without end
        try:
            body = msgspec.msgpack.encode(change_value(msgspec.msgpack.decode(body), chance))
        except (msgspec.MsgspecError, UnicodeDecodeError, OverflowError, RecursionError, TypeError):
            body = body[::-1]
    elif kind < 0.8:  # counts larger than the content
        at = chance.randrange(len(body) or 1)
        body = (
            body[:at] + chance.choice((b"\xdd", b"\xdf", b"\xc6", b"\xdb", b"\xc9")) + b"\xff\xff\xff\xff" + body[at:]
        )
    elif kind < 0.85:
        body = body[: chance.randrange(len(body) + 1)] + chance.choice((b"\x91", b"\x81\xa0")) * chance.choice(
            (50, 5000)
        )
    else:
        body = flip(body, chance)
    return SIZE.pack(len(body)) + body + rest


def flip(frame: bytes, chance: random.Random) -> bytes:
    """Return a frame with up to eight bytes replaced."""
    changed = bytearray(frame)
    for _ in range(chance.randint(1, 8) if changed else 0):
        changed[chance.randrange(len(changed))] = chance.randrange(256)
    return bytes(changed)


def mutate(frames: list[bytes], chance: random.Random, oversize_bytes: int = 1 << 21) -> list[bytes]:
    """Return the frames of a message, broken in one to three ways."""
    frames = list(frames)
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        at = chance.randrange(len(frames)) if frames else 0
        kind = chance.random()
        if not frames:
            frames = [b""]
        elif kind < 0.45:
            frames[0] = change_header(frames[0], chance)
        elif kind < 0.65:
            frames[at] = flip(frames[at], chance)
        elif kind < 0.78:
            frames[at] = frames[at][: chance.randrange(len(frames[at]) + 1)]
        elif kind < 0.84:
            frames[at] += bytes(chance.choice((1, 7, 64)))
        elif kind < 0.845:
            frames[at] += bytes(oversize_bytes)
        elif kind < 0.89:
            del frames[at]
        elif kind < 0.94:
            frames.insert(at, chance.choice((b"", frames[at], chance.randbytes(64))))
        elif kind < 0.95:
            frames += [b""] * chance.choice((10, 5000))
        else:
            chance.shuffle(frames)
    return frames


# -- targets ----------------------------------------------------------------------------------------------------------


@dataclass
class Outcome:
    """The result of a target's messages. memory_bytes: peak beyond the memory at the start; limit_bytes: its limit."""

    target: str
    frames: int = 0
    seconds: float = 0.0
    memory_bytes: int = 0
    limit_bytes: int = 0
    answers: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def check_memory(self) -> None:
        """Compare the used memory with its limit."""
        if self.memory_bytes > self.limit_bytes:
            self.failures.append(f"took {self.memory_bytes} bytes, expected at most {self.limit_bytes}")


def peak_bytes() -> int:
    """Return the peak resident size of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def examples() -> list[list[bytes]]:
    """Return valid messages of every kind."""
    raw = np.arange(56, dtype=np.uint8)
    block = np.zeros(make_layout(flatten_schema(SCHEMA)).size_bytes, np.uint8)
    question = np.zeros(AreaLayout(SPEC, {0: 2}).question_bytes(0), np.uint8)
    sample, asked = reliable.Sample(0, 0, 0, None, False, False), call.Request(0, 0, 0, True, False, False)
    hello = hello_frames(hello_of_producer(ProducerId("a", 0), 2, flatten_schema(SCHEMA)))
    messages = [
        hello,
        pack(sample, raw),
        pack(sample, block),
        pack(asked, raw),
        pack(asked, question),
        pack(latest.Want(0, -1)),
        pack(reliable.Sync(1)),
        pack(call.Bye()),
    ]
    return [[bytes(frame) for frame in frames] for frames in messages]


@contextlib.contextmanager
def traced_memory(outcome: Outcome) -> Iterator[None]:
    """Add the largest memory that Python allocates inside to an outcome."""
    tracemalloc.start()
    try:
        yield
    finally:
        outcome.memory_bytes = max(outcome.memory_bytes, tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()


def fuzz_codec(number: int, seed: int) -> Outcome:
    """Decode broken messages in this process."""
    outcome, chance, known = Outcome("codec", limit_bytes=CODEC_BYTES), random.Random(seed), examples()
    for frames in known:
        unpack(frames, ANY, HEADER_BYTES)
    begin = time.perf_counter()
    for count in range(number):
        frames = mutate(chance.choice(known), chance)
        traced = count % 10 == 0 or sum(map(len, frames)) > HEADER_BYTES // 2
        # of every tenth message, and of every large one: memory used by decoding, apart from the message itself
        with traced_memory(outcome) if traced else contextlib.nullcontext():
            try:
                unpack(frames, ANY, HEADER_BYTES)
                outcome.answers["accepted"] += 1
            except CodecError:
                outcome.answers["CodecError"] += 1
            except BaseException as error:  # any other exception is the failure that this script looks for
                outcome.failures.append(f"{type(error).__name__}: {error}: {[f[:80] for f in frames[:4]]}")
                if len(outcome.failures) > 20:
                    break
        outcome.frames += 1
    outcome.seconds = time.perf_counter() - begin
    outcome.check_memory()
    return outcome


@dataclass(frozen=True)
class SocketTarget:
    """A bound end: `endpoint` to send to, `serve` to call repeatedly, `works` to check that it still works."""

    endpoint: str
    limit_bytes: int
    serve: Callable[[], object]
    works: Callable[[], None]
    close: Callable[[], None]


def fuzz_live(target: str, number: int, seed: int, folder: Path) -> Outcome:
    """Send broken messages to a bound end; check that it survives, answers, and then serves a valid client."""
    live = make_live(target, folder)
    live.works()
    outcome = Outcome(target, limit_bytes=live.limit_bytes)
    errors: list[str] = []
    stop = threading.Event()

    def serve() -> None:
        while not stop.is_set():
            try:
                live.serve()
            except StreamTimeout:
                continue
            except JsrlError as error:
                outcome.answers[f"told: {type(error).__name__}"] += 1
            except BaseException as error:
                errors.append(f"{type(error).__name__}: {error}")

    thread = threading.Thread(target=serve)
    thread.start()
    before, begin = peak_bytes(), time.perf_counter()
    sent = own_process("--send", live.endpoint, "--frames", str(number), "--seed", str(seed), "--hello", target)
    outcome.seconds, outcome.frames = time.perf_counter() - begin, sent.get("frames", 0)
    outcome.answers += Counter(sent.get("answers", {}))
    errors += sent["failures"]
    stop.set()
    thread.join(10)
    outcome.failures += errors[:20]
    try:
        live.works()
    except BaseException as error:
        outcome.failures.append(f"no longer works: {type(error).__name__}: {error}")
    outcome.memory_bytes = peak_bytes() - before
    outcome.check_memory()
    live.close()
    return outcome


def send(endpoint: str, number: int, seed: int, target: str) -> Outcome:
    """Send broken messages to an endpoint, over a series of new connections; count the answers."""
    outcome, chance = Outcome(endpoint), random.Random(seed)
    context = zmq.Context()
    unfinished: list[Any] = []
    for incarnation in range(1 << 30):
        if outcome.frames >= number:
            break
        hello = hello_of(target, ProducerId(chance.choice(STRANGERS), incarnation)) if chance.random() < 0.5 else []
        if endpoint.startswith("/"):
            outcome.frames += send_packets(endpoint, hello, chance, outcome, min(20, number - outcome.frames))
            continue
        if chance.random() < UNFINISHED or not incarnation:
            unfinished.append(start_endless_message(endpoint, incarnation, hello, chance))
            outcome.answers["a message without end"] += 1
        while len(unfinished) > MOST_OPEN:
            unfinished.pop(0).close()
        outcome.frames += send_round(context, endpoint, hello, chance, outcome, min(250, number - outcome.frames))
    for connection in unfinished:
        connection.close()
    context.term()
    return outcome


def hello_of(target: str, who: ProducerId) -> list[bytes]:
    """Return a valid hello for a target's stream; empty if it has none."""
    if target in ("samples", "segment"):
        return [bytes(frame) for frame in hello_frames(hello_of_producer(who, 2, flatten_schema(SCHEMA)))]
    if target != "inference":
        return []
    return [bytes(frame) for frame in hello_frames(Hello(who, {0: 2}, flatten_schema(SPEC)))]


def start_endless_message(endpoint: str, incarnation: int, hello: list[bytes], chance: random.Random) -> Any:
    """Return an open connection that sent a hello and then started a message of up to 1 MiB that never ends."""
    connection = shake_hands(endpoint.removeprefix("ipc://"), f"endless-{incarnation}".encode(), 20.0)
    begun = mutate(chance.choice(examples()), chance, oversize_bytes=0)
    more = [bytes(chance.randrange(FRAME_BYTES)) for _ in range(chance.choice((0, 1, 64)))]
    with contextlib.suppress(OSError):  # it may be closed, because a frame was too large
        connection.sendall((as_sent(hello, ended=True) if hello else b"") + as_sent([*begun, *more], ended=False))
    return connection


def send_round(
    context: zmq.Context,
    endpoint: str,
    hello: list[bytes],
    chance: random.Random,
    outcome: Outcome,
    number: int,
) -> int:
    """Send a hello, if given, and some broken messages over a new connection; return their number."""
    known = examples()
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 2000)
    socket.setsockopt(zmq.SNDTIMEO, 10_000)
    socket.connect(endpoint)
    if hello:
        socket.send_multipart(hello)
        if socket.poll(5000):
            outcome.answers[answered(socket.recv_multipart())] += 1
    for _ in range(number):
        frames = mutate(chance.choice(known), chance)
        socket.send_multipart(frames or [b""])
        while socket.poll(0):
            outcome.answers[answered(socket.recv_multipart())] += 1
    until = time.monotonic() + 0.3
    while (left_s := until - time.monotonic()) > 0 and socket.poll(int(left_s * 1000)):
        outcome.answers[answered(socket.recv_multipart())] += 1
    socket.close()
    return number


def send_packets(path: str, hello: list[bytes], chance: random.Random, outcome: Outcome, limit: int) -> int:
    """Send a hello, if given, and broken messages to a Unix socket until it ends the connection; return their number."""
    number, known = 0, examples()
    with connect_socket(Path(path), 20.0, lambda: None) as connection, contextlib.suppress(OSError):
        connection.settimeout(5.0)
        if hello:
            connection.send(hello[0])
            outcome.answers[answered([connection.recv(1 << 16)])] += 1
        with contextlib.suppress(OSError):  # too large, or the connection has ended: its reason follows
            while number < limit:
                number += 1
                connection.send(b"".join(mutate(chance.choice(known), chance)))
        while answer := connection.recv(1 << 16):
            outcome.answers[answered([answer])] += 1
    return number


def answered(frames: list[bytes]) -> str:
    """Return the name of an answer."""
    try:
        (tag, *fields), _ = unpack(frames, msgspec.msgpack.Decoder(), HEADER_BYTES)
    except CodecError:
        return "unreadable"
    return f"refused {fields[0]}" if tag == "refused" else str(tag)


def make_live(target: str, folder: Path) -> SocketTarget:
    """Return a bound end of a stream or of the control connection."""
    if target == "samples":
        return samples_target(f"ipc://{folder}/samples")
    if target == "segment":
        return samples_target(f"shm:{folder}/run/samples")
    if target == "inference":
        return inference_target(folder)
    return params_target(folder) if target == "params" else control_target(folder)


def samples_target(address: str) -> SocketTarget:
    """Return a learner's end of a sample stream."""
    consumer: Any = bind_samples(address, SCHEMA, join_rules=JOIN_RULES)
    endpoint = consumer.address
    if address.startswith("shm:"):
        endpoint = address.removeprefix("shm:")
    lives = iter(range(1 << 30))

    def serve() -> None:
        consumer.release(consumer.get(0.05))

    def works() -> None:
        producer = connect_samples(consumer.address, SCHEMA, ProducerId("good", next(lives)), 1, 20.0)
        producer.reserve(10.0).commit(0)
        until = time.monotonic() + 20.0
        while True:
            try:
                lease = consumer.get(1.0)
            except StreamTimeout:
                raise
            except JsrlError:
                continue  # of earlier clients
            consumer.release(lease)
            if lease.entry.producer.name == "good" or time.monotonic() > until:
                break
        producer.close()

    return SocketTarget(endpoint, LIVE_BYTES, serve, works, consumer.close)


def inference_target(folder: Path) -> SocketTarget:
    """Return an inference server."""
    server = bind_inference(f"ipc://{folder}/inference", SPEC, join_rules=JOIN_RULES)
    lives = iter(range(1 << 30))

    def serve() -> None:
        for asked in server.collect(64, 0.05):
            rows = len(asked.request.is_first)
            server.reply(asked, Reply(np.zeros(rows, np.int32), np.zeros(rows, np.float32), (), 0))

    def works() -> None:
        welcomed: list[Any] = []

        def connect() -> None:
            producer = ProducerId("good", next(lives))
            client = connect_inference(server.address, SPEC, producer, {0: 2}, timeout_s=20.0)
            welcomed.append(client)

        thread = threading.Thread(target=connect)
        thread.start()
        while thread.is_alive():
            try:
                serve()
            except JsrlError:
                continue  # of earlier clients
        thread.join()
        if not welcomed:
            raise StreamTimeout("a valid client was not accepted")
        welcomed[0].close()

    return SocketTarget(server.address, LIVE_BYTES, serve, works, server.close)


def params_target(folder: Path) -> SocketTarget:
    """Return a publisher of params."""
    publisher = bind_params(f"ipc://{folder}/params")
    version = iter(range(1 << 30))

    def works() -> None:
        publisher.publish(0, next(version), [np.zeros(4, np.float32)])
        subscriber = connect_params(publisher.address)
        subscriber.wait(0, 0, 20.0)
        if subscriber.poll(0) is None:
            raise StreamTimeout("a valid reader got no params")
        subscriber.close()

    return SocketTarget(publisher.address, LIVE_BYTES, lambda: time.sleep(0.05), works, publisher.close)


def control_target(folder: Path) -> SocketTarget:
    """Return the controller's end of the control connection."""
    server = ControlServer(f"ipc://{folder}/control")

    def works() -> None:
        server.poll(0.0)

    return SocketTarget(server.address, LIVE_BYTES, lambda: server.poll(0.05), works, server.close)


# -- the command ------------------------------------------------------------------------------------------------------


def fuzz(target: str, number: int, seed: int) -> Outcome:
    """Fuzz a target in this process."""
    if target == "codec":
        return fuzz_codec(number, seed)
    with tempfile.TemporaryDirectory(prefix="jsrl-fuzz-") as folder:
        return fuzz_live(target, number, seed, Path(folder))


def own_process(*arguments: str) -> dict[str, Any]:
    """Run this script for one target in a separate process; return the outcome. A process that dies is a failure."""
    ended = subprocess.run([sys.executable, __file__, *arguments], capture_output=True, text=True, check=False)
    try:
        return json.loads(ended.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        return {"failures": [f"{arguments}: exit status {ended.returncode}: {ended.stderr[-2000:]}"]}


def main() -> int:
    """Fuzz; return 1 if anything failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=1_000_000, help="messages in total; half of them for the codec")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--targets", default=",".join(TARGETS))
    parser.add_argument("--output", type=Path)
    parser.add_argument("--only", choices=TARGETS, help=argparse.SUPPRESS)
    parser.add_argument("--send", help=argparse.SUPPRESS)
    parser.add_argument("--hello", choices=LIVE, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.only or given.send:
        only = given.only and fuzz(given.only, given.frames, given.seed)
        print(json.dumps(vars(only or send(given.send, given.frames, given.seed, given.hello))))
        return 0
    targets = given.targets.split(",")
    share = {t: 0.5 if t == "codec" and len(targets) > 1 else 0.5 / max(1, len(targets) - 1) for t in targets}
    outcomes = []
    for target in targets:
        number = max(1, round(given.frames * (share[target] if len(targets) > 1 else 1)))
        outcomes.append(own_process("--only", target, "--frames", str(number), "--seed", str(given.seed)))
        shown = {name: value for name, value in outcomes[-1].items() if name != "failures"}
        print(json.dumps(shown), *outcomes[-1]["failures"][:5], sep="\n  ", flush=True)
    if given.output:
        given.output.write_text(json.dumps({"seed": given.seed, "outcomes": outcomes}, indent=1) + "\n")
    return int(any(outcome["failures"] for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
