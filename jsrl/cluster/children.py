"""The workers that a host's agent has started, and their messages."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Iterable
from pathlib import Path

import msgspec
import zmq

from jsrl.cluster.agent import Ended
from jsrl.cluster.archive import CODE
from jsrl.cluster.messages import MAX_TAIL_CHARS, MOST_LOG_BYTES, Begin, Usage
from jsrl.control.processes.launcher import Local, write_job
from jsrl.control.processes.processes import LocalHandle, size_of
from jsrl.graph.launcher import Start
from jsrl.graph.machine import accelerators, cache_variables
from jsrl.rate_limit import is_reported
from jsrl.references.importing import SpawnEnvironment, own_paths
from jsrl.services.runs.control import identity_of
from jsrl.services.runs.control_bodies import AnyMessage, Bye, Crash, Heartbeat, Report, Stage
from jsrl.services.runs.message_limits import MAX_MESSAGE_BYTES
from jsrl.services.runs.values import log_name
from jsrl.transport.door.address import check_ipc_path
from jsrl.transport.network.sockets import bind

_logger = logging.getLogger("jsrl.hosts")
TAIL_LINES = 200
ACTORS_NICE = 10  # added to the niceness of actors: hundreds of them must leave their agent its share of the cores
MOST_MEASURED = 20  # workers, at one time
_MOST_AT_ONCE = 4_096


class Children:
    """Workers of this host.

    Args:
      folder: for their files. control: address of the agent for them.
    """

    def __init__(self, folder: Path, control: str) -> None:
        self._folder, self._control = folder, control
        self._local = Local()
        self._handles: dict[tuple[str, int], LocalHandle] = {}
        self._identities: set[bytes] = set()  # of their connections
        self._ending: set[tuple[str, int]] = set()
        self._measured: dict[tuple[str, int], int] = {}  # the turn of the last measurement
        self._turn = 0

    def begin(self, message: Begin) -> None:
        name, incarnation = message.worker, message.incarnation
        code = [str(self._folder / CODE / message.code)] if message.code else []
        spawn = SpawnEnvironment({"PYTHONPATH": os.pathsep.join([*code, *own_paths()])}, os.getcwd())
        variables = cache_variables() | message.variables
        variables |= {
            name: own_gpus(text) for name, text in message.variables.items() if name == "CUDA_VISIBLE_DEVICES"
        }
        write_job(message.job.decode(), name, self._folder)
        nice = ACTORS_NICE if message.forks else 0
        start = Start(self._folder, self._control, spawn, variables, None, message.forks, nice=nice)
        self._identities.add(identity_of(name, incarnation))
        self._handles[name, incarnation] = self._local.begin(message.worker_kind, name, incarnation, start)

    def find(self, worker: str, incarnation: int) -> LocalHandle | None:
        """Return the handle of a worker's incarnation; None: it was not started here, or its end was reported."""
        return self._handles.get((worker, incarnation))

    def has(self, identity: bytes) -> bool:
        """Return whether a connection is that of a worker that was started here, and whose end was not reported."""
        return identity in self._identities

    @property
    def count(self) -> int:
        """Return how many workers are alive, or have ended without a report."""
        return len(self._handles)

    def ended(self) -> list[Ended]:
        """Return the workers that have ended, at the second call: their last messages have arrived by then."""
        gone = {key for key, handle in self._handles.items() if not handle.alive}
        known, self._ending = gone & self._ending, gone - self._ending
        return [self._ended(key) for key in sorted(known)]

    def _ended(self, key: tuple[str, int]) -> Ended:
        handle = self._handles.pop(key)
        self._identities.discard(identity_of(*key))
        self._measured.pop(key, None)
        ended, log = handle.exit, log_name(key[0])
        status, text = (ended.status, ended.text) if ended is not None else (None, "ended")
        is_sent = status != 0 and 0 < size_of(self._folder / log) <= MOST_LOG_BYTES
        return Ended(*key, status, text, handle.tail(TAIL_LINES)[-MAX_TAIL_CHARS:], log if is_sent else "")

    def usage(self) -> list[Usage]:
        """Return the resources that running workers use on this host: of all, or, if there are many, of some in turn.

        Those that were not measured for the longest time come first.
        """
        found = []
        waiting = sorted(self._handles, key=lambda key: self._measured.get(key, -1))[:MOST_MEASURED]
        self._turn += 1
        for key in waiting:
            handle = self._handles[key]
            used = handle.usage()
            if handle.pid is not None:
                self._measured[key] = self._turn
                found.append(Usage(*key, handle.pid, **(dataclasses.asdict(used) if used is not None else {})))
        return found

    def kill_all(self) -> None:
        """End all workers at once. They may be started again."""
        self._local.close()
        self._handles, self._identities, self._ending, self._measured = {}, set(), set(), {}


