"""The agent of a host: joins a run at the controller's port, and starts and serves workers here. It loads no jax.

It does what jsrl.cluster.agent decides. Its workers also end with it (by the kernel), and by themselves at the end of the
lease if it is stopped (services.runs.process). If it ends without having sent a learner's snapshot, that stays on this host.
"""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import secrets
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import zmq

from jsrl.cluster import agent as machine
from jsrl.cluster import messages as wire
from jsrl.cluster.agent import DRAIN_S, PATIENCE_S, HostAgent
from jsrl.cluster.archive import CODE, unpack
from jsrl.cluster.children import Children, ChildrenControl, batches
from jsrl.cluster.join_key import has_moved, own_keys
from jsrl.cluster.kept_files import KeptFiles, PageWatch, keep_part
from jsrl.cluster.port import CONNECTION_MS
from jsrl.cluster.relays import HostRelays
from jsrl.cluster.this_host import address_towards, code_digest, lacks, own_facts, versions
from jsrl.cluster.unsent import STATES, keep_snapshots
from jsrl.control.processes.processes import LocalHandle
from jsrl.errors import AccessDenied, CodecError, ConfigError
from jsrl.graph.addresses import KEYS
from jsrl.interrupts import may_repeat
from jsrl.services.runs.limits import usable_cores
from jsrl.services.runs.message_limits import MAX_MESSAGE_BYTES, shortened
from jsrl.services.runs.names import FileNames
from jsrl.services.runs.process import HostLease, now_s
from jsrl.services.snapshots.players import PLAYERS_FOLDER, WANTED
from jsrl.transport.door.keys import CLIENT_FILE, SERVER_FILE, ClientKeys, admit_hosts
from jsrl.transport.network.curve import connect, incoming, outgoing
from jsrl.transport.shared.locks import living_folder, make_folder, remove_unless_living

_TURN_MS = 50
_PAUSE_S = 0.0002  # between two turns, per worker: the messages of hundreds arrive one by one
_EXECUTE_S = 0.1  # of a turn
_STARTS, _STARTS_PER_CORE = 8, 2  # forked workers that start at once
_BATCH_BYTES = 1 << 20  # of workers' messages that are sent as one


