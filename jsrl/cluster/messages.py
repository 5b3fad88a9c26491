"""Messages between a host's agent and the controller: msgpack of fixed schemas, over one encrypted TCP port.

Every message carries `membership`: the number that the controller gave the agent when it joined. After a lost connection
the agent joins again without workers and gets a new one; both ends drop messages with an older number.
"""

from __future__ import annotations

import re
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec

from jsrl.errors import CodecError
from jsrl.services.runs.values import MAX_LOG_BYTES, Registration

BEAT_S = 0.5
LEASE_S, LOST_S = 15.0, 20.0  # silence after which an agent ends its workers; after which the controller replaces them
CLOSED_LEASE_S, CLOSED_LOST_S = (
    5.0,
    8.0,
)  # the same, from when the other end closed the connection, as a killed process does
PROMPT_S = 5.0  # a connection that closes after a longer silence was closed by ZeroMQ, for want of heartbeats
MAX_TAIL_CHARS = 64_000
PAGE_BYTES = 4096  # of a page of counts
MOST_LOG_BYTES = 2 * MAX_LOG_BYTES  # of the log of a failed worker
REMOVED = -1  # instead of a byte position: the file was removed
_KEY = re.compile(r"[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")  # Z85
_WORKER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_STREAM = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")
_WANTED = re.compile(r"([A-Za-z0-9_][A-Za-z0-9_.-]{0,63}/)?[0-9]{1,19}")
_PAGE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}/(ledger|[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}\.page)")
_KEPT = re.compile(r"([A-Za-z0-9_%@+=,-][A-Za-z0-9_%@+=,.-]{0,127}/){0,11}[A-Za-z0-9_%@+=,-][A-Za-z0-9_%@+=,.-]{0,127}")
_HOST_KEY = re.compile(r"[0-9a-f]{80}")
_KIND = re.compile(r"[A-Za-z_][\w.-]*(:[A-Za-z_]\w*)?")
VARIABLES = frozenset(  # variables of a worker's environment that set devices, threads and the compilation cache
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "JAX_PLATFORMS", "CUDA_VISIBLE_DEVICES",
     "XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_PREALLOCATE", "PJRT_NPROC", "XLA_FLAGS")
)  # fmt: skip
REPLACED = 3  # exit status of an agent in whose place another of the same host has joined: it must not be started again


class Part(NamedTuple):
    """A part of a file, from byte `at`; `last` is the last part. name: below the run folder.

    digest: of the whole file, with its last part; empty: not checked.
    """

    name: str
    at: int
    content: bytes
    last: bool
    digest: str = ""


class Numbered(msgspec.Struct, tag_field="kind", forbid_unknown_fields=True):
    """A message with the number of the membership that it belongs to."""

    membership: int


class AgentMessage(Numbered):
    """A message of an agent."""


class Join(AgentMessage, tag="join"):
    """The first message of an agent, with the run's join key: it asks to be admitted with its own public key from now on."""

    key: str

    def __post_init__(self) -> None:
        if not _KEY.fullmatch(self.key):
            raise ValueError(f"key {self.key[:80]!r}")


class Hello(AgentMessage, tag="hello"):
    """An agent asks to join; it has no workers. `membership`: its last one; 0: there was none.

    Attributes:
      session: a secret random number of this agent process. name, boot: of the host, and the id of its last boot.
      versions: of jsrl, Python and jax. code: digest of jsrl's sources. folder: for a run's files.
      address: its IP address on the network to the controller's host. cores, memory_mb, machine_mb, gpus, shm_mb: see
        HostFacts.
      lacks: what it has too little of to run workers, as text; empty: nothing.
    """

    session: str
    name: str
    boot: str
    versions: dict[str, str]
    code: str
    folder: str
    address: str
    cores: int
    memory_mb: int
    machine_mb: int = 0
    gpus: int = 0
    shm_mb: int = 0
    lacks: str = ""


class Usage(msgspec.Struct, forbid_unknown_fields=True):
    """Process id and resource usage of a running worker (see ResourceUsage)."""

    worker: str
    incarnation: int
    pid: int | None
    state: str = ""
    cpu_s: float = 0.0
    resident_bytes: int = 0
    threads: int = 0


class Beat(AgentMessage, tag="beat"):
    """Sent every BEAT_S: the newest heartbeat of each worker, all their reports unchanged, and sometimes their usage.

    Attributes:
      sent_s: the agent's clock, which the reply repeats: the lease starts then.
      names: of all streams that running workers of the host have bound. wanted: frozen players for which they wait, as
        POLICY/VERSION, or VERSION of the first policy.
      leaves: why the host wants to leave once its workers have moved; empty: it stays. relays: params stream -> address at
        which this host relays it.
      executed: number of the last Order that was executed.
    """

    sent_s: float
    frames: list[bytes]
    usage: list[Usage] = []
    names: list[Registration] = []
    wanted: list[str] = []
    leaves: str = ""
    relays: dict[str, str] = {}
    executed: int = 0

    def __post_init__(self) -> None:
        wrong = [wanted for wanted in self.wanted if not _WANTED.fullmatch(wanted) or ".." in wanted]
        if wrong:
            raise ValueError(f"player {wrong[0][:80]!r}")


class FilePart(Numbered, tag="file"):
    """A part of a file, either way: of one that a worker keeps, or of the run folder. The other side answers with Stored."""

    part: Part

    def __post_init__(self) -> None:
        _check_kept(self.part.name)


class Stored(Numbered, tag="stored"):
    """The other side has written a file up to this size, either way; with the digest of its last part: all of it."""

    name: str
    size: int
    digest: str = ""


