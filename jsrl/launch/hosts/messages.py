"""What a host's agent and the controller say to each other: msgpack of fixed schemas, over one encrypted TCP port.

Every message carries the host epoch: the number that the controller gave the agent when it joined. After a break the agent
joins again without workers and gets a new one; what carries an older number is dropped at both ends.
"""

from __future__ import annotations

import re
from typing import Any, Literal, TypeVar

import msgspec

from jsrl.errors import CodecError
from jsrl.launch.hosts.pages import PAGE_BYTES
from jsrl.runs.names import Registration

MAX_MESSAGE_BYTES = 32 << 20
CHUNK_BYTES = 1 << 20  # of an archive, or of a player
BEAT_S = 0.5
LEASE_S, LOST_S = 15.0, 20.0  # silence after which an agent ends its workers; after which the controller replaces them
MAX_TAIL_CHARS = 64_000
_WORKER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_STREAM = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")
_WANTED = re.compile(r"([A-Za-z0-9_][A-Za-z0-9_.-]{0,63}/)?[0-9]{1,19}")
_PLAYER = re.compile(r"([A-Za-z0-9_][A-Za-z0-9_.-]{0,63}/)?[0-9]{1,19}-[0-9a-f]{32}\.npz")
_PAGE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}/(ledger|[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}\.page)")
_KEPT = re.compile(r"([A-Za-z0-9_%@+=,-][A-Za-z0-9_%@+=,.-]{0,127}/){1,11}[A-Za-z0-9_%@+=,-][A-Za-z0-9_%@+=,.-]{0,127}")
_GUEST = re.compile(r"[0-9a-f]{80}")
_KIND = re.compile(r"[A-Za-z_][\w.-]*(:[A-Za-z_]\w*)?")
VARIABLES = frozenset(  # of a worker's environment, which decide on devices, threads and the cache of programs
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "JAX_PLATFORMS", "CUDA_VISIBLE_DEVICES",
     "XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_PREALLOCATE", "PJRT_NPROC", "XLA_FLAGS")
)  # fmt: skip


class Up(msgspec.Struct, tag_field="kind", forbid_unknown_fields=True):
    """What an agent says."""

    epoch: int


class Hello(Up, tag="hello"):
    """An agent wants to join; it has no workers.

    Attributes:
      session: a number of this agent process that nobody can guess. name, boot: of the host, and of its last start.
      versions: of jsrl, Python and jax. code: digest of jsrl's sources. folder: where it keeps a run's files.
      address: its IP address as the controller's host sees it. cores, memory_mb, gpus, shm_mb: see HostFacts.
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
    gpus: int = 0
    shm_mb: int = 0


class Usage(msgspec.Struct, forbid_unknown_fields=True):
    """What is known of a worker that lives: its process id, and what it takes of its host (see ResourceUsage)."""

    worker: str
    incarnation: int
    pid: int | None
    state: str = ""
    cpu_s: float = 0.0
    resident_bytes: int = 0
    threads: int = 0


class Beat(Up, tag="beat"):
    """Every BEAT_S: the newest heartbeat of each worker and the reports of all, as they came, and now and then usage.

    Attributes:
      sent_s: the agent's clock, which the answer repeats: the lease runs from there.
      names: under which living workers of the host have bound streams, all of them. wanted: frozen players that they wait
        for, as POLICY/VERSION, or VERSION of the first policy.
      leaves: why the host wants to leave once its workers have moved; empty: it stays. relays: params stream -> where this
        host passes it on.
    """

    sent_s: float
    words: list[bytes]
    usage: list[Usage] = []
    names: list[Registration] = []
    wanted: list[str] = []
    leaves: str = ""
    relays: dict[str, str] = {}

    def __post_init__(self) -> None:
        """Refuse what could be a path to anything else."""
        wrong = [wanted for wanted in self.wanted if not _WANTED.fullmatch(wanted) or ".." in wanted]
        if wrong:
            raise ValueError(f"player {wrong[0][:80]!r}")


class Pages(Up, tag="pages"):
    """What has changed of what workers of the host count of the streams that they read: HOP/FILE -> page."""

    pages: dict[str, bytes]

    def __post_init__(self) -> None:
        """Refuse what could be a path to anything else."""
        wrong = [n for n, page in self.pages.items() if not _PAGE.fullmatch(n) or ".." in n or len(page) != PAGE_BYTES]
        if wrong:
            raise ValueError(f"page {wrong[0][:80]!r}")


class Kept(Up, tag="kept"):
    """A part of a file that a worker of this host keeps; see jsrl.launch.hosts.kept.Part."""

    name: str
    at: int
    part: bytes
    last: bool

    def __post_init__(self) -> None:
        """Refuse what could be a path to anything else."""
        _check_kept(self.name)


class Said(Up, tag="said"):
    """What workers said and cannot wait, as it came."""

    words: list[bytes]


class Exited(Up, tag="exited"):
    """A worker has ended: its exit status, the same for people, the end of its log."""

    worker: str
    incarnation: int
    status: int | None
    text: str
    tail: str


class Answer(Up, tag="answer"):
    """The answer to Ask."""

    number: int
    text: str


class Leaving(Up, tag="leaving"):
    """The agent was told to end; it has no workers any more."""

    text: str


class Down(msgspec.Struct, tag_field="kind", forbid_unknown_fields=True):
    """What the controller says."""

    epoch: int


class Welcome(Down, tag="welcome"):
    """The host belongs to the run now; without a word for `lease_s` seconds it ends its workers."""

    lease_s: float


class Refused(Down, tag="refused"):
    """The agent cannot join, or has lost its place: it ends its workers and itself."""

    text: str


class Alive(Down, tag="alive"):
    """The controller has heard the beat that was sent at `sent_s` by the agent's clock."""

    sent_s: float


