"""The ranks of a learner: how they join, agree before each update, and leave.

Rank 0, the learner, binds the stream; the others connect. No rank starts an update before all have reported a
batch for it, so that none waits inside a collective for a batch that never comes. If a rank hangs all the same, a time limit
on each turn ends it, and the controller then replaces all ranks.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket as sockets
import statistics
import time
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

import msgspec

from jsrl.errors import ConfigError, StreamTimeout
from jsrl.experiment import Experiment
from jsrl.experiment.settings import DeadlineConfig
from jsrl.parallel import join_processes, leave_processes
from jsrl.runs.values import Registration
from jsrl.transport.meeting.sockets import allowed_ports, none_free
from jsrl.transport.stream import name_at
from jsrl.transport.transports import bind_ranks, connect_ranks
from jsrl.workers.base import Reporter
from jsrl.workers.jobs import CONNECT_TIMEOUT_S, Job
from jsrl.workers.learner.sources import RANKS

if TYPE_CHECKING:
    from jsrl.workers.learner.build_source import LearnerStart

_MEASURED, _TIMES = 5, 10  # updates before their median counts, and the limit of a turn in medians
SEND_S, LEAVE_S = 0.5, 5.0


class RankMessage(msgspec.Struct, forbid_unknown_fields=True):
    """A rank's message: it joins, waits for the batch of this number or has it, or leaves."""

    worker: str
    incarnation: int
    number: int
    what: Literal["joins", "waits", "has", "leaves"]


class RankStart(msgspec.Struct, forbid_unknown_fields=True, tag=True):
    """The answer to a joining rank: its number, how many there are, where processes meet, and where the learner starts."""

    rank: int
    count: int
    coordinator: str
    epoch: int
    updates: int
    trained: int
    saved_epoch: int | None


class RankReply(msgspec.Struct, forbid_unknown_fields=True, tag=True):
    """Make the update with the batch of this number (`go`), wait (`wait`), make no more (`stop`), leave now (`end`)."""

    number: int
    what: Literal["go", "wait", "stop", "end"]


class TurnLimit:
    """Time limit of one turn of a rank's loop: ten times its median update, at least `rank_s`.

    Before it has measured five updates, ten times the longest one, at most `stuck_s`: the first one includes compilation.
    """

    def __init__(self, deadlines: DeadlineConfig) -> None:
        self._deadlines = deadlines
        self._took: deque[float] = deque(maxlen=101)

    def note(self, seconds: float) -> None:
        self._took.append(seconds)

    @property
    def seconds(self) -> float:
        if len(self._took) < _MEASURED:
            usual_s = min(self._deadlines.stuck_s, _TIMES * max(self._took, default=math.inf))
        else:
            usual_s = _TIMES * statistics.median(self._took)
        return max(self._deadlines.rank_s, usual_s)

    @contextlib.contextmanager
    def lifted(self, reporter: Reporter) -> Iterator[None]:
        """Lift the limit while a snapshot is written."""
        reporter.entering("writing a snapshot", math.inf)
        try:
            yield
        finally:
            reporter.left()


