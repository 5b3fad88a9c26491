"""The protocols of streams: samples (one way), inference (request and reply), params (latest wins).

Each has an in-process, a shared-memory and a ZeroMQ implementation, which all pass the same contract suite
(tests/contracts). Every wait takes `timeout_s` and ends in StreamTimeout or StreamClosed. A stream end is used from one
thread at a time. Arrays are passed as trees with a schema (jsrl.types.ArraySpec leaves); the two ends compare schemas
when they connect, and SpecMismatch names the leaf that differs.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from jsrl.errors import StreamTimeout
from jsrl.types import Array, Trajectory, Tree


def remaining(deadline: float) -> float:
    """Return the seconds left until a `time.monotonic()` deadline, not below 0."""
    return max(0.0, deadline - time.monotonic())


# -- samples ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ProducerId:
    """A producer: `name` such as `actor-3`; `incarnation` rises with every restart."""

    name: str
    incarnation: int


class Origin(NamedTuple):
    """The worker incarnation that made a trajectory, and the trajectory's number in its group.

    Within an incarnation and a group, trajectories with consecutive numbers join: row T of one is row 0 of the next. A
    discarded trajectory leaves a gap in the numbers.
    """

    producer: ProducerId
    sequence: int


@dataclass(frozen=True)
class Entry:
    """A trajectory's entry in the ledger of one leg, with its maker.

    Attributes:
      producer: the sender on this leg. group: of environments, the same on every leg.
      sequence: number in this group on the producer's connection, from 0.
      made_as: its origin, if it differs from this producer and sequence.
    """

    producer: ProducerId
    group: int
    sequence: int
    made_as: Origin | None = None

    @property
    def origin(self) -> Origin:
        """Return the maker of the trajectory, however many workers passed it on."""
        return self.made_as or Origin(self.producer, self.sequence)


class Block(Protocol):
    """Memory for one trajectory, written in place."""

    trajectory: Trajectory  # writable arrays, zero-filled where never written

    def commit(self, group: int, origin: Origin | None = None) -> Entry:
        """Send the trajectory; the arrays must not be touched afterwards. Counted as produced.

        Args:
          group: of its environments. origin: of a trajectory that was made elsewhere; None: this producer made it.
        """
        ...

    def abandon(self) -> None:
        """Free the memory unsent; not counted as produced."""
        ...


class SampleProducer(Protocol):
    """The writing end of a sample stream."""

    def reserve(self, timeout_s: float) -> Block:
        """Return memory for a trajectory. Several blocks may be open at once (one per group of the environment ring).

        Raises:
          StreamTimeout: the consumer freed no memory in time (back-pressure).
          StreamClosed: the consumer is gone.
        """
        ...

    def put(self, trajectory: Trajectory, group: int, timeout_s: float) -> Entry:
        """Reserve, copy and commit."""
        ...

    def mark_lost(self, reason: str) -> None:
        """Mark the consumer as gone for ever, so that `close` does not wait for it."""
        ...

    def close(self) -> None:
        """Close; committed trajectories still arrive."""
        ...


class Lease(NamedTuple):
    """One trajectory lent by the consumer's end: read-only views, valid until `release`.

    ids: int64 [M] of windows that replay workers drew, to be returned with new priorities; a copy. Else empty.
    """

    trajectory: Trajectory
    entry: Entry
    ids: Array = ()


class SampleConsumer(Protocol):
    """The reading end of a sample stream; it owns the memory, and counts arrivals and their outcomes."""

    address: str  # what producers connect to

    @property
    def ledger(self) -> Ledger:
        """Return the counts of all trajectories received so far, by outcome."""
        ...

    def get(self, timeout_s: float) -> Lease:
        """Return the next committed trajectory, in order per (producer, group).

        The arrays are read-only views of memory that the producer may write again after `release`. JAX on CPU reads numpy
        arrays without copying them: release only once nothing computes with them any more (copy to a staging buffer first).

        Raises:
          StreamTimeout: none was committed in time. StreamClosed: this end is closed.
          SpecMismatch: a producer with another schema tried to join (raised once).
        """
        ...

    def release(self, lease: Lease, outcome: str = "consumed") -> None:
        """Free the memory of a lease that nothing reads any more; `outcome` is `consumed` or a reason for dropping."""
        ...

    def pending(self) -> int:
        """Return the number of committed trajectories that wait (the queue's depth)."""
        ...

    def fence(self, producer: ProducerId) -> None:
        """Reject a dead incarnation from now on; its earlier commits are still delivered."""
        ...

    def close(self) -> None:
        """Drop what is in flight (reason `closed`) and free the memory."""
        ...


@dataclass
class Ledger:
    """A consumer's counts: trajectories received, and their outcomes.

    Attributes:
      in_flight: trajectories waiting in its queue or lent, when last counted (`hold`); never computed from the others.
    """

    received: int = 0
    consumed: int = 0
    dropped: dict[str, int] | None = None
    in_flight: int = 0

    def join(self) -> None:
        """Count a connection."""

    def mark(self, changing: bool) -> None:
        """Record that the counts of one trajectory are about to change, or have changed."""

    def arrive(self) -> None:
        self.received += 1

    def hold(self, count: int) -> None:
        """Record how many trajectories the queue holds, waiting or lent."""
        self.in_flight = count

    def finish(self, outcome: str, count: int = 1) -> None:
        """Count the outcome of `count` trajectories: `consumed`, or a reason for dropping."""
        if outcome == "consumed":
            self.consumed += count
        else:
            self.drop(outcome, count)

    def drop(self, reason: str, count: int = 1) -> None:
        self.dropped = self.dropped or {}
        self.dropped[reason] = self.dropped.get(reason, 0) + count

    @property
    def counts(self) -> dict[str, Any]:
        dropped = dict(self.dropped or {})
        return {"received": self.received, "consumed": self.consumed, "in_flight": self.in_flight, "dropped": dropped}

    @property
    def balanced(self) -> bool:
        """Return whether outcomes and queue add up to the received trajectories. The producers count what they produced."""
        return self.received == self.consumed + sum((self.dropped or {}).values()) + self.in_flight


# -- inference --------------------------------------------------------------------------------------------------------


class InferenceSpec(NamedTuple):
    """Schema of an inference stream, for one environment (no batch axis): ArraySpec leaves."""

    observation: Tree
    action: Tree
    log_prob: Tree
    extras: Tree
    core: Tree


LATEST_VERSION = -1
"""In a request: act with the newest params."""
NOT_PLAYED = -2
"""In a request: no action in this row; its reply is zeros."""


class Request(NamedTuple):
    """A request for the actions of one group of environments.

    Attributes:
      observation: tree of [B, ...]. is_first: bool [B].
      min_updates: the params must have at least this many updates (-1: any); the server waits for them. This is how
        a synchronous run gets a whole trajectory from one version.
      step: number of this request in its group (from 0); the group's key depends on it.
      wants_core: row 0 of a trajectory: the reply has the core from before this row.
      policy: int32 [B], the number of the policy that acts in each row (0 if there is one policy); a client may pass one
        int for all rows.
      version: int64 [B], [B, N] where a group has N agents: the frozen version that acts in each row, LATEST_VERSION or
        NOT_PLAYED; a client may pass one int for all rows.
    """

    observation: Tree
    is_first: Array
    min_updates: int = -1
    step: int = 0
    wants_core: bool = False
    policy: Array | int = 0
    version: Array | int = LATEST_VERSION


class Reply(NamedTuple):
    """Actions for one group; arrays are views, valid until the group's next `send`.

    Attributes:
      action [B, ...], log_prob [B], extras (tree of [B, ...]): as ActOutput.
      version: int64 [B], of the newest params when the rows were acted on: the version of training
        rows. policy: int32 [B], that chose the actions. A server may pass one int for all rows for either.
      core: tree of [B, ...] if the request wanted it, else unspecified.
    """

    action: Array
    log_prob: Array
    extras: Tree
    version: Array | int
    core: Tree = ()
    policy: Array | int = 0


class InferenceClient(Protocol):
    """The client end: one request in flight per group."""

    def send(self, group: int, request: Request) -> None:
        """Request a group's actions; the request's arrays may be reused at once."""
        ...

    def receive(self, timeout_s: float) -> tuple[int, Reply]:
        """Return (group, reply) of the group that is answered first.

        Raises:
          StreamTimeout: nothing came in time. StreamClosed: the server is gone.
          UnknownPolicy: a group requested a policy that is not served; the group may send another request.
        """
        ...

    def close(self) -> None: ...


class ClientRequest(NamedTuple):
    """A request as the server sees it; arrays are views, valid until it is replied to."""

    client: ProducerId
    group: int
    request: Request


class InferenceServer(Protocol):
    """The server end.

    Attributes:
      waitable: object for zmq.Poller that signals requests, among others; None: requests come from this process.
    """

    address: str
    waitable: Any

    def collect(self, max_rows: int, max_wait_s: float) -> list[ClientRequest]:
        """Return requests that have arrived, whole groups, at most `max_rows` rows (but at least one request).

        Waits up to `max_wait_s` for the first one, then takes those that are there; returns [] when
        nothing came.
        """
        ...

    def reply(self, request: ClientRequest, reply: Reply) -> None:
        """Answer one request (arrays are copied out)."""
        ...

    def refuse(self, request: ClientRequest, served: Mapping[int, str], problem: str = "") -> None:
        """Answer one request that cannot be served with UnknownPolicy.

        Args:
          served: the policies that are served, number -> name. problem: what is wrong, where it is not the policy.
        """
        ...

    def departed(self, poll: bool = True) -> list[ProducerId]:
        """Return clients that left or were replaced since the last call, so that their cores can be deleted.

        Args:
          poll: first check for new departures. Without it, these are the departures before the last `collect`: a
            client in the list may have reconnected, and its requests from that `collect` are valid.
        """
        ...

    def close(self) -> None:
        """Close; clients get StreamClosed."""
        ...


# -- params -----------------------------------------------------------------------------------------------------------


class ParamsPublisher(Protocol):
    """The end where a learner publishes params; never waits for a reader."""

    address: str  # what subscribers connect to

    def publish(self, policy: int, version: int, values: list[np.ndarray]) -> None:
        """Make these leaves (order of jsrl.types.leaves) the latest of `policy`; copied before it returns."""
        ...

    def close(self) -> None:
        """Close; the last params stay readable until the run ends."""
        ...


class ParamsSubscriber(Protocol):
    """The end from which acting workers read the latest params."""

    def poll(self, policy: int = 0) -> tuple[int, list[np.ndarray]] | None:
        """Return (version, leaves, freshly copied) when newer than the last poll, else None."""
        ...

    def wait(self, policy: int, min_updates: int, timeout_s: float) -> None:
        """Block until a version with at least `min_updates` updates can be polled. Raises StreamTimeout."""
        ...

    def close(self) -> None: ...


class FirstRank(Protocol):
    """The binding end of a stream of type `ranks`: small messages between a learner's first rank and the others.

    Attributes:
      address: for the others.
    """

    address: str

    def receive(self, timeout_s: float) -> list[tuple[bytes, bytes]]:
        """Return (sender, message) pairs; wait up to `timeout_s` for the first."""
        ...

    def speaks_for(self, sender: bytes, worker: str) -> bool:
        """Return whether a sender may use the name of a worker."""
        ...

    def send(self, receiver: bytes, message: bytes) -> None: ...

    def close(self) -> None: ...


class OtherRank(Protocol):
    """A connecting end of a stream of type `ranks`."""

    def send(self, message: bytes) -> None: ...

    def receive(self, timeout_s: float) -> bytes | None:
        """Return a message, waiting up to `timeout_s`; None: none came."""
        ...

    def poll(self) -> None:
        """Check the connection.

        Raises:
          AccessDenied: the other end rejects this end's key, or the reverse.
        """
        ...

    def no_answer(self, timeout_s: float) -> StreamTimeout: ...

    def close(self) -> None: ...
