"""Streams as values: connections between workers, and one worker's view of a stream. No addresses are made here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from jsrl.types import Array, ArraySpec, Trajectory

StreamType = Literal["samples", "inference", "params", "ranks"]
GENERATION = ".generation"  # ends the name of a generation, see generation_at
POLICY = "policy"  # name of the policy of a single-policy experiment


@dataclass(frozen=True)
class Stream:
    """One stream of a dataflow.

    Attributes:
      name: of the stream. type: samples (trajectories, batches or priorities), inference (requests and replies), params, or
        ranks (of one learner, which agree on each update).
      policy: whose rows, actions or params it carries.
      schema: of samples: `trajectory`, `batches` (of replay workers) or `priorities` (back to them).
      groups: of samples and inference: the groups of environments that it carries. Each has one writer.
      blocks: of samples: trajectories of one group that may be in flight at once.
      routing: of samples with several readers: `by-group` (each group has one reader), or `broadcast` (every reader gets all).
      failover: of inference: whether clients may use another server while their own is away.
      transport: a user's own, `module:NAME` of a jsrl.transport.table.Transport; empty: chosen by the experiment and
        the hosts of its ends.
      feedback: flows against the data (priorities); it does not decide which worker stops first.
    """

    name: str
    type: StreamType
    policy: str = POLICY
    schema: Literal["trajectory", "batches", "priorities"] = "trajectory"
    groups: tuple[int, ...] = ()
    blocks: int = 2
    routing: Literal["by-group", "broadcast"] = "by-group"
    failover: bool = True
    feedback: bool = False
    transport: str = ""


@dataclass(frozen=True)
class Peer:
    """A worker at the other end of a stream.

    Attributes:
      worker: its name. groups: those that it writes, reads, requests or answers first. leg: of a reader of samples: the name
        under which its trajectories are counted; empty: they are not counted.
    """

    worker: str
    groups: tuple[int, ...] = ()
    leg: str = ""


@dataclass(frozen=True)
class End:
    """One worker's end of a stream.

    Attributes:
      stream: the stream. groups: of this worker. address: where this worker binds the stream; empty: it connects.
      peers: the workers at the other end, in this worker's order of preference.
      leg: of a reader of samples: the name under which its trajectories are counted.
    """

    stream: Stream
    groups: tuple[int, ...] = ()
    address: str = ""
    peers: tuple[Peer, ...] = ()
    leg: str = ""

    @property
    def blocks_per_producer(self) -> int:
        """Return how many trajectories of one writer may be in flight at once."""
        return max((len(peer.groups) for peer in self.peers), default=1) * self.stream.blocks

    @property
    def clients_per_group(self) -> int:
        """Return the largest number of clients of this inference server that request the same group."""
        counts = Counter(group for peer in self.peers for group in peer.groups)
        return max(counts.values(), default=1)


def name_at(stream: str, worker: str) -> str:
    """Return the name under which a worker registers its bound stream."""
    return f"{stream}.{worker}"


def generation_at(stream: str, worker: str) -> str:
    """Return the name under which the reader of a stream publishes the generation that trains on its rows."""
    return f"{name_at(stream, worker)}{GENERATION}"


class ReplayBatch(NamedTuple):
    """A batch of windows: `windows` [W+1, M, ...], `ids` int64 [M].

    counters: int64 [3], when the batch was drawn: number of the replay worker, env steps inserted, windows drawn.
    """

    windows: Trajectory
    ids: Array
    counters: Array


class Feedback(NamedTuple):
    """What an update found for windows `ids` int64 [M]: `arrays` [M, ...] by name; `priorities` are float32."""

    ids: Array
    arrays: Mapping[str, Array]


def replay_batch_spec(windows: Trajectory) -> ReplayBatch:
    number = windows.is_first.shape[1]
    return ReplayBatch(windows, ArraySpec((number,), "int64"), ArraySpec((3,), "int64"))


def priorities_spec(number: int) -> Any:
    return Feedback(ArraySpec((number,), "int64"), {"priorities": ArraySpec((number,), "float32")})