class AgentProcess:
    """Serves one run on this host, until the run ends.

    Args:
      key: the run's key file. address: `HOST:PORT` of the controller. keys: those in the file. name: of this host.
      folder, memory: for the run's files here, and for its workers' shared memory, of mode 0700.
      notify: shows a line to the user.
      patience_s, drain_s: see HostAgent.
      most: cores and MB of memory of this host that workers may use; 0: all.
    """

    def __init__(
        self,
        key: Path,
        address: str,
        keys: ClientKeys,
        name: str,
        folder: Path,
        memory: Path,
        notify: Callable[[str], None],
        patience_s: float = PATIENCE_S,
        most: tuple[int, int] = (0, 0),
        drain_s: float = DRAIN_S,
    ) -> None:
        self._key, self._keys, self._own_keys = key, keys, own_keys(keys)
        self._address, self._name, self._folder, self._notify, self._most = address, name, folder, notify, most
        max_starts = max(_STARTS, _STARTS_PER_CORE * usable_cores())
        self._machine = HostAgent(name, address, max_starts, now_s(), patience_s, drain_s)
        self._session = secrets.token_hex(16)
        self._lease = HostLease(folder, extends=True)
        self._signals: deque[machine.ToldToEnd] = deque()
        self._end: tuple[int, str] | None = None  # exit status and reason
        self._replies: queue.SimpleQueue[wire.TextReply] = queue.SimpleQueue()
        self._pending: deque[wire.AnyControllerMessage] = deque()
        self._context = zmq.Context()
        self._control = ChildrenControl(self._context, folder)
        self._pages, self._num_pages = PageWatch(folder), 0
        self._kept = KeptFiles(
            folder, lambda part: self._send(wire.FilePart(self._membership, part)), held=folder / "held"
        )
        self._awaited: list[machine.FilesSent] = []  # what is to be reported once these files are sent
        self._children = Children(folder, self._control.address)
        self._relays = HostRelays(memory, folder / KEYS, notify)
        self._own_address = ""
        self._connect()

    @property
    def _membership(self) -> int:
        return self._machine.membership

    def _connect(self) -> None:
        endpoint = f"tcp://{self._address}"
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.IDENTITY, secrets.token_bytes(8).hex().encode())
        self._socket.setsockopt(zmq.HEARTBEAT_IVL, CONNECTION_MS[0])
        self._socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, CONNECTION_MS[1])
        self._socket.setsockopt(zmq.RECONNECT_IVL_MAX, 2_000)
        self._socket.setsockopt(zmq.IPV6, uses_ipv6(self._address))
        self._connection = connect(self._socket, endpoint, self._keys)

    def run(self) -> int:
        """Serve until the run ends, or this host is not needed any more; return the exit status."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        try:
            while self._end is None:
                self._turn()
        finally:
            self._children.kill_all()
            self._relays.close()
            self._connection.close()
            self._context.destroy(linger=1_000)
        status, why = self._end
        for line in (*self._keep_unsent(), why):  # engines show the last line
            self._notify(line)
        return status

    def _keep_unsent(self) -> list[str]:
        """Keep the learners' snapshots on this host if a lost controller does not have them; return lines about it."""
        folders = self._machine.folders if self._machine.was_lost else []
        unsent = [f for f in folders if Path(f).name == STATES and not self._kept.has_arrived(f)]
        return keep_snapshots(self._folder, unsent, self._machine.run, self._name) if unsent else []

    def _on_signal(self, number: int, _: object) -> None:
        self._signals.append(machine.ToldToEnd(number == signal.SIGHUP, may_repeat(number)))

    # -- the loop

    def _turn(self) -> None:
        """Do pending work, briefly."""
        poller = zmq.Poller()
        for waited in (self._socket, self._control.socket):
            poller.register(waited, zmq.POLLIN)
        poller.poll(0 if self._pending else _TURN_MS)
        if not self._pending:
            time.sleep(min(_PAUSE_S * self._children.count, _TURN_MS / 1000))
        while self._signals:
            self._tell(self._signals.popleft())
        self._do_all(self._machine.tick(now_s()))
        self._look_at_connection()
        self._receive()
        self._control.listen(self._children)
        for worker in self._control.ready:
            self._tell(machine.Ready(*worker))
        self._control.ready.clear()
        if self._membership:
            self._report()

    def _tell(self, message: machine.Message) -> None:
        self._do_all(self._machine.handle(message, now_s()))

    def _do_all(self, actions: list[machine.Action]) -> None:
        """Do all of it, then report what became of it."""
        reports = list[machine.Message]()
        for action in actions:
            try:
                reports += self._do(action)
            except OSError as error:  # a full disk
                reports.append(machine.DiskFull(str(error)))
        for report in reports:
            self._tell(report)

    def _look_at_connection(self) -> None:
        try:
            self._connection.poll()
        except AccessDenied:  # its text is about the keys of a run's streams
            what = "this host any more" if self._keys is self._own_keys else f"the key {self._key}"
            why = f"{self._address} does not accept {what}: `jsrl stop RUN --host` replaced it, or it belongs to another run. "
            self._tell(machine.CannotJoin(f"{why}Take the key file that the run writes now."))
        if self._connection.changed:
            self._connection.changed = False
            self._tell(machine.Connected(self._connection.there))

    def _receive(self) -> None:
        """Receive all messages. Answers to beats are handled at once, the rest in order and for a short time: beats continue.

        Starting hundreds of workers takes a busy host longer than its lease.
        """
        while self._end is None and self._socket.poll(0):
            try:
                (body,) = incoming(self._socket.recv_multipart(), self._keys, MAX_MESSAGE_BYTES)
                message: wire.AnyControllerMessage = wire.decode(body, wire.AnyControllerMessage)
            except (CodecError, ValueError) as error:
                self._notify(f"a message of the controller was dropped: {error}")
                continue
            if isinstance(message, wire.BeatReceived):
                self._tell(machine.Received(message))
            else:
                self._pending.append(message)
        until_s = now_s() + _EXECUTE_S
        while self._pending and self._end is None:
            self._tell(machine.Received(self._pending.popleft()))
            if now_s() >= until_s:
                return

    def _report(self) -> None:
        """Send what workers said, and report those that have ended."""
        if self._control.urgent:
            self._send(wire.WorkerMessages(self._membership, self._send_frames(self._control.frames(beats=False))))
        for ended in self._children.ended():
            self._tell(ended)
        self._kept.advance()
        for sent in [sent for sent in self._awaited if self._kept.are_sent(sent.names)]:
            self._awaited.remove(sent)
            self._tell(sent)
        while not self._replies.empty():
            self._send(self._replies.get())

    # -- actions

    def _do(self, action: machine.Action) -> list[machine.Message]:  # noqa: C901
        """Do something; return what became of it, if that matters."""
        match action:
            case machine.Send():
                self._send(action.message)
            case machine.SendBeat():
                self._beat(action)
            case machine.Ask():
                return self._ask(action)
            case machine.UseOwnKey():
                self._connection.close()
                self._socket.close(linger=0)
                self._keys = self._own_keys
                self._connect()
            case machine.Repeat():
                self._pages.forget()
                if words := self._control.last_words():
                    self._send(wire.WorkerMessages(self._membership, self._send_frames(words)))
            case machine.BeginMembership():
                self._forget(action.folders)
            case machine.ExtendLease():
                self._lease.extend(action.until_s)
            case machine.StartWorker():
                return self._start(action.begin)
            case machine.SignalWorker():
                handle = self._children.find(action.worker, action.incarnation)
                if handle is not None:
                    getattr(handle, action.what)()
            case machine.KillAll():
                self._children.kill_all()
                self._relays.close()
            case machine.SendFiles(worker, incarnation, folders, log):
                self._send_pages()
                self._kept.look(folders)
                self._kept.add(log)
                self._awaited += [machine.FilesSent(worker, incarnation, names) for names in (folders, log) if names]
            case machine.Execute():
                return self._execute(action.message)
            case machine.Notify():
                self._notify(action.line)
            case machine.End():
                self._end = (action.status, action.why)
        return []

    def _ask(self, asked: machine.Ask) -> list[machine.Message]:
        if has_moved(self._key, self._keys):
            return [
                machine.CannotJoin(f"the run at {self._address} has ended or has begun again elsewhere; join again")
            ]
        if self._connection.made:
            with contextlib.suppress(OSError):  # there is no way to the controller now: the link is down
                self._send(
                    self._hello(asked.membership) if asked.is_admitted else wire.Join(0, self._own_keys.public.decode())
                )
        return []

    def _beat(self, beat: machine.SendBeat) -> None:
        usage: list[wire.Usage] = []
        if beat.measures:
            usage = self._children.usage()
            self._send_pages()
            self._kept.look(self._machine.folders)
        names = FileNames(self._folder / "names").own() if self._children.count else []
        frames, wanted = (
            self._send_frames(self._control.frames(beats=True)),
            wanted_players(self._folder / PLAYERS_FOLDER),
        )
        relays, executed = self._relays.addresses, beat.executed
        self._send(wire.Beat(self._membership, now_s(), frames, usage, names, wanted, beat.leaves, relays, executed))

    def _forget(self, folders: list[str]) -> None:
        """Forget what belongs to an earlier membership."""
        self._pages.discard()
        self._kept.forget()
        self._control.forget()
        self._awaited.clear()
        for folder in folders:
            shutil.rmtree(self._folder / folder, ignore_errors=True)
        for file in (CLIENT_FILE, SERVER_FILE):
            (self._folder / KEYS / file).unlink(missing_ok=True)

    def _start(self, begin: wire.Begin) -> list[machine.Message]:
        try:
            self._children.begin(begin)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
            return [machine.NotStarted(begin.worker, begin.incarnation, str(error))]
        return []

    def _execute(self, message: object) -> list[machine.Message]:
        match message:
            case wire.WorkerCommand():
                self._control.send_command(message.worker, message.incarnation, message.frame)
            case wire.Keys():
                self._keep_keys(message)
            case wire.RunNames():
                admit_hosts(make_folder(self._folder / KEYS), message.host_keys)
                self._relays.follow(message.parents, self._own_address)
                FileNames(self._folder / "names").show(self._relays.shown(message.entries))
            case wire.FilePart():
                return self._keep_part(message.part)
            case wire.Stored():
                self._kept.confirm(message.name, message.size, message.digest)
            case wire.TextRequest():
                self._answer(message)
        return []

    def _send_pages(self) -> None:
        if changed := self._pages.changed():
            self._num_pages += 1
            if not self._send(wire.Pages(self._membership, changed, self._num_pages)):
                self._pages.forget()

    def _send_frames(self, frames: list[bytes]) -> list[bytes]:
        """Send messages of workers, except the last ones, which fit into one more message: return these."""
        *earlier, last = batches(frames, _BATCH_BYTES)
        for batch in earlier:
            self._send(wire.WorkerMessages(self._membership, batch))
        return last

    def _hello(self, membership: int) -> wire.Hello:
        host, _, port = self._address.rpartition(":")
        self._own_address = address_towards(host.strip("[]"), int(port))
        facts = own_facts(self._name, self._own_address)
        memory_mb = min(facts.memory_mb, self._most[1] or facts.memory_mb)
        return wire.Hello(
            membership,
            session=self._session,
            name=facts.name,
            boot=facts.machine,
            versions=versions(),
            code=code_digest(),
            folder=str(self._folder),
            address=facts.address,
            cores=min(facts.cores, self._most[0] or facts.cores),
            memory_mb=memory_mb,
            machine_mb=facts.machine_mb,
            gpus=facts.gpus,
            shm_mb=facts.shm_mb,
            lacks=lacks(self._folder, memory_mb),
        )

    def _send(self, message: wire.Numbered) -> bool:
        """Send a message; return False if the connection is blocked. The lease limits how long that may last."""
        try:
            self._socket.send_multipart(outgoing([wire.encode(message)], self._keys), zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def _keep_part(self, part: wire.Part) -> list[machine.Message]:
        """Write a part of a file of the run folder, and confirm it; unpack the user's modules."""
        size = keep_part(self._folder, part)
        if size is not None:
            self._send(wire.Stored(self._membership, part.name, size, part.digest))
        if size is None or not part.last:
            return []
        self._kept.note(part.name)
        return self._unpack(self._folder / part.name) if part.name.startswith(f"{CODE}/") else []

    def _unpack(self, file: Path) -> list[machine.Message]:
        try:
            if not file.with_suffix("").exists():
                unpack(file.stem, file.read_bytes(), file.with_suffix(""))
        except ValueError as error:  # workers that need them do not start
            self._notify(f"the run's modules cannot be unpacked: {error}")
            return []
        return [machine.Arrived(file.stem)]

    def _answer(self, message: wire.TextRequest) -> None:
        handle = self._children.find(message.worker, message.incarnation)
        if handle is None:
            self._replies.put(wire.TextReply(self._membership, message.number, ""))
        elif message.what == "tail":
            tail = shortened(handle.tail(int(message.amount)), wire.MAX_TAIL_CHARS)
            self._replies.put(wire.TextReply(self._membership, message.number, tail))
        else:
            threading.Thread(target=self._look_at_stacks, args=(handle, message), daemon=True).start()

    def _look_at_stacks(self, handle: LocalHandle, message: wire.TextRequest) -> None:
        self._replies.put(wire.TextReply(message.membership, message.number, shortened(handle.stacks(message.amount))))

    def _keep_keys(self, keys: wire.Keys) -> None:
        folder = make_folder(self._folder / KEYS)
        for name, content in ((CLIENT_FILE, keys.client), (SERVER_FILE, keys.server)):
            descriptor = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with open(descriptor, "wb") as file:
                file.write(content)


def wanted_players(folder: Path) -> list[str]:
    """Return the frozen players that workers wait for, in the format of Beat; `folder` is that of all players."""
    asked = [*folder.glob(f"{WANTED}/*"), *folder.glob(f"*/{WANTED}/*")]
    names = [str(path.parent.parent.relative_to(folder) / path.name) for path in asked]
    return sorted(name for name in names if not list(folder.glob(f"{name}-*.npz")))


@contextlib.contextmanager
def agent_folder() -> Iterator[Path]:
    """Yield a new folder for the run's files on this host; remove it afterwards, and now those of killed agents."""
    with contextlib.ExitStack() as stack:
        try:
            base = make_folder(Path(tempfile.gettempdir()) / f"jsrl-hosts-{os.getuid()}")
            for left in base.iterdir():
                with contextlib.suppress(OSError):
                    remove_unless_living(left)
            folder = stack.enter_context(living_folder(base / secrets.token_hex(4)))
        except OSError as error:
            raise ConfigError(
                f"this host has no space for the run's files ({error.strerror or error}); free some, or set TMPDIR to a "
                "folder that has space."
            ) from error
        yield folder


def uses_ipv6(address: str) -> bool:
    """Return whether the controller at `HOST:PORT` is reached over IPv6: its name may have no other address."""
    host, _, port = address.rpartition(":")
    with contextlib.suppress(OSError):  # the network is down; ZeroMQ tries again
        return ":" in address_towards(host.strip("[]"), int(port))
    return False


def check_address(address: str) -> str:
    """Return `HOST:PORT` of a controller from the user's text, which may start with `tcp://`."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    bare = ":" in host and not host.startswith("[")
    if not host or bare or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise ConfigError(
            f"{address!r} is not the address of a controller; expected HOST:PORT, as `jsrl run --listen` prints it (IPv6: "
            "[fd00::5]:7000)."
        )
    try:
        address_towards(host.strip("[]"), int(port))
    except (OSError, socket.gaierror) as error:
        raise ConfigError(f"there is no route to {host} from here ({error}).") from error
    return f"{host}:{port}"