class Leader:
    """Rank 0.

    Args:
      job: of the learner. begins: the message for the others; their numbers, and where processes meet, are filled in.
    """

    def __init__(self, job: Job, begins: RankStart) -> None:
        end, e = job.end(RANKS), job.experiment
        self._numbers = {peer.worker: number for number, peer in enumerate(end.peers, 1)}
        self.count, self.limit = len(self._numbers) + 1, TurnLimit(e.deadlines)
        self._silence_s, self._ready_s = 2 * e.deadlines.rank_s, e.deadlines.ready_s
        self._incarnation = job.incarnation
        self._senders: dict[str, bytes] = {}
        self._newest: dict[str, RankMessage] = {}
        self._received_s: dict[str, float] = {}
        self._number, self._stopped_s = 0, 0.0
        self._stream = bind_ranks(end.address, keys=job.keys)
        address = self._stream.address
        self._port, coordinator = held_port(address)
        self._begins = msgspec.structs.replace(begins, count=self.count, coordinator=coordinator)
        job.announce(name_at(end.stream.name, job.name), address)

    def gather(self, local_devices: int) -> None:
        """Wait for the other ranks, and join all processes into one group.

        Raises:
          StreamTimeout: a rank did not join in time.
        """
        until_s = time.monotonic() + self._ready_s
        while missing := self._numbers.keys() - self._newest.keys():
            if time.monotonic() > until_s:
                raise StreamTimeout(
                    f"{', '.join(sorted(missing))} did not join this learner within {self._ready_s:g} s (deadlines.ready_s); "
                    "look at its log."
                )
            self._receive(SEND_S)
        check_own_name(self._begins.coordinator)
        join_processes(self._begins.coordinator, 0, self.count, local_devices)
        self._rest()

    def agree(self, has_batch: bool, timeout_s: float) -> bool:
        until_s = time.monotonic() + timeout_s
        self._receive(0.0)
        while not (has_batch and all(self._has(worker) for worker in self._numbers)) or self._stopped_s:
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                self._check_silence()
                return False
            self._receive(left_s)
        self._send_all("go")
        self._number += 1
        self._rest()
        return True

    def _has(self, worker: str) -> bool:
        message = self._newest[worker]
        return message.what == "has" and message.number == self._number

    def _rest(self) -> None:
        """Reset the silence timers: while all make their updates, no messages are expected."""
        self._received_s = dict.fromkeys(self._numbers, time.monotonic())

    def _check_silence(self) -> None:
        if self._stopped_s and time.monotonic() > self._stopped_s + LEAVE_S:
            gone = ", ".join(worker for worker in self._numbers if self._newest[worker].what == "leaves")
            raise StreamTimeout(f"{gone} left during the run (a SIGTERM from elsewhere?).")
        for worker, received_s in self._received_s.items():
            silent_s = time.monotonic() - received_s
            compiles = self._newest[worker].what == "joins"  # it sends nothing until it is ready
            if silent_s > (self._ready_s if compiles else self._silence_s) and not self._stopped_s:
                raise StreamTimeout(
                    f"{worker} has sent nothing for {silent_s:.0f} s, so no update can start; expected a message every "
                    f"{SEND_S:g} s. It is stuck, or the network between the hosts is broken (deadlines.rank_s)."
                )

    def _receive(self, timeout_s: float) -> None:
        """Receive messages of the other ranks; wait up to `timeout_s` for the first."""
        for sender, frame in self._stream.receive(timeout_s):
            try:
                message = msgspec.msgpack.decode(frame, type=RankMessage)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                continue
            known = message.worker in self._numbers and message.incarnation == self._incarnation
            if known and self._stream.speaks_for(sender, message.worker):
                self._take(sender, message)

    def _take(self, sender: bytes, message: RankMessage) -> None:
        worker = message.worker
        self._senders[worker], self._newest[worker], self._received_s[worker] = sender, message, time.monotonic()
        if message.what == "joins":
            self._send_to(worker, msgspec.structs.replace(self._begins, rank=self._numbers[worker]))
        elif message.what == "leaves":
            self.halt()
        else:
            self._send_to(worker, RankReply(self._number, "stop" if self._stopped_s else "wait"))

    def halt(self) -> bool:
        self._stopped_s = self._stopped_s or time.monotonic()
        self._send_all("stop")
        return False

    def _send_all(self, what: Literal["go", "stop", "end"]) -> None:
        for worker in self._senders:
            self._send_to(worker, RankReply(self._number, what))

    def _send_to(self, worker: str, message: RankStart | RankReply) -> None:
        self._stream.send(self._senders[worker], msgspec.msgpack.encode(message))

    def leave(self) -> None:
        """Leave with the others, if they answer in time."""
        self._send_all("end")
        until_s = time.monotonic() + LEAVE_S
        while stay := [worker for worker in self._numbers if self._newest[worker].what != "leaves"]:
            if time.monotonic() > until_s:
                break
            self._receive(0.1)
        if not stay:
            leave_processes()
        self.close()

    def close(self) -> None:
        """Close the stream, and give the port of jax's coordinator back."""
        self._stream.close()
        self._port.close()


