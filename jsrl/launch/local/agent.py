"""The agent of a host: joins a run at the controller's port, and starts and serves workers here. It loads no jax.

It ends its workers when the controller has not answered for the length of its lease, and joins again without any. They also
end with the agent (by the kernel), and by themselves at the end of the lease if it is stopped (jsrl.runs.process). When the
agent must end, it waits for the controller to move its workers to other hosts.

Shortly before the lease ends, a learner here writes a snapshot. If the agent ends without having sent it, the snapshot stays
on this host.
"""

from __future__ import annotations

import contextlib
import errno
import math
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

from jsrl.cluster.messages import (
    BEAT_S,
    CLOSED_LEASE_S,
    MAX_TAIL_CHARS,
    MOST_LOG_BYTES,
    PROMPT_S,
    REPLACED,
    Admitted,
    AnyControllerMessage,
    Beat,
    BeatReceived,
    Begin,
    CodePart,
    EarlierFile,
    Exited,
    Farewell,
    Hello,
    Join,
    KeptFile,
    Keys,
    Leaving,
    Numbered,
    Order,
    Pages,
    Player,
    Refused,
    RunNames,
    Signal,
    Stored,
    TextReply,
    TextRequest,
    Usage,
    Welcome,
    WorkerCommand,
    WorkerMessages,
    decode,
    encode,
)
from jsrl.errors import AccessDenied, CodecError, ConfigError, counted
from jsrl.launch.hosts.archive import unpack
from jsrl.launch.hosts.facts import code_digest, versions
from jsrl.launch.hosts.join_key import has_moved, own_keys
from jsrl.launch.hosts.kept_files import KeptFiles, PageWatch, keep_part
from jsrl.launch.hosts.port import CONNECTION_MS
from jsrl.launch.interrupts import may_repeat
from jsrl.launch.links import KEYS
from jsrl.launch.local.children import Children, ChildrenControl, batches
from jsrl.launch.local.facts import address_towards, lacks, own_facts
from jsrl.launch.local.processes import LocalHandle, size_of
from jsrl.launch.local.relays import HostRelays
from jsrl.launch.local.unsent import STATES, keep_snapshots
from jsrl.runs.door import MAX_MESSAGE_BYTES, shortened
from jsrl.runs.limits import usable_cores
from jsrl.runs.names import FileNames
from jsrl.runs.process import Lease, now_s
from jsrl.runs.values import log_name
from jsrl.snapshots.players import PLAYERS_FOLDER, WANTED
from jsrl.transport.meeting.curve import connect, incoming, outgoing
from jsrl.transport.meeting.keys import CLIENT_FILE, SERVER_FILE, ClientKeys, admit_hosts
from jsrl.transport.memory.locks import living_folder, make_folder, remove_unless_living

PATIENCE_S, DRAIN_S = 120.0, 30.0
SAVE_S = 4.0  # before the lease ends; half of it if it is shorter than twice that
LEAVES = "its agent was told to end"
NO_FILES = "this host cannot keep the run's files"
_TURN_MS, _USAGE_S = 50, 1.0
_PAUSE_S = 0.0002  # between two turns, per worker: the messages of hundreds arrive one by one
_EXECUTE_S = 0.1  # of a turn
_STARTS, _STARTS_PER_CORE, _START_S = 8, 2, 5.0  # forked workers that start at once; after this time the next ones may
_LOG_S = 2.0  # in which the log of a failed worker may reach the run folder before its end is reported
_BATCH_BYTES = 1 << 20  # of workers' messages that are sent as one
_MOST_EXITS = 100  # that are sent again over a new connection