class Keys(Down, tag="keys"):
    """The host's own keys of the run's streams: contents of the files `client.key` and `server.key`."""

    client: bytes
    server: bytes


class Code(Down, tag="code"):
    """A part of the archive of the user's modules with this digest; `last` completes it."""

    digest: str
    part: bytes
    last: bool


class Names(Down, tag="names"):
    """All names of the run, and the keys of hosts that streams let in, as their files are called (see show_guests).

    parents: params stream -> where this host fetches it for its workers, the nearest address first.
    """

    entries: list[Registration]
    guests: list[str]
    parents: dict[str, list[str]] = {}

    def __post_init__(self) -> None:
        """Refuse what could be a path."""
        wrong = [guest for guest in self.guests if not _GUEST.fullmatch(guest)]
        if wrong:
            raise ValueError(f"guest {wrong[0][:80]!r}")
        wrong = [name for name in self.parents if not _STREAM.fullmatch(name) or ".." in name]
        if wrong:
            raise ValueError(f"stream {wrong[0][:80]!r}")


class Player(Down, tag="player"):
    """A part of a frozen player's file, from a byte on; `last` completes it. name: below the folder of players."""

    name: str
    at: int
    part: bytes
    last: bool

    def __post_init__(self) -> None:
        """Refuse what could be a path to anything else."""
        if not _PLAYER.fullmatch(self.name) or ".." in self.name:
            raise ValueError(f"player {self.name[:80]!r}")


class KeptBefore(Down, tag="kept_before"):
    """A part of a file that an earlier life of a worker kept; see jsrl.launch.hosts.kept.Part."""

    name: str
    at: int
    part: bytes
    last: bool

    def __post_init__(self) -> None:
        """Refuse what could be a path to anything else."""
        _check_kept(self.name)


class Begin(Down, tag="begin"):
    """Start a life of a worker, once: its job as JSON, and the archive of the user's modules.

    keeps: folders below the run's in which it keeps files, whose changes the agent sends.
    """

    worker_kind: str
    worker: str
    incarnation: int
    job: bytes
    variables: dict[str, str]
    code: str = ""
    forks: bool = False
    keeps: list[str] = []

    def __post_init__(self) -> None:
        """Refuse what could be anything but a worker of jsrl."""
        _check_name(self.worker, self.incarnation)
        unknown = sorted(set(self.variables) - VARIABLES)
        if not _KIND.fullmatch(self.worker_kind) or unknown:
            raise ValueError(f"{f'variables {unknown[:3]}' if unknown else f'kind {self.worker_kind[:80]!r}'}")
        if self.code and not re.fullmatch(r"[0-9a-f]{64}", self.code):
            raise ValueError(f"digest {self.code[:80]!r}")
        for folder in self.keeps:
            _check_kept(folder)


class Signal(Down, tag="signal"):
    """Do something to a worker."""

    worker: str
    incarnation: int
    what: Literal["stop", "kill", "pause", "resume"]


class Ask(Down, tag="ask"):
    """Say the last `amount` lines of a worker's log, or within `amount` seconds what its threads do."""

    number: int
    worker: str
    incarnation: int
    what: Literal["tail", "stacks"]
    amount: float


class Tell(Down, tag="tell"):
    """Pass a command of the control road on to a worker."""

    worker: str
    incarnation: int
    frame: bytes


class Farewell(Down, tag="farewell"):
    """The run has ended; so do the agent and its workers."""

    text: str


AnyUp = Hello | Beat | Pages | Kept | Said | Exited | Answer | Leaving
AnyDown = Welcome | Refused | Alive | Keys | Code | Names | Player | KeptBefore | Begin | Signal | Ask | Tell | Farewell
Message = TypeVar("Message")


def decode(frame: Any, kinds: type[Message] | Any) -> Message:
    """Return the message that a frame holds.

    Raises:
      CodecError: it holds none of these kinds.
    """
    try:
        return msgspec.msgpack.decode(frame, type=kinds)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise CodecError(f"not a message between an agent and its controller: {error}") from None


def encode(message: Up | Down) -> bytes:
    """Return the frame of a message."""
    return msgspec.msgpack.encode(message)


def _check_kept(name: str) -> None:
    if not _KEPT.fullmatch(name) or ".." in name:
        raise ValueError(f"file {name[:80]!r}")


def _check_name(worker: str, incarnation: int) -> None:
    if not _WORKER.fullmatch(worker) or ".." in worker or not 0 <= incarnation < 1 << 31:
        raise ValueError(f"worker {worker[:80]!r}, incarnation {incarnation}")