class ChildrenControl:
    """The agent's end of its workers' control connections: their messages are kept until they are sent on.

    Attributes:
      address: for workers. socket: for polling.

    Raises:
      ConfigError: the path of the folder is too long for a socket.
    """

    def __init__(self, context: zmq.Context, folder: Path) -> None:
        path = check_ipc_path(f"{folder}/control")
        self.socket = context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self.socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES - (1 << 16))  # it is sent on inside a message
        self.address = bind(self.socket, f"ipc://{path}")
        self._beats: dict[bytes, bytes] = {}
        self._waiting: list[bytes] = []
        self.dropped = 0
        self.urgent = False  # something must not wait for the next beat
        self.ready: list[tuple[str, int]] = []  # incarnations of workers that have become ready, since this was cleared
        # Worker -> its newest incarnation, and the last word of each type about its life: none of these is said again.
        self._last_words: dict[str, tuple[int, dict[type, bytes]]] = {}

    def listen(self, children: Children) -> None:
        for _ in range(_MOST_AT_ONCE):
            if not self.socket.poll(0):
                return
            identity, *frames = self.socket.recv_multipart()
            for frame in frames if children.has(identity) else ():  # else its end was reported
                self._note(identity, frame)

    def _note(self, identity: bytes, frame: bytes) -> None:
        try:
            message = msgspec.msgpack.decode(frame, type=AnyMessage)
            if identity_of(message.worker, message.incarnation) != identity:
                raise ValueError(f"{identity!r} sent it in another name")
        except (ValueError, RecursionError) as error:  # the controller would hold this host responsible
            self.dropped += 1
            if is_reported(self.dropped):
                _logger.warning("a message of a worker was dropped (%d so far): %s", self.dropped, error)
            return
        if isinstance(message, Heartbeat):
            self._beats[identity] = frame  # only the newest
            return
        if isinstance(message, Stage) and message.stage == "ready":
            self.ready.append((message.worker, message.incarnation))
        if isinstance(message, Stage | Crash | Bye):
            number, words = self._last_words.get(message.worker, (-1, {}))
            words = words if number == message.incarnation else {}
            self._last_words[message.worker] = message.incarnation, words | {type(message): frame}
        self._waiting.append(frame)
        self.urgent = self.urgent or not isinstance(message, Report)

    def frames(self, *, beats: bool) -> list[bytes]:
        """Return the waiting messages, in order; with or without the newest heartbeat of each worker."""
        found, self._waiting, self.urgent = self._waiting, [], False
        if beats:
            found += self._beats.values()
            self._beats = {}
        return found

    def last_words(self) -> list[bytes]:
        """Return what was said last about the lives of workers, to be sent again over a new connection."""
        return [frame for _, words in self._last_words.values() for frame in words.values()]

    def forget(self) -> None:
        """Forget the messages of earlier workers: the controller would hold this host responsible for them."""
        self._waiting, self._beats, self._last_words, self.urgent = [], {}, {}, False
        self.ready.clear()

    def send_command(self, worker: str, incarnation: int, frame: bytes) -> None:
        self.socket.send_multipart([identity_of(worker, incarnation), frame])


def own_gpus(counted: str) -> str:
    """Return the accelerators of this host, in the format of CUDA_VISIBLE_DEVICES, that `counted` numbers from 0."""
    own = accelerators()
    return ",".join(own[int(number)] for number in counted.split(",") if number.isdigit() and int(number) < len(own))


def batches(frames: Iterable[bytes], most_bytes: int) -> list[list[bytes]]:
    """Return messages in batches of up to `most_bytes` bytes in total, or of a single larger one; the last may be empty."""
    found, total = list[list[bytes]]([[]]), 0
    for frame in frames:
        if total and total + len(frame) > most_bytes:
            found.append([])
            total = 0
        found[-1].append(frame)
        total += len(frame)
    return found
