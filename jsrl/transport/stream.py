"""Streams as values: what joins workers, and what one worker knows of a stream that it uses. No addresses are made here."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal

Sort = Literal["samples", "inference", "params", "ranks"]
POLICY = "policy"  # the name of the one policy of an experiment


@dataclass(frozen=True)
class Stream:
    """One stream of a dataflow.

    Attributes:
      name: of the stream. sort: samples (trajectories, batches or priorities), inference (requests and replies), params, or
        ranks (of one learner, which agree on each update).
      policy: whose rows, actions or params it carries.
      schema: of samples: `trajectory`, `batches` (of replay workers) or `priorities` (back to them).
      groups: of samples and inference: the groups of environments that it carries. Each has one writer.
      blocks: of samples: trajectories of one group that may be on their way at once.
      routing: of samples with several readers: `by-group` (each group has one reader), or `broadcast` (every reader gets all).
      failover: of inference: whether clients may go to another server while their own is away.
      road: a user's own, `module:NAME` of a jsrl.transport.roads.Road; empty: as the experiment and the hosts of its ends say.
      feedback: against the flow of the data (priorities); it does not decide who stops first.
    """

    name: str
    sort: Sort
    policy: str = POLICY
    schema: Literal["trajectory", "batches", "priorities"] = "trajectory"
    groups: tuple[int, ...] = ()
    blocks: int = 2
    routing: Literal["by-group", "broadcast"] = "by-group"
    failover: bool = True
    feedback: bool = False
    road: str = ""


@dataclass(frozen=True)
class Peer:
    """A worker at the other end of a stream.

    Attributes:
      worker: its name. groups: those that it writes, reads, asks for or answers first. hop: of a reader of samples, under
        which trajectories to it are counted; empty: they are not.
    """

    worker: str
    groups: tuple[int, ...] = ()
    hop: str = ""


@dataclass(frozen=True)
class End:
    """One worker's end of a stream.

    Attributes:
      stream: the stream. groups: of this worker. address: where this worker binds the stream; empty: it connects.
      peers: the workers at the other end, those that this worker connects to first in order of preference.
      hop: of a reader of samples, under which what it reads is counted.
    """

    stream: Stream
    groups: tuple[int, ...] = ()
    address: str = ""
    peers: tuple[Peer, ...] = ()
    hop: str = ""

    @property
    def blocks_per_producer(self) -> int:
        """Return the trajectories of one writer that may be on their way at once."""
        return max((len(peer.groups) for peer in self.peers), default=1) * self.stream.blocks

    @property
    def askers_per_group(self) -> int:
        """Return how many of the clients of this inference server ask for one and the same group, at most."""
        counts = Counter(group for peer in self.peers for group in peer.groups)
        return max(counts.values(), default=1)


def name_at(stream: str, worker: str) -> str:
    """Return the name under which a worker registers where it has bound a stream."""
    return f"{stream}.{worker}"


def epoch_at(stream: str, worker: str) -> str:
    """Return the name under which the reader of a stream says which epoch its rows are trained in."""
    return f"{name_at(stream, worker)}.epoch"
