"""Values that describe a running worker: the name of a stream that it bound, its use of its machine, and its end.

They are apart from the code that makes them, so that state machines can import them without files, sockets or clocks.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_LOG_BYTES = 16 << 20  # of a worker's log, which is cut then


@dataclass(frozen=True)
class Registration:
    """Entry of a name: address, incarnation of the worker, its process and host (empty: copied from another host)."""

    name: str
    address: str
    incarnation: int
    pid: int
    host: str


def log_name(worker: str) -> str:
    """Return the name of a worker's log, below the run folder or the folder of its host's agent."""
    return f"logs/{worker}.log"


@dataclass(frozen=True)
class Exit:
    """How a worker ended: its exit status (negative: the signal that killed it; None: unknown), and a text about it.

    `with_host`: its host was lost, which is not the worker's fault.
    """

    status: int | None
    text: str
    with_host: bool = False


@dataclass(frozen=True)
class ResourceUsage:
    """The resources that a worker uses.

    Attributes:
      state: such as running, sleeping or `stopped`. cpu_s: CPU time since its start, including all processes that it
        started, running or ended. resident_bytes: its own memory. threads: their number.
    """

    state: str
    cpu_s: float
    resident_bytes: int
    threads: int