class Agent:
    """Serves one run on this host, until the run ends.

    Args:
      key: the run's key file. address: `HOST:PORT` of the controller. keys: those in the file. name: of this host.
      folder, memory: for the run's files here, and for its workers' shared memory, of mode 0700.
      notify: shows a line to the user.
      patience_s: how long it tries to reach the controller.
      most: cores and MB of memory of this host that workers may use; 0: all.
      drain_s: how long its workers may take to leave when it must end.
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
        self._address, self._name, self._folder = address, name, folder
        self._notify, self._patience_s, self._most, self._drain_s = notify, patience_s, most, drain_s
        self._session, self._epoch, self._executed = secrets.token_hex(16), 0, 0
        self._lease_s, self._lease_from_s = 0.0, now_s()
        self._lease = Lease(folder, extends=True)
        self._is_connected, self._closed_s = False, math.inf  # inf: open, or closed after a long silence
        self._beat_at_s = self._usage_at_s = 0.0
        self._end: tuple[int, str] | None = None  # exit status and reason
        self._leave_by_s: float | None = None  # once it must end
        self._replies: queue.SimpleQueue[TextReply] = queue.SimpleQueue()
        self._code_parts: dict[str, bytearray] = {}
        self._pending: deque[AnyControllerMessage] = deque()
        self._context = zmq.Context()
        self._control = ChildrenControl(self._context, folder)
        self._pages, self._num_pages = PageWatch(folder), 0
        self._kept = KeptFiles(folder, lambda part: self._send(KeptFile(self._epoch, *part)), held=folder / "held")
        self._kept_folders: dict[str, list[str]] = {}  # worker -> folders in which it keeps files
        self._run = ""  # the run folder on the controller's host
        self._ends_soon = False  # its lease does, unless the controller answers
        self._must_save = False  # a learner here must write a snapshot now
        self._was_lost = False  # the controller was, and has not welcomed this host since
        self._unsent_exits: list[tuple[Exited, float]] = []  # of workers whose files are on their way, and since when
        self._sent_exits: deque[Exited] = deque(maxlen=_MOST_EXITS)  # in this membership
        self._children = Children(folder, self._control.address)
        self._queue: dict[tuple[str, int], Begin] = {}  # workers to be started
        self._starting: dict[tuple[str, int], float] = {}  # forked ones that are not ready -> when they were started
        self._most_starts = max(_STARTS, _STARTS_PER_CORE * usable_cores())
        self._relays = HostRelays(memory, folder / KEYS, notify)
        self._own_address = ""
        self._connect()

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
        folders = [folder for folders in self._kept_folders.values() for folder in folders] if self._was_lost else []
        unsent = [f for f in folders if Path(f).name == STATES and not self._kept.has_arrived(f)]
        return keep_snapshots(self._folder, unsent, self._run, self._name) if unsent else []

    def _on_signal(self, number: int, _: object) -> None:
        """Let the workers leave. A second signal ends them at once, also SIGHUP (the parent is gone) if none is a learner."""
        if self._leave_by_s is not None and may_repeat(number):
            return
        wait_s = self._drain_s
        if number == signal.SIGHUP:
            wait_s = SAVE_S if any(self._kept_folders.values()) else 0.0
            self._was_lost = self._must_save = True
        self._leave_by_s = 0.0 if self._leave_by_s is not None else now_s() + wait_s
        self._beat_at_s = 0.0

    # -- the loop

    def _turn(self) -> None:
        """Do pending work, briefly; an expired lease is handled first, even after this process was stopped."""
        poller = zmq.Poller()
        for waited in (self._socket, self._control.socket):
            poller.register(waited, zmq.POLLIN)
        poller.poll(0 if self._pending else _TURN_MS)
        if not self._pending:
            time.sleep(min(_PAUSE_S * self._children.count, _TURN_MS / 1000))
        self._check_lease()
        try:
            self._connection.look()
        except AccessDenied:  # its text is about the keys of a run's streams
            what = f"the key {self._key}" if self._keys is not self._own_keys else "this host any more"
            self._end = (
                1,
                f"{self._address} does not accept {what}: `jsrl stop RUN --host` replaced it, or it belongs to another run. "
                "Take the key file that the run writes now.",
            )
            return
        self._note_connection()
        try:
            self._receive()
        except OSError as error:  # a full disk
            self._leave(1, f"{NO_FILES} ({error})")
            return
        self._control.listen()
        if self._must_save:
            self._must_save = False
            for worker in [worker for worker, folders in self._kept_folders.items() if folders]:
                self._children.send_command(self._control, worker, "snapshot")
        if self._epoch:
            self._start_queued()
            self._report()
        if now_s() >= self._beat_at_s:
            self._beat_at_s = now_s() + BEAT_S
            self._beat()
        left_alone = not self._epoch or now_s() >= (self._leave_by_s or 0.0)
        if self._leave_by_s is not None and left_alone and self._end is None:
            self._leave(0, LEAVES)

    def _leave(self, status: int, why: str) -> None:
        self._children.kill_all()
        self._send(Leaving(self._epoch, why))
        self._end = (status, f"this host has left the run: {why}")

    def _note_connection(self) -> None:
        if self._connection.there != self._is_connected:
            self._is_connected = self._connection.there
            if self._is_connected:  # what was sent last may be lost with the previous connection
                self._pages.forget()
                for exited in self._sent_exits:
                    self._send(exited)
            prompt = not self._is_connected and now_s() - self._lease_from_s < PROMPT_S
            self._closed_s = now_s() if prompt else math.inf

    def _check_lease(self) -> None:
        silent_s, closed_s = now_s() - self._lease_from_s, now_s() - self._closed_s
        left_s = min(self._lease_s - silent_s, CLOSED_LEASE_S - closed_s)
        ended_soon, self._ends_soon = self._ends_soon, left_s < min(SAVE_S, self._lease_s / 2)
        if self._epoch and left_s < 0.0:
            count = self._children.kill_all()
            self._queue.clear()
            self._relays.close()
            self._notify(
                f"no message from the controller for {silent_s:.0f} s: {counted(count, 'worker')} ended; joining again"
            )
            self._epoch, self._lease_from_s = 0, now_s()  # its patience begins now: it may have been stopped
            self._was_lost = True
        elif self._epoch and self._ends_soon and not ended_soon:
            self._must_save = True
        elif not self._epoch and silent_s > self._patience_s:
            self._end = (1, f"no answer from {self._address} within {self._patience_s:g} s; is the run there?")

    def _report(self) -> None:
        if self._control.urgent:
            self._send(WorkerMessages(self._epoch, self._send_frames(self._control.frames(beats=False))))
        for exited in self._children.ended(self._epoch):
            self._send_pages()  # first, so that all its counts and files are included
            self._kept.look(self._kept_folders.get(exited.worker, ()))
            self._kept.add(self._failed_log(exited))
            self._unsent_exits.append((exited, now_s()))
        self._kept.advance()
        for exited, since_s in list(self._unsent_exits):
            log = self._failed_log(exited) if now_s() < since_s + _LOG_S else []
            if self._kept.are_sent([*self._kept_folders.get(exited.worker, ()), *log]):
                self._unsent_exits.remove((exited, since_s))
                self._send_exit(exited)
        while not self._replies.empty():
            self._send(self._replies.get())

    def _send_exit(self, exited: Exited) -> None:
        self._sent_exits.append(exited)
        self._send(exited)

    def _failed_log(self, exited: Exited) -> list[str]:
        """Return the log of a worker, for the run folder, if it failed; the agent deletes it when the run ends."""
        name = log_name(exited.worker)
        return [name] if exited.status != 0 and 0 < size_of(self._folder / name) <= MOST_LOG_BYTES else []

    def _beat(self) -> None:
        if not self._epoch:
            if has_moved(self._key, self._keys):
                self._end = (1, f"the run at {self._address} has ended or has begun again elsewhere; join again")
            elif self._connection.made:
                with contextlib.suppress(OSError):  # there is no way to the controller now: the link is down
                    admitted = self._keys is self._own_keys
                    self._send(self._hello() if admitted else Join(0, self._own_keys.public.decode()))
            return
        usage: list[Usage] = []
        if now_s() >= self._usage_at_s:
            self._usage_at_s = now_s() + _USAGE_S
            usage = self._children.usage()
            self._send_pages()
            self._kept.look([folder for folders in self._kept_folders.values() for folder in folders])
        names = FileNames(self._folder / "names").own() if self._children.count else []
        frames = self._send_frames(self._control.frames(beats=True))
        wanted, leaves = wanted_players(self._folder / PLAYERS_FOLDER), "" if self._leave_by_s is None else LEAVES
        lacks, relays = any(map(self._lacks, self._queue.values())), self._relays.addresses
        self._send(Beat(self._epoch, now_s(), frames, usage, names, wanted, leaves, relays, lacks, self._executed))

    def _send_pages(self) -> None:
        if changed := self._pages.changed():
            self._num_pages += 1
            if not self._send(Pages(self._epoch, changed, self._num_pages)):
                self._pages.forget()

    def _send_frames(self, frames: list[bytes]) -> list[bytes]:
        """Send messages of workers, except the last ones, which fit into one more message: return these."""
        *earlier, last = batches(frames, _BATCH_BYTES)
        for batch in earlier:
            self._send(WorkerMessages(self._epoch, batch))
        return last

    def _hello(self) -> Hello:
        host, _, port = self._address.rpartition(":")
        self._own_address = address_towards(host.strip("[]"), int(port))
        facts = own_facts(self._name, self._own_address)
        memory_mb = min(facts.memory_mb, self._most[1] or facts.memory_mb)
        return Hello(
            0,
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

    def _send(self, message: Numbered) -> bool:
        """Send a message; return False if the connection is blocked. The lease limits how long that may last."""
        try:
            self._socket.send_multipart(outgoing([encode(message)], self._keys), zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    # -- messages of the controller

    def _receive(self) -> None:
        """Receive all messages. Answers to beats are handled at once, the rest in order and for a short time: beats continue.

        Starting hundreds of workers takes a busy host longer than its lease.
        """
        while self._end is None and self._socket.poll(0):
            try:
                (body,) = incoming(self._socket.recv_multipart(), self._keys, MAX_MESSAGE_BYTES)
                message: AnyControllerMessage = decode(body, AnyControllerMessage)
            except (CodecError, ValueError) as error:
                self._notify(f"a message of the controller was dropped: {error}")
                continue
            if isinstance(message, BeatReceived):
                self._execute(message)
            else:
                self._pending.append(message)
        until_s = now_s() + _EXECUTE_S
        while self._pending and self._end is None:
            self._execute(self._pending.popleft())
            if now_s() >= until_s:
                return

    def _execute(self, message: AnyControllerMessage) -> None:
        if isinstance(message, Welcome):
            self._join(message)
        elif isinstance(message, Admitted):
            if self._keys is not self._own_keys:
                self._connection.close()
                self._socket.close(linger=0)
                self._keys = self._own_keys
                self._connect()
        elif isinstance(message, Refused):
            status = REPLACED if message.epoch else 1
            self._end = (status, f"the controller at {self._address} refused this host: {message.text}")
        elif message.epoch != self._epoch or not self._epoch:
            return  # of an earlier membership
        elif isinstance(message, Order):
            self._obey(message)
        elif isinstance(message, BeatReceived):
            self._lease_from_s = max(self._lease_from_s, min(message.sent_s, now_s()))
            self._lease.extend(self._lease_from_s + self._lease_s)
        elif isinstance(message, Keys):
            self._keep_keys(message)
        elif isinstance(message, RunNames):
            admit_hosts(make_folder(self._folder / KEYS), message.host_keys)
            self._relays.follow(message.parents, self._own_address)
            FileNames(self._folder / "names").show(self._relays.shown(message.entries))
        elif isinstance(message, Player):
            self._keep_part(self._folder / PLAYERS_FOLDER, message)
        elif isinstance(message, EarlierFile):
            if self._keep_part(self._folder, message):
                self._kept.note(message.name)
        elif isinstance(message, Stored):
            self._kept.confirm(message.name, message.size, message.digest)
        elif isinstance(message, Farewell):
            self._end = (0, message.text)
        else:
            self._answer(message)

    def _join(self, message: Welcome) -> None:
        if message.epoch > self._epoch:
            self._children.kill_all()  # of an earlier membership; there should be none
            self._queue.clear()
            self._epoch, self._lease_s, self._lease_from_s = message.epoch, message.lease_s, now_s()
            self._lease.extend(self._lease_from_s + self._lease_s)
            self._executed, self._was_lost = 0, False
            self._pages.discard()
            self._kept.forget()
            self._unsent_exits.clear()
            self._sent_exits.clear()
            for folder in [folder for folders in self._kept_folders.values() for folder in folders]:
                shutil.rmtree(self._folder / folder, ignore_errors=True)  # the run folder has what counts
            self._kept_folders.clear()
            self._code_parts.clear()
            for file in (CLIENT_FILE, SERVER_FILE):  # of an earlier membership: revoked
                (self._folder / KEYS / file).unlink(missing_ok=True)
            self._notify(f"joined the run at {self._address} as {self._name}")

    def _keep_part(self, folder: Path, message: EarlierFile | Player) -> bool:
        """Write a part of a file, and confirm it; return whether the file is complete."""
        size = keep_part(folder, message.piece)
        if size is not None:
            self._send(Stored(self._epoch, message.name, size, message.digest))
        return message.last and size is not None

    def _start_queued(self) -> None:
        """Start the workers that wait for it; of those that are forked, only as many at once as the cores can take.

        Else hundreds that start would take the agent's share of the cores, and its lease would end.
        """
        for key in self._control.ready:
            self._starting.pop(key, None)
        self._control.ready.clear()
        oldest_s = now_s() - _START_S
        self._starting = {key: since_s for key, since_s in self._starting.items() if since_s > oldest_s}
        for key, message in list(self._queue.items()):
            if self._lacks(message):
                continue
            if message.forks and len(self._starting) >= self._most_starts:
                continue
            del self._queue[key]
            if message.forks:
                self._starting[key] = now_s()
            self._begin(message)

    def _lacks(self, message: Begin) -> bool:
        """Return whether this host has not got its keys, or the modules of a worker; the next beat asks for them."""
        code = self._folder / "code" / message.code if message.code else self._folder
        return not (code.exists() and (self._folder / KEYS / SERVER_FILE).exists())

    def _begin(self, message: Begin) -> None:
        self._kept_folders[message.worker], self._run = message.keeps, message.run
        try:
            self._children.begin(message)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):  # else its restarts would be used up here
                self._leave(1, f"{NO_FILES} ({error})")
                return
            text = f"could not be started on {self._name}: {error}"
            self._send_exit(Exited(self._epoch, message.worker, message.incarnation, None, text, ""))

    def _obey(self, message: Order) -> None:
        """Execute an order; not if it was executed before, or if one before it was lost: all are sent again then."""
        if message.number != self._executed + 1:
            return
        self._executed += 1
        if isinstance(message, Begin):
            self._queue[message.worker, message.incarnation] = message
            self._start_queued()
        elif isinstance(message, WorkerCommand):
            self._control.send_command(message.worker, message.incarnation, message.frame)
        elif isinstance(message, CodePart):
            self._keep_code(message)
        elif isinstance(message, Signal):
            handle = self._children.find(message.worker, message.incarnation)
            if self._queue.pop((message.worker, message.incarnation), None) is not None:
                text = "ended before its start"
                self._send_exit(Exited(self._epoch, message.worker, message.incarnation, None, text, ""))
            if handle is not None:
                getattr(handle, message.what)()

    def _answer(self, message: TextRequest) -> None:
        handle = self._children.find(message.worker, message.incarnation)
        if handle is None:
            self._replies.put(TextReply(self._epoch, message.number, ""))
        elif message.what == "tail":
            tail = shortened(handle.tail(int(message.amount)), MAX_TAIL_CHARS)
            self._replies.put(TextReply(self._epoch, message.number, tail))
        else:
            threading.Thread(target=self._look_at_stacks, args=(handle, message), daemon=True).start()

    def _look_at_stacks(self, handle: LocalHandle, message: TextRequest) -> None:
        self._replies.put(TextReply(message.epoch, message.number, shortened(handle.stacks(message.amount))))

    def _keep_keys(self, keys: Keys) -> None:
        folder = make_folder(self._folder / KEYS)
        for name, content in ((CLIENT_FILE, keys.client), (SERVER_FILE, keys.server)):
            descriptor = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with open(descriptor, "wb") as file:
                file.write(content)

    def _keep_code(self, message: CodePart) -> None:
        content = self._code_parts.setdefault(message.digest, bytearray())
        content += message.part
        if message.last:
            del self._code_parts[message.digest]
            folder = self._folder / "code" / message.digest
            try:
                if not folder.exists():
                    unpack(message.digest, bytes(content), folder)
            except ValueError as error:  # parts were lost: the workers that wait for them make the next beat ask again
                self._notify(f"the run's modules did not arrive completely: {error}")


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
