"""The controller's one TCP port for the agents of other hosts, the thread that serves it, and handles of their workers."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import zmq

from jsrl.cluster import members as machine
from jsrl.cluster import messages as wire
from jsrl.cluster.join_key import JoinKey
from jsrl.cluster.kept_files import KeptFiles, fetched_log, keep_pages, keep_part, name_here, remove_half_sent
from jsrl.cluster.members import JoinedHost, Members, RemoteWorker
from jsrl.errors import CodecError, ConfigError, StreamError
from jsrl.rate_limit import is_reported
from jsrl.services.runs.control import ControlServer
from jsrl.services.runs.message_limits import MAX_MESSAGE_BYTES
from jsrl.services.runs.names import FileNames
from jsrl.services.runs.state import revoked_hosts
from jsrl.services.runs.values import Exit, Registration, ResourceUsage
from jsrl.services.snapshots.players import PLAYERS_FOLDER, PlayerStore
from jsrl.transport.ledger.legs import ledger_path
from jsrl.transport.network.curve import Listener, events_of, incoming, outgoing
from jsrl.transport.network.thread import WakeUp

_logger = logging.getLogger("jsrl.hosts")
LOOK_S = 0.2  # between checks for silent hosts and for new names of the run
NAMES_S = 5.0  # after which all names are sent again: messages sent during a reconnection are lost
CONNECTION_MS = (2_000, 10_000)  # between heartbeats of a connection; time without one after which it is remade
GONE_S, ANSWER_S = 6.0, 2.0  # for an agent that is heard to end a worker and report it; to answer
_MOST_AT_ONCE = 1_000
_MOST_WANTED = 100  # players that a host is sent at once
Parents = Callable[[Mapping[str, Registration]], Mapping[int, dict[str, list[str]]]]
"""Names of the run -> membership -> params stream -> addresses to fetch it from, the nearest first."""


class HostPort:
    """Serves the agents that join; its thread owns all sockets.

    Args:
      address: `tcp://IP:PORT` to bind; port 0: any. members: the hosts, which only `tell` changes.
      notify, on_loss: called, from the thread, with lines for the user, and with hosts that were lost.

    Attributes:
      address: with its port. changed: wait on it for changes of members; hold it to read them.
    """

    def __init__(
        self,
        address: str,
        join_key: JoinKey,
        members: Members,
        notify: Callable[[str], None],
        on_loss: Callable[[JoinedHost], None] = lambda host: None,
    ) -> None:
        self._join_key, self._members, self._notify, self._on_loss = join_key, members, notify, on_loss
        self.changed = threading.Condition()
        self._open(address)
        self._control: ControlServer | None = None
        self._registry: FileNames | None = None
        self._host_keys: Callable[[], dict[str, list[str]]] = dict
        self._parents: Parents = lambda names: {}
        self._shown: dict[int, tuple[Any, ...]] = {}  # membership -> the content of RunNames that it was sent
        self._sent_s = 0.0
        self._folder = Path()  # of the run
        self._counted: dict[int, set[str]] = {}  # membership -> legs for which it has sent pages
        self._kept: dict[int, KeptFiles] = {}  # membership -> files of the run folder for that host
        self._awaited: list[tuple[machine.SendFiles, list[str]]] = []  # with names of files
        self._answers: dict[int, str] = {}  # by the numbers of questions
        self._actions: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._wake_up, self._poller = WakeUp(), zmq.Poller()
        for source in (self._socket, self._closed, self._wake_up.socket):
            self._poller.register(source, zmq.POLLIN)
        self._closing, self._num_requests = threading.Event(), 0
        self._failures = 0  # to copy names
        self._thread = threading.Thread(target=self._run, name="host-port", daemon=True)
        self._thread.start()

    def _open(self, address: str) -> None:
        self._socket = zmq.Context().socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.ROUTER_HANDOVER, 1)  # an agent's new connection replaces a broken one
        self._socket.setsockopt(zmq.HEARTBEAT_IVL, CONNECTION_MS[0])
        self._socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, CONNECTION_MS[1])
        self._listener = Listener(self._socket, address, self._join_key.server, self._join_key.admits)
        self.address = self._listener.address
        self._closed = self._socket.get_monitor_socket(int(zmq.EVENT_DISCONNECTED))
        self._connections: dict[int, bytes] = {}  # file descriptor -> identity, of connections that have sent a message

    # -- called by the launcher's thread

    def serve(
        self,
        control: ControlServer,
        registry: Path,
        folder: Path,
        host_keys: Callable[[], dict[str, list[str]]],
        parents: Parents,
    ) -> None:
        """Hand the messages of workers to a control connection, and exchange names between a registry and the hosts.

        Hosts get the frozen players of the run in `folder`. `host_keys` returns the keys that streams admit, with the workers
        for which each speaks, `parents` the addresses from which each host fetches the params that its workers read.
        """
        self._host_keys, self._parents, self._folder, self._control = host_keys, parents, folder, control
        control.forward = lambda *command: self.tell(machine.Forward(*command))
        self._registry = FileNames(registry)

    def send_file(self, host: JoinedHost, name: str) -> None:
        """Send a host a file of the run folder."""
        self._run_in_thread(lambda: None if host.lost else self._files_for(host).add([name]))

    def send_names(self) -> None:
        """Send the hosts the changes of names and host keys at once."""
        self._run_in_thread(self._share_names)

    def tell(self, message: machine.Message) -> None:
        """Let the members process a message, and the thread do what follows, in order."""
        with self.changed:
            self._queue(self._members.handle(message, time.monotonic()))
        self._wake_up.wake()

    def _queue(self, actions: list[machine.Action]) -> None:
        for action in actions:
            self._actions.put(partial(self._do, action))
        self.changed.notify_all()

    def ask(self, host: JoinedHost, worker: str, incarnation: int, what: Any, amount: float, timeout_s: float) -> str:
        """Return the reply of a host's agent (see TextRequest); empty: none arrived in time, or the host is not heard."""
        with self.changed:
            self._num_requests += 1
            number = self._num_requests
        self.tell(
            machine.Tell(host.membership, wire.TextRequest(host.membership, number, worker, incarnation, what, amount))
        )
        self.wait(lambda: number in self._answers or not host.is_heard(time.monotonic()), timeout_s)
        with self.changed:
            return self._answers.pop(number, "")

    def fetched_log(self, remote: RemoteWorker) -> Path:
        return self._folder / fetched_log(remote.worker, remote.host.name)

    def wait(self, reached: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until a condition on the members holds; return whether it does."""
        with self.changed:
            return self.changed.wait_for(reached, timeout_s)

    def close(self, text: str) -> None:
        """Send all hosts a farewell, after which their agents and workers end, and close the port."""
        self.tell(machine.RunEnded(text))
        self._closing.set()
        self._wake_up.wake()
        self._thread.join(10.0)
        self._wake_up.close()

    def _run_in_thread(self, action: Callable[[], None]) -> None:
        self._actions.put(action)
        self._wake_up.wake()

    # -- the thread

    def _run(self) -> None:
        look_s = 0.0
        try:
            while not (self._closing.is_set() and self._actions.empty()):
                self._turn()
                if time.monotonic() >= look_s:
                    look_s = time.monotonic() + LOOK_S
                    self._look()
        finally:
            self._socket.disable_monitor()
            self._closed.close(linger=0)
            self._listener.close(500)

    def _turn(self) -> None:
        """Process pending work: messages of agents, and what other threads have told the members."""
        ready = dict(self._poller.poll(int(1000 * LOOK_S)))
        self._wake_up.clear(ready)
        self._do_all()
        if self._closed in ready:
            self._note_closed()
        if self._socket in ready:
            self._receive()
        self._advance()
        self._do_all()

    def _do_all(self) -> None:
        while not self._actions.empty():
            self._actions.get()()

    def _note_closed(self) -> None:
        for _, number in events_of(self._closed):
            identity = self._connections.pop(number, None)
            if identity is not None:
                self.tell(machine.Closed(identity))

    def _receive(self) -> None:
        for _ in range(_MOST_AT_ONCE):
            if not self._socket.poll(0):
                break
            identity, frames = self._listener.receive()
            key = str(frames[-1].get("User-Id"))
            self._connections[int(frames[-1].get(zmq.SRCFD))] = identity
            try:
                (body,) = incoming([frame.buffer for frame in frames], self._join_key.server, MAX_MESSAGE_BYTES)
                message: wire.AnyAgentMessage = wire.decode(body, wire.AnyAgentMessage)
            except (CodecError, ValueError) as error:
                self.tell(machine.Unreadable(key, str(error)))
            else:
                self.tell(machine.Received(key, identity, message))
            self._do_all()  # after each: they may be large

    def _do(self, action: machine.Action) -> None:
        match action:
            case machine.Send():
                self._send(action.identity, action.message)
            case machine.Relay():
                if self._control is not None:
                    self._control.take(action.messages)
            case machine.Notify():
                self._notify(action.line)
            case machine.Admit():
                self._join_key.admit(action.key)
            case machine.Expel():
                self._join_key.expel(action.key)
            case machine.ReplaceJoinKey():
                self._replace_join_key()
            case machine.Answer():
                with self.changed:
                    self._answers[action.number] = action.text
                    self.changed.notify_all()
            case machine.Lost():
                self._forget(action.host)
            case _:
                with contextlib.suppress(
                    OSError
                ):  # a full disk: parts are sent again, the result reports missing counts
                    self._do_files(action)

    def _do_files(self, action: machine.Action) -> None:
        match action:
            case machine.KeepPages(membership, pages):
                keep_pages(self._folder, pages, self._counted.setdefault(membership, set()))
            case machine.KeepPart(host, part):
                size = keep_part(self._folder, part._replace(name=name_here(part.name, host.name)))
                if size is not None:
                    self._send(host.identity, wire.Stored(host.membership, part.name, size, part.digest))
            case machine.Confirm(stored):
                if stored.membership in self._kept:
                    self._kept[stored.membership].confirm(stored.name, stored.size, stored.digest)
            case machine.SendFiles():
                self._send_files(action)
            case machine.RemoveHalfSent():  # before their worker starts on another host, or at a resume
                remove_half_sent(self._folder, action.folders)

    def _replace_join_key(self) -> None:
        try:
            self._join_key.replace()
        except ConfigError as error:  # a full disk
            self._notify(f"no more hosts can join: {error}")
        else:
            self._notify(f"the join key was replaced; hosts that join from now on need {self._join_key.path}")

    def _forget(self, host: JoinedHost) -> None:
        self._kept.pop(host.membership, None)
        self._on_loss(host)

    def _send(self, identity: bytes, message: wire.AnyControllerMessage) -> None:
        with contextlib.suppress(zmq.ZMQError):  # no connection has this identity now, or its queue is full
            self._socket.send_multipart(
                [identity, *outgoing([wire.encode(message)], self._join_key.server)], zmq.NOBLOCK
            )

    def _look(self) -> None:
        with self.changed:
            self._queue(self._members.tick(time.monotonic()))
        if self._registry is not None:
            self.tell(machine.Revoke(revoked_hosts(self._folder)))
        self._do_all()
        self._share_names()
        for host in list(self._members.hosts):
            with contextlib.suppress(OSError):  # removed, or a disk error: the waiting worker reports it
                self._add_players(host)

    def _files_for(self, host: JoinedHost) -> KeptFiles:
        def send(part: wire.Part) -> None:
            self._send(host.identity, wire.FilePart(host.membership, part))

        return self._kept.setdefault(host.membership, KeptFiles(self._folder, send))

    def _send_files(self, asked: machine.SendFiles) -> None:
        files = self._files_for(asked.host)
        remove_half_sent(self._folder, asked.keeps)
        files.look(asked.keeps)
        ledgers = [str(ledger_path(self._folder, leg).relative_to(self._folder)) for leg in asked.legs]
        files.add(ledgers)
        counted = self._counted.setdefault(asked.host.membership, set())
        counted.update(asked.legs)  # its counts continue those of earlier hosts
        self._awaited.append((asked, [*asked.keeps, *ledgers]))

    def _advance(self) -> None:
        """Send files on, and report those that hosts have got."""
        for files in self._kept.values():
            files.advance()
        for awaited in list(self._awaited):
            asked, names = awaited
            if asked.host.lost or self._kept[asked.host.membership].are_sent(names):
                self._awaited.remove(awaited)
                self.tell(machine.FilesSent(asked.host.membership, asked.worker, asked.incarnation))

    def _add_players(self, host: JoinedHost) -> None:
        """Note the frozen players for which a host waits, to be sent."""
        if self._registry is None:
            return  # the run's folder is not known yet
        for wanted in host.wanted[:_MOST_WANTED]:
            policy, _, version = wanted.rpartition("/")
            path = PlayerStore(self._folder / PLAYERS_FOLDER / policy).file(int(version))
            if path is not None:
                self._files_for(host).add_new(str(path.relative_to(self._folder)))

    def _share_names(self) -> None:
        """Copy the names of all hosts to the registry, and send the hosts what is new there."""
        if self._registry is None:
            return
        if time.monotonic() - self._sent_s > NAMES_S:
            self._sent_s, self._shown = time.monotonic(), {}
        try:
            with self.changed:
                bound = self._members.names()
            self._registry.show(bound)
            known = self._registry.names()
        except (OSError, StreamError) as error:  # being written, or removed: the next check reads it
            self._failures += 1
            if is_reported(self._failures):
                _logger.warning("the names of the run could not be copied (%d times so far): %s", self._failures, error)
            return
        host_keys, parents = self._host_keys(), self._parents(known)
        for host in list(self._members.hosts):
            names = (list(known.values()), host_keys, parents.get(host.membership, {}))
            if self._shown.get(host.membership) != names:
                self._shown[host.membership] = names
                self._send(host.identity, wire.RunNames(host.membership, *names))


class HostHandle:
    """A worker under an agent; see jsrl.graph.launcher.Handle."""

    def __init__(self, port: HostPort, remote: RemoteWorker) -> None:
        self._port, self.remote = port, remote

    @property
    def where(self) -> str:
        pid = "not started yet" if self.remote.pid is None else f"pid {self.remote.pid}"
        return f"{pid} of host {self.host}"

    @property
    def host(self) -> str:
        return self.remote.host.name

    @property
    def log(self) -> str:
        if not self.alive and (fetched := self._port.fetched_log(self.remote)).exists():
            return str(fetched)
        return f"{self.remote.host.name}:{self.remote.host.folder}/logs/{self.remote.worker}.log"

    @property
    def alive(self) -> bool:
        return self.remote.exit is None

    @property
    def is_heard(self) -> bool:
        """Return whether messages of its host come; else its own silence means nothing."""
        return self.remote.host.is_heard(time.monotonic())

    @property
    def exit(self) -> Exit | None:
        return self.remote.exit

    def wait(self, timeout_s: float) -> bool:
        return self._port.wait(lambda: not self.alive, timeout_s)

    def kill(self) -> None:
        self._signal("kill")
        self._port.wait(lambda: not (self.alive and self.is_heard), GONE_S)

    def pause(self) -> None:
        self._signal("pause")

    def resume(self) -> None:
        self._signal("resume")

    def _signal(self, what: Any) -> None:
        if self.alive:
            host = self.remote.host
            signal = wire.Signal(host.membership, self.remote.worker, self.remote.incarnation, what)
            self._port.tell(machine.Tell(host.membership, signal))

    def tail(self, lines: int) -> str:
        if not self.alive:
            return "\n".join(self.remote.tail.splitlines()[-lines:])
        return self._ask("tail", lines, ANSWER_S)

    def usage(self) -> ResourceUsage | None:
        return self.remote.usage if self.alive else None

    def stacks(self, timeout_s: float) -> str:
        """Return the stacks of its threads; empty: neither it nor its agent answered in time."""
        return self._ask("stacks", timeout_s, timeout_s + ANSWER_S) if self.alive else ""

    def _ask(self, what: Any, amount: float, timeout_s: float) -> str:
        remote = self.remote
        return self._port.ask(remote.host, remote.worker, remote.incarnation, what, amount, timeout_s)