class Follower:
    """Any other rank.

    Args:
      job: of the rank; it looks for the learner of its own incarnation.
    """

    def __init__(self, job: Job) -> None:
        end, e = job.end(RANKS), job.experiment
        self.limit, self._deadlines = TurnLimit(e.deadlines), e.deadlines
        self._leader = end.peers[0].worker
        found = await_incarnation(job, name_at(end.stream.name, self._leader))
        self._stream = connect_ranks(found.address, keys=job.keys)
        self.close = self._stream.close
        self._worker, self._incarnation, self._number = job.name, job.incarnation, 0
        self._last: tuple[str, float] = ("", 0.0)
        self._received_s, self._stopped, self._parted = time.monotonic(), False, False

    def join(self, local_devices: int) -> RankStart:
        """Join the learner and the group of all processes; return where this start begins.

        Raises:
          StreamTimeout: the learner did not answer in time. AccessDenied: it rejects this run's keys.
        """
        until_s = time.monotonic() + self._deadlines.ready_s
        begins = None
        while not isinstance(begins, RankStart):
            if time.monotonic() > until_s:
                raise self._stream.no_answer(self._deadlines.ready_s)
            self._stream.look()
            self._send("joins")
            begins = self._receive(SEND_S)
        self.count = begins.count
        check_own_name(begins.coordinator)
        join_processes(begins.coordinator, begins.rank, begins.count, local_devices)
        self._received_s = time.monotonic()
        return begins

    def agree(self, has_batch: bool, timeout_s: float) -> bool:
        until_s = time.monotonic() + timeout_s
        while True:
            if not self._stopped:
                self._send("has" if has_batch else "waits")
            if self._execute(self._receive(max(0.0, min(SEND_S, until_s - time.monotonic())))):
                return True
            if time.monotonic() >= until_s:
                self._check_silence()
                return False

    def _execute(self, answer: RankStart | RankReply | None) -> bool:
        """Execute the learner's answer; return whether all ranks make the next update."""
        if not isinstance(answer, RankReply):
            return False
        if answer.what == "go" and answer.number == self._number:
            self._number += 1
            return True
        self._stopped = self._stopped or answer.what in ("stop", "end")
        if answer.what == "end" and not self._parted:
            self._parted = True
            self._send("leaves")
            leave_processes()
        return False

    def _check_silence(self) -> None:
        silent_s = time.monotonic() - self._received_s
        if silent_s > self._deadlines.stuck_s and not self._stopped:  # it may be writing a snapshot
            raise StreamTimeout(f"{self._leader} has sent nothing for {silent_s:.0f} s, so no update can start.")

    def _send(self, what: Literal["joins", "waits", "has", "leaves"]) -> None:
        """Send a message if it is new, or was not sent for a while."""
        now_s = time.monotonic()
        word = f"{what} {self._number}"
        if self._last[0] == word and now_s < self._last[1] + SEND_S:
            return
        self._last = word, now_s
        message = RankMessage(self._worker, self._incarnation, self._number, what)
        self._stream.send(msgspec.msgpack.encode(message))

    def _receive(self, timeout_s: float) -> RankStart | RankReply | None:
        message = self._stream.receive(timeout_s)
        if message is None:
            return None
        self._received_s = time.monotonic()
        found: RankStart | RankReply = msgspec.msgpack.decode(message, type=RankStart | RankReply)
        return found

    def halt(self) -> bool:
        until_s = time.monotonic() + LEAVE_S
        while not self._stopped and time.monotonic() < until_s:
            self._send("leaves")
            if self._execute(self._receive(SEND_S)):
                return True
        return False

    def leave(self) -> None:
        """Leave, once the learner has reported its snapshot."""
        until_s = time.monotonic() + self._deadlines.snapshot_s
        while not self._parted and time.monotonic() < until_s:
            self._send("leaves")
            self._execute(self._receive(SEND_S))
        self.close()


def await_incarnation(job: Job, name: str) -> Registration:
    """Return the registration of the worker behind a name, of the same incarnation as this one."""
    until_s = time.monotonic() + CONNECT_TIMEOUT_S
    while True:
        found = job.find(name)
        if found.incarnation == job.incarnation:
            return found
        if time.monotonic() > until_s:
            raise StreamTimeout(
                f"{name} is registered by incarnation {found.incarnation}, and {job.incarnation} did not come within "
                f"{CONNECT_TIMEOUT_S:g} s; look at the log of the learner."
            )
        time.sleep(0.05)


def check_own_name(coordinator: str) -> None:
    """Refuse a host whose own name resolves to itself alone, if ranks on CPU meet over the network.

    Gloo publishes that name.
    """
    if coordinator.startswith(("127.", "[::1]")) or os.environ.get("CUDA_VISIBLE_DEVICES"):
        return
    name = sockets.gethostname()
    try:
        found = sockets.gethostbyname(name)
    except OSError:
        found = "nothing"
    if found.startswith("127.") or found == "nothing":
        raise ConfigError(
            f"the name of this host, {name}, resolves to {found}, where ranks on other hosts cannot reach it; have /etc/hosts "
            f"or the name service resolve it to its address in the network of {coordinator}."
        )


def own_devices(e: Experiment) -> int:
    """Return how many devices this process will have, without loading jax's backend."""
    visible = [gpu for gpu in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu.strip()]
    return len(visible) or e.learner_devices or 1


def held_port(address: str) -> tuple[sockets.socket, str]:
    """Return (a socket that keeps a port of the host of an address from others, HOST:PORT); on loopback for a Unix socket.

    Only a socket with SO_REUSEPORT can listen there, as those of jax's coordinator do.
    """
    host = (
        address.removeprefix("tcp://").rpartition(":")[0].strip("[]") if address.startswith("tcp://") else "127.0.0.1"
    )
    family = sockets.AF_INET6 if ":" in host else sockets.AF_INET
    for port in allowed_ports():
        if port and not _is_free(family, host, port):
            continue
        held = sockets.socket(family, sockets.SOCK_STREAM)
        held.setsockopt(sockets.SOL_SOCKET, sockets.SO_REUSEPORT, 1)
        held.bind((host, port))
        port = held.getsockname()[1]
        return held, f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    raise none_free(host)


def _is_free(family: int, host: str, port: int) -> bool:
    """Return whether nothing holds a port; a socket with SO_REUSEPORT could share one that another socket holds so."""
    with sockets.socket(family, sockets.SOCK_STREAM) as probe:
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def lead(job: Job, start: LearnerStart) -> Leader:
    """Return the connection to the other ranks of a learner, once all processes have joined."""
    begins = RankStart(0, 0, "", start.epoch, job.start_point.updates, start.trained, start.saved_epoch)
    leader = Leader(job, begins)
    leader.gather(own_devices(job.experiment))
    return leader
