"""A policy's two streams in an actor: connected when its environments exist, and again when another worker was replaced."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from jsrl.errors import StreamClosed, StreamTimeout, UnknownPolicy
from jsrl.references.importing import import_target
from jsrl.services.metrics.metrics import Meter
from jsrl.transport.base import Block, InferenceClient
from jsrl.workers.ends import Servers, Writer
from jsrl.workers.jobs import Job
from jsrl.workers.peers import POLL_S

if TYPE_CHECKING:
    from jsrl.workers.acting import InlineInference

INLINE = "jsrl.workers.acting:own_inference"  # imported only where an actor acts itself, which needs jax


class Producer(Protocol):
    """What an actor uses of a SampleProducer."""

    def reserve(self, timeout_s: float) -> Block: ...

    def close(self) -> None: ...


class Ends(NamedTuple):
    """Both ends, as of one session.

    Attributes:
      generation: of the learner that gets the trajectories; params of an earlier generation start no trajectory.
      new_learner: since the session before.
    """

    client: InferenceClient
    producer: Producer
    generation: int = 0
    new_learner: bool = False


class Streams:
    """The two streams of one policy, over all sessions. This class is for those of one program, where no peer is replaced.

    Args:
      connect: group sizes -> both ends.
    """

    server_text = ""

    def __init__(self, connect: Callable[[dict[int, int]], tuple[InferenceClient, Producer]]) -> None:
        self._connect = connect
        self._client: InferenceClient | None = None

    def open(self, group_sizes: dict[int, int]) -> Ends:
        """Return the first ends, waiting for their peers to come up; `group_sizes`: group -> its number of environments."""
        self._client, self._producer = self._connect(group_sizes)
        return Ends(self._client, self._producer)

    def connect(self, timeout_s: float, lost: StreamClosed) -> Ends | None:
        """Return the ends of the next session; None: a peer is away or does not answer: call again.

        Args:
          lost: ended the session before.

        Raises:
          StreamClosed: they cannot be connected again.
        """
        raise lost

    def check(self) -> None:
        """Check that the other ends are alive, when nothing has arrived for a while. Raises StreamClosed."""

    def check_home(self) -> None:
        """While a substitute server acts, check whether the own server is back. Raises StreamClosed if it is."""

    def close(self) -> None:
        """Close both; committed trajectories still arrive."""
        if self._client is not None:
            self._client.close()
            self._producer.close()


class ActorStreams(Streams):
    """The streams of an actor of a run."""

    def __init__(self, job: Job, meter: Meter) -> None:
        self._job, self._meter = job, meter
        self._writer = Writer(job, "samples", job.schemas.trajectory)
        self._servers: Servers | None = None  # None: the actor acts itself
        self._inline: InlineInference | None = None  # None: servers act
        self._client: InferenceClient | None = None
        # replacements of readers so far and generation, as of the last connection
        self._learner: tuple[int, int] | None = None
        self._poll_at_s = 0.0

    @property
    def server_text(self) -> str:  # type: ignore[override]
        return f" with {self._servers.peer.known.name.partition('.')[2]}" if self._servers is not None else ""

    def open(self, group_sizes: dict[int, int]) -> Ends:
        job = self._job
        self._writer.open()
        if not job.has("inference"):
            inline = self._inline = import_target(INLINE)(job, group_sizes, self._meter.phases)
            return self._ends(inline)
        self._servers = Servers(job, "inference", group_sizes)
        return self._ends(self._servers.first())

    def connect(self, timeout_s: float, lost: StreamClosed) -> Ends | None:
        if self._job.in_process:  # where no worker is replaced
            raise lost
        self._leave_server()
        if not self._writer.connect(timeout_s):
            return None
        client = self._inline if self._servers is None else self._servers.connect(timeout_s)
        return None if client is None else self._ends(client)

    def _ends(self, client: InferenceClient) -> Ends:
        known, self._learner = self._learner, (self._writer.renewed, self._writer.read_generation())
        self._client = client
        return Ends(client, self._writer, self._learner[1], known not in (None, self._learner))

    def _leave_server(self) -> None:
        """Drop earlier requests; note if the client was cut off from a server on another host."""
        if self._inline is not None:
            self._inline.drop()
            return
        client, self._client = self._client, None
        if client is None:
            return
        if self._servers is not None and self._servers.peer.is_elsewhere and _is_broken(client):
            self._servers.peer.mark_suspect(self._servers.peer.known)
        client.close()

    def check(self) -> None:
        self._writer.check()
        if self._servers is not None:
            self._servers.peer.check()
        now_s = time.monotonic()
        if self._learner is not None and now_s >= self._poll_at_s:
            self._poll_at_s = now_s + POLL_S
            if self._writer.read_generation() > self._learner[1]:  # as the workers between it and this actor say
                raise StreamClosed("a restarted learner now trains on this actor's samples.")

    def check_home(self) -> None:
        if self._servers is not None and self._servers.peer.is_away:
            self._servers.peer.check()

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
        self._writer.close()


def _is_broken(client: InferenceClient) -> bool:
    try:
        client.receive(0.0)
    except StreamClosed:
        return True
    except (StreamTimeout, UnknownPolicy):
        return False
    return False