class Pages(AgentMessage, tag="pages"):
    """Changed counts of the host's workers for the streams that they read: LEG/FILE -> page.

    number: rises. After a broken connection its last messages may arrive later than the first ones of the next.
    """

    pages: dict[str, bytes]
    number: int = 0

    def __post_init__(self) -> None:
        wrong = [n for n, page in self.pages.items() if not _PAGE.fullmatch(n) or ".." in n or len(page) != PAGE_BYTES]
        if wrong:
            raise ValueError(f"page {wrong[0][:80]!r}")


class WorkerMessages(AgentMessage, tag="said"):
    """Urgent messages of workers, unchanged."""

    frames: list[bytes]


class Exited(AgentMessage, tag="exited"):
    """A worker has ended: its exit status, the same as text, the end of its log."""

    worker: str
    incarnation: int
    status: int | None
    text: str
    tail: str


class TextReply(AgentMessage, tag="answer"):
    """The reply to TextRequest."""

    number: int
    text: str


class Leaving(AgentMessage, tag="leaving"):
    """The agent was told to end; it has no workers any more."""

    text: str


class ControllerMessage(Numbered):
    """A message of the controller."""


class Admitted(ControllerMessage, tag="admitted"):
    """The agent's own key is admitted; it connects again with that, and says hello."""


class Welcome(ControllerMessage, tag="welcome"):
    """The host is a member of the run; if no message arrives for `lease_s` seconds, it ends its workers."""

    lease_s: float


class Refused(ControllerMessage, tag="refused"):
    """The agent cannot join, or, with its membership, another agent of its host has joined: it ends."""

    text: str


class BeatReceived(ControllerMessage, tag="alive"):
    """The controller has received the beat sent at `sent_s` of the agent's clock."""

    sent_s: float


class RunNames(ControllerMessage, tag="names"):
    """All names of the run, and the host keys that streams admit -> the workers for which each speaks (see admit_hosts).

    parents: params stream -> addresses from which this host fetches it for its workers, the nearest first.
    """

    entries: list[Registration]
    host_keys: dict[str, list[str]]
    parents: dict[str, list[str]] = {}

    def __post_init__(self) -> None:
        wrong = [key for key in self.host_keys if not _HOST_KEY.fullmatch(key)]
        if wrong:
            raise ValueError(f"host key {wrong[0][:80]!r}")
        for worker in (worker for workers in self.host_keys.values() for worker in workers):
            _check_name(worker, 0)
        wrong = [name for name in self.parents if not _STREAM.fullmatch(name) or ".." in name]
        if wrong:
            raise ValueError(f"stream {wrong[0][:80]!r}")


class Order(ControllerMessage, kw_only=True):
    """A message that is executed once, in order: it is sent again until a beat confirms it.

    number: of the order in its membership, from 1.
    """

    number: int = 0


class Keys(Order, tag="keys"):
    """The host's own keys for the run's streams: contents of the files `client.key` and `server.key`."""

    client: bytes
    server: bytes


class Begin(Order, tag="begin"):
    """Start an incarnation of a worker: its job as JSON, and the archive of the user's modules.

    keeps: subfolders of the run folder in which it keeps files; the agent sends their changes. run: the run folder, on the
    controller's host.
    """

    worker_kind: str
    worker: str
    incarnation: int
    job: bytes
    variables: dict[str, str]
    code: str = ""
    forks: bool = False
    keeps: list[str] = []
    run: str = ""

    def __post_init__(self) -> None:
        """Refuse everything except a worker of jsrl."""
        _check_name(self.worker, self.incarnation)
        unknown = sorted(set(self.variables) - VARIABLES)
        if not _KIND.fullmatch(self.worker_kind) or unknown:
            raise ValueError(f"{f'variables {unknown[:3]}' if unknown else f'kind {self.worker_kind[:80]!r}'}")
        if self.code and not re.fullmatch(r"[0-9a-f]{64}", self.code):
            raise ValueError(f"digest {self.code[:80]!r}")
        for folder in self.keeps:
            _check_kept(folder)


class Signal(Order, tag="signal"):
    """Send a signal to a worker."""

    worker: str
    incarnation: int
    what: Literal["kill", "pause", "resume"]


class TextRequest(ControllerMessage, tag="ask"):
    """Ask for the last `amount` lines of a worker's log, or for the stacks of its threads, within `amount` seconds."""

    number: int
    worker: str
    incarnation: int
    what: Literal["tail", "stacks"]
    amount: float


class WorkerCommand(Order, tag="command"):
    """Forward a command of the control connection to a worker."""

    worker: str
    incarnation: int
    frame: bytes


class Farewell(ControllerMessage, tag="farewell"):
    """The run has ended; the agent ends its workers and itself."""

    text: str


AnyAgentMessage = Join | Hello | Beat | Pages | FilePart | Stored | WorkerMessages | Exited | TextReply | Leaving
AnyControllerMessage = (
    Admitted | Welcome | Refused | BeatReceived | Keys | RunNames | FilePart | Stored | Begin | Signal | TextRequest
    | WorkerCommand | Farewell
)  # fmt: skip
AnyOrder = Keys | Begin | Signal | WorkerCommand
Message = TypeVar("Message")


def decode(frame: Any, kinds: type[Message] | Any) -> Message:
    try:
        return msgspec.msgpack.decode(frame, type=kinds)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise CodecError(f"not a message between an agent and its controller: {error}") from None


def encode(message: Numbered) -> bytes:
    return msgspec.msgpack.encode(message)


def _check_kept(name: str) -> None:
    if not _KEPT.fullmatch(name) or ".." in name:
        raise ValueError(f"file {name[:80]!r}")


def _check_name(worker: str, incarnation: int) -> None:
    if not _WORKER.fullmatch(worker) or ".." in worker or not 0 <= incarnation < 1 << 31:
        raise ValueError(f"worker {worker[:80]!r}, incarnation {incarnation}")
