"""The control connection: workers report their state to the controller, and the controller sends commands.

Fixed-schema msgpack messages over one ZeroMQ ROUTER at the controller and a DEALER per worker, on a Unix socket that only
its owner can open, or over tcp with the run's keys. Every worker runs one thread that owns its socket, so that heartbeats
continue while the worker works.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import zmq

from jsrl.errors import AccessDenied, CodecError, StreamClosed
from jsrl.rate_limit import is_reported
from jsrl.services.runs.control_bodies import (
    SHOWN_EVENTS,
    AnyMessage,
    Command,
    Crash,
    Event,
    Heartbeat,
    Message,
    Stacks,
    Stage,
    texts_of,
)
from jsrl.services.runs.logs import cut_log
from jsrl.services.runs.message_limits import MAX_MESSAGE_BYTES, SPARED_BYTES, Speech, TextBudget, objection, shortened
from jsrl.services.runs.process import HostLease, Pauses, all_stacks, main_stack
from jsrl.services.runs.values import MAX_LOG_BYTES
from jsrl.transport.door.keys import KeyPath
from jsrl.transport.network.curve import (
    ConnectionWatch,
    Listener,
    connect,
    incoming,
    keys_to_bind,
    keys_to_connect,
    outgoing,
)
from jsrl.transport.network.thread import WakeUp

_logger = logging.getLogger("jsrl.control")
HEARTBEAT_S = 0.2
LEASE_GRACE_S = 0.5  # after a lease: a running agent ends its workers first
MAX_MESSAGES = 4096  # most messages read at once
MAX_COMMANDS = 1000  # most commands that wait for a lost connection; then the oldest is dropped


class ControlClient:
    """A worker's end of the control connection. A thread sends heartbeats and the queued messages.

    Attributes:
      stop: set when the controller sent stop, or is gone.
      refused: why the controller rejected this end (which also sets `stop`), or None.
      commands: other commands of the controller.
      step_s: time limit of one step of an environment.
      stuck_s: time limit of one turn of the worker's loop (None: none). turned_s: start of the current turn, by
        the monotonic clock; 0: the worker is not working and has no limit.
      lease: of this host, if it has joined the run; the process ends when it is over.
      slowness: factor on the intervals between heartbeats, and between reports. speech: what the worker may say; None: all.
      outlives_s: how long this process may still close after the end of its parent; 0: it ends with it. holds_run: keeps other
        processes from continuing the run meanwhile; returns False if one does.
    """

    def __init__(
        self, address: str, worker: str, incarnation: int, *, parent_pid: int | None = None, keys: KeyPath = None
    ) -> None:
        self._keys = keys_to_connect(keys)
        self.worker, self.incarnation = worker, incarnation
        self.stop = threading.Event()
        self.refused: AccessDenied | None = None
        self.commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self.progress = 0
        self.step_s = math.inf
        self.stuck_s: float | None = None
        self.turned_s = 0.0
        self.lease: HostLease | None = None
        self.slowness = 1.0
        self.speech: Speech | None = None
        self._budget, self._num_left_out, self._paying = TextBudget(), 0, threading.Lock()
        self.outlives_s, self._orphaned_s = 0.0, 0.0
        self.holds_run: Callable[[], bool] = lambda: True
        self._activity: tuple[object, float, float | None] = ("", 0.0, None)
        self._beaten = ("", 0.0)  # the text of the last heartbeat's activity, and since when
        self._pauses = Pauses()
        self._outgoing: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._wake_up = WakeUp()  # between heartbeats the thread sleeps: awake it takes the interpreter from the worker
        self._address, self._parent_pid = address, parent_pid
        self._thread = threading.Thread(target=self._run, name="control", daemon=True)
        self._thread.start()

    def send(self, kind: type[Message], **fields: Any) -> None:
        """Queue a message to the controller; leave out a warning or note with more text than may still be said.

        Raises:
          TypeError: a fact cannot be sent. ValueError: this worker may not say it. This thread learns of it; the control
            thread must not end.
        """
        frame = encoded(kind(worker=self.worker, incarnation=self.incarnation, **fields))
        message: AnyMessage = msgspec.msgpack.decode(frame, type=AnyMessage)  # with plain numbers and short texts
        if self.speech is not None and (why := objection(message, self.speech)):
            raise ValueError(f"{kind.__name__.lower()} {fields.get('name', '')} is wrong: {why}")
        if self._pay(message):
            self._outgoing.put(frame)
            self._wake_up.wake()

    def _pay(self, message: AnyMessage) -> bool:
        """Take the text of a message from the budget; return False if it is to be left out, which the user learns once."""
        is_shown = isinstance(message, Event) and message.name in SHOWN_EVENTS
        with self._paying:
            if self._budget.pay(*texts_of(message), time.monotonic(), SPARED_BYTES if is_shown else -math.inf):
                return True
            self._num_left_out += 1
            count = self._num_left_out
        if is_reported(count):
            _logger.warning("a warning or note was left out (%d so far), as there are too many: %.300s", count, message)
        if count == 1:
            text = "there are too many warnings and notes; from now on some are left out"
            self._outgoing.put(encoded(Event(self.worker, self.incarnation, "warning", text)))
        return False

    def stage(self, stage: str) -> None:
        """Report the current stage of the start; `ready` ends it."""
        self.send(Stage, stage=stage, pid=os.getpid())

    def entering(self, activity: object, steps: float | None = None) -> None:
        """Record what the worker enters (its `str`); after the time of `steps` in it, the process ends with a typed report.

        The time starts again when its `str` changes: each slot of a vector of environments has its own.
        """
        self._activity = (activity, time.monotonic(), steps)

    def left(self) -> None:
        """Record that the worker is between activities again."""
        self._activity = ("", 0.0, None)

    def close(self, timeout_s: float = 2.0) -> None:
        """Send the queued messages and end the thread."""
        self._closing.set()
        self._wake_up.wake()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        context = zmq.Context()
        socket = context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 1000)
        socket.setsockopt(zmq.IDENTITY, identity_of(self.worker, self.incarnation))
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        connection = connect(socket, self._address, self._keys)
        poller = zmq.Poller()
        poller.register(socket, zmq.POLLIN)
        poller.register(self._wake_up.socket, zmq.POLLIN)
        beat_at = 0.0
        try:
            while self._is_admitted(connection):
                self._pauses.look(HEARTBEAT_S * self.slowness)
                closing = self._closing.is_set()  # messages queued before that are sent
                while not self._outgoing.empty():
                    self._send_encoded(socket, self._outgoing.get())
                if closing:
                    return
                if time.monotonic() >= beat_at:
                    beat_at = time.monotonic() + HEARTBEAT_S * self.slowness
                    self._beat(socket)
                pause_s = min(beat_at - time.monotonic(), self._check_lease())
                ready = dict(poller.poll(max(0, int(1000 * pause_s) + 1)))
                self._wake_up.clear(ready)
                if socket in ready:
                    self._take(socket.recv())
        finally:
            self._wake_up.close()
            connection.close()
            socket.close()
            context.term()

    def _is_admitted(self, connection: ConnectionWatch) -> bool:
        """Return whether messages can be sent; over tcp that needs a handshake, which may fail permanently."""
        while not connection.made and self._address.startswith("tcp://") and not self._closing.is_set():
            try:
                connection.poll()
            except AccessDenied as error:
                _logger.error("%s", error)
                self.refused = error
                self.stop.set()
                return False
            connection.monitor.poll(20)
        return connection.made or not self._address.startswith("tcp://")

    def _send(self, socket: zmq.Socket, message: AnyMessage) -> None:
        if self._pay(message):
            self._send_encoded(socket, encoded(message))

    def _send_encoded(self, socket: zmq.Socket, message: bytes) -> None:
        socket.send_multipart(outgoing([message], self._keys))

    def _beat(self, socket: zmq.Socket) -> None:
        entered, since, steps = self._activity
        deadline_s = None if steps is None else steps * self.step_s
        activity = str(entered)
        last, last_since = self._beaten
        if last_since >= since:
            since = last_since if activity == last else time.monotonic()
        self._beaten = activity, since
        inside_s = self._pauses.since(since) if activity else 0.0
        beat = Heartbeat(self.worker, self.incarnation, self.progress, activity, inside_s)
        self._send(socket, beat)
        if log := cut_log():
            text = (
                f"printed more than {MAX_LOG_BYTES >> 20} MiB; {log} was restarted, and {log}.1 has its earlier content"
            )
            self._send(socket, Event(self.worker, self.incarnation, "warning", text, {"once": "log"}))
        if self._parent_pid is not None and os.getppid() != self._parent_pid:
            self.stop.set()
            self._check_orphan()
        if deadline_s is not None and activity and inside_s > deadline_s:
            text = (
                f"{activity} did not return within {deadline_s:g} s. Expected a step of the environment to take less; if it "
                "is only slow, raise --actor.step-deadline-s, else look at its stack."
            )
            self._give_up(socket, "EnvironmentFault", text, 70)
        turned_s = self.turned_s  # the worker's thread writes it
        turn_s = self._pauses.since(turned_s)
        if self.stuck_s is not None and deadline_s is None and turned_s and turn_s > self.stuck_s:
            text = (
                f"its loop has not completed a turn for {turn_s:.1f} s, though the process is alive. Expected a turn within "
                f"{self.stuck_s:g} s; if it is only slow (one update of a large network), raise --deadlines.stuck-s, or "
                "--deadlines.rank-s if a learner has several ranks; else look at its stack."
            )
            self._give_up(socket, "WorkerStuck", text, 71)

    def _check_orphan(self) -> None:
        """End this process if it has outlived its parent for too long, or another process continues the run."""
        if not self.outlives_s:
            return
        if not self._orphaned_s:
            self._orphaned_s = time.monotonic()
            goes_on = self.holds_run()
        else:
            goes_on = time.monotonic() < self._orphaned_s + self.outlives_s
        if not goes_on:
            os._exit(1)

    def _check_lease(self) -> float:
        """End this process if its host's lease is over and the agent, which would have ended it, is stopped.

        Returns the seconds until the next check.
        """
        left_s = LEASE_GRACE_S + self.lease.left_s() if self.lease is not None else math.inf
        if left_s < 0.0:
            _logger.error("the host's agent is stopped, and the controller will replace this worker: it ends")
            os._exit(73)
        return left_s

    def _give_up(self, socket: zmq.Socket, error: str, text: str, status: int) -> None:
        """End the process with a last message: the hanging call cannot be interrupted from here."""
        crash = Crash(self.worker, self.incarnation, error, text, main_stack())
        self._send(socket, Stacks(self.worker, self.incarnation, all_stacks()))
        self._send(socket, crash)
        socket.context.destroy(linger=300)  # returns once they are sent
        os._exit(status)

    def _take(self, frame: bytes) -> None:
        """Execute a command; drop a message that is none."""
        try:
            command = msgspec.msgpack.decode(frame, type=Command)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            _logger.warning("a command of the controller cannot be read (%s); it was dropped", error)
            return
        self._execute(command)

    def _execute(self, command: Command) -> None:
        if command.name == "stop":
            self.stop.set()
        elif command.name == "stacks":
            self.send(Stacks, text=all_stacks())
        else:
            self.commands.put(command)


def encoded(message: Message) -> bytes:
    """Return a message as bytes, with long texts shortened; numbers and arrays of NumPy or JAX become plain ones."""
    message = with_texts(message, shortened)
    try:
        return msgspec.msgpack.encode(message, enc_hook=_plain)
    except UnicodeEncodeError:  # an error may name a file whose name is not UTF-8
        valid = with_texts(message, lambda text: text.encode("utf-8", "backslashreplace").decode())
        return msgspec.msgpack.encode(valid, enc_hook=_plain)


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a fact is of type {type(value).__name__}; facts are numbers, texts, lists and dicts.")


def with_texts(message: Any, change: Callable[[str], str]) -> Any:
    changed: dict[str, Any] = {}
    for field in message.__struct_fields__:
        value = getattr(message, field)
        if isinstance(value, str):
            changed[field] = change(value)
        elif field == "facts":
            changed[field] = {name: change(part) if isinstance(part, str) else part for name, part in value.items()}
    return msgspec.structs.replace(message, **changed)


def identity_of(worker: str, incarnation: int) -> bytes:
    return f"{worker}/{incarnation}".encode()


class ControlServer:
    """The controller's end of the control connection; over tcp it needs `keys`, like every stream.

    Messages of workers on other hosts come from the thread that has received them (`take`), and commands to these workers go
    to `forward`. Other commands wait while a connection is lost, until its next message.

    Attributes:
      forward: called with worker, incarnation and command.
    """

    def __init__(self, address: str, *, keys: KeyPath = None) -> None:
        self._keys = keys_to_bind(address, keys)
        self.refused = 0  # messages that cannot be read, or are not in the name of their sender
        self.forward: Callable[[str, int, bytes], object] = lambda worker, incarnation, frame: None
        self._taken: queue.SimpleQueue[AnyMessage] = queue.SimpleQueue()
        self._elsewhere: set[bytes] = set()  # worker/incarnation of those whose messages were taken
        self._wake_up, self._poller = WakeUp(), zmq.Poller()
        self._waiting: dict[bytes, deque[list[bytes]]] = {}  # connection that has sent a message -> commands to send
        self._socket = zmq.Context().socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # without it, commands to a lost connection vanish
        self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        old = os.umask(0o177)
        try:
            self._listener = Listener(self._socket, address, self._keys)
        finally:
            os.umask(old)
        self.address = self._listener.address
        for source in (self._socket, self._wake_up.socket):
            self._poller.register(source, zmq.POLLIN)

    def take(self, messages: list[AnyMessage]) -> None:
        """Let `poll` return messages that were checked; may be called from any thread."""
        for message in messages:
            self._taken.put(message)
        self._wake_up.wake()

    def poll(self, timeout_s: float) -> list[AnyMessage]:
        """Return the workers' messages, waiting up to `timeout_s` for the first one."""
        if self._socket.closed:
            raise StreamClosed("the control connection is closed; workers get no more commands.")
        self._wake_up.clear(dict(self._poller.poll(int(timeout_s * 1000))))
        messages = [self._taken.get() for _ in range(self._taken.qsize())]
        self._elsewhere |= {identity_of(message.worker, message.incarnation) for message in messages}
        for _ in range(MAX_MESSAGES):  # a flood must not keep the controller from supervising its workers
            if not self._socket.poll(0):
                break
            sender, frames = self._listener.receive()
            try:
                words = incoming([frame.bytes for frame in frames], self._keys, MAX_MESSAGE_BYTES)
            except CodecError as error:
                self._drop(error)
                continue
            for word in words:
                try:
                    messages.append(self._read(sender, word))
                except (ValueError, RecursionError) as error:
                    self._drop(error)
            if words:
                self._waiting.setdefault(sender, deque(maxlen=MAX_COMMANDS))
                self._send_waiting(sender)
        return messages

    def _read(self, sender: bytes, word: Any) -> AnyMessage:
        """Return a message, after checking that it is in the name of its sender."""
        message: AnyMessage = msgspec.msgpack.decode(word, type=AnyMessage)
        if (name := identity_of(message.worker, message.incarnation)) != sender:
            raise ValueError(f"{sender!r} sent it in the name of {name!r}")
        return message

    def _drop(self, why: Exception) -> None:
        self.refused += 1
        if is_reported(self.refused):
            _logger.warning("a message on the control connection was dropped (%d so far): %s", self.refused, why)

    def send_command(self, worker: str, incarnation: int, name: str, facts: Mapping[str, Any] | None = None) -> None:
        """Send a command, now or once the worker has reconnected; lost when the worker is gone or has sent no message."""
        identity, frame = identity_of(worker, incarnation), msgspec.msgpack.encode(Command(name, dict(facts or {})))
        if identity in self._elsewhere:
            self.forward(worker, incarnation, frame)
        elif identity in self._waiting:
            self._waiting[identity].append([identity, frame])
            self._send_waiting(identity)
        else:  # its first message may be on the way
            with contextlib.suppress(zmq.ZMQError):
                self._socket.send_multipart([identity, frame], zmq.NOBLOCK)

    def _send_waiting(self, identity: bytes) -> None:
        waiting = self._waiting[identity]
        while waiting:
            try:
                self._socket.send_multipart(waiting[0], zmq.NOBLOCK)
            except zmq.ZMQError as error:
                if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                    raise
                return
            waiting.popleft()

    def close(self) -> None:
        if not self._socket.closed:
            self._listener.close(0)
            self._wake_up.close()
