"""An actor's two streams: connected when its environments exist, reconnected when another worker was replaced."""

from __future__ import annotations

import time
from typing import Any

from jsrl.errors import StreamClosed, StreamTimeout, UnknownPolicy
from jsrl.services.metrics.metrics import Meter
from jsrl.services.runs.values import Registration
from jsrl.transport.base import InferenceClient, SampleProducer
from jsrl.transport.door.hello import Check
from jsrl.transport.table import connect_inference
from jsrl.workers.actor.kind import plays_frozen
from jsrl.workers.ends import names_of_peers
from jsrl.workers.following import Writer
from jsrl.workers.jobs import CONNECT_TIMEOUT_S, Job
from jsrl.workers.peers import (
    CLOSED_S,
    LOOK_S,
    BriefRetry,
    FailoverPeer,
    Peer,
    first_present,
    meet_present,
    stays,
)


class ActorStreams:
    """The ends of an actor's streams, and the workers at the other ends.

    Args:
      job: the actor's. meter: records the phases of an actor that acts itself.

    Attributes:
      epoch: of the learner that gets the trajectories; params of an earlier epoch start no trajectory.
      new_consumer: whether a new incarnation of a reader of `samples` was found; the code that handles it resets it.
    """

    def __init__(self, job: Job, meter: Meter) -> None:
        self._job, self._meter = job, meter
        self.epoch = 0
        self.new_consumer = False
        self._client: Any = None
        self._frozen: Any = None  # acts for frozen players; None: the server does
        self._writer = Writer(job, "samples", job.schemas.trajectory)
        self._producer: SampleProducer = self._writer
        self._server: FailoverPeer | None = None  # None: the actor acts itself
        self._renewed = False  # the producer has been reconnected, the client not yet
        self._patience = BriefRetry()
        self._look_at_s = 0.0
        self._present: list[Registration] = []

    @property
    def server_text(self) -> str:
        return f" with {self._server.known.name.partition('.')[2]}" if self._server is not None else ""

    def open(self, group_sizes: dict[int, int]) -> tuple[InferenceClient, SampleProducer]:
        """Return both ends, waiting for their peers to come up; `group_sizes`: group -> its number of environments."""
        job = self._job
        self._group_sizes = group_sizes
        self._writer.open()
        self._peers: list[Peer] = list(self._writer.peers)
        if not job.has("inference"):
            from jsrl.workers.inline import inline_client

            self._client = inline_client(job, group_sizes, self._meter.phases)
        else:
            if plays_frozen(job.experiment):
                from jsrl.workers.inline import frozen_inline

                self._frozen = frozen_inline(job, group_sizes, self._meter.phases)
            servers = names_of_peers(job.end("inference"))
            # At the start of a run each actor waits for its own server, which is still starting.
            present = first_present(job.names, servers) if job.incarnation else None
            self._server = FailoverPeer(job.names, servers, present or job.find(servers[0]))
            self._peers.append(self._server)
            self._client = meet_present(self._server, CONNECT_TIMEOUT_S, self._connect_inference)
        self.epoch = self._writer.read_epoch()
        return self._client, self._producer

    def _connect_inference(self, found: Registration, timeout_s: float, check: Check = lambda: None) -> InferenceClient:
        job = self._job
        sizes, keys = self._group_sizes, job.keys
        to = connect_inference(found.address, job.schemas.act, job.producer, sizes, timeout_s, keys=keys, check=check)
        return to if self._frozen is None else self._frozen.over(to)

    def check(self) -> None:
        """Check that the other ends are alive, when nothing has arrived for a while. Raises StreamClosed."""
        for peer in self._peers:
            peer.check()
        now_s = time.monotonic()
        if now_s >= self._look_at_s:
            self._look_at_s = now_s + LOOK_S
            if self._writer.read_epoch() > self.epoch:  # set by the workers between this actor and the learner
                self._renewed = self.new_consumer = True
                raise StreamClosed("a restarted learner now trains on this actor's samples.")

    def check_home(self) -> None:
        """While a substitute server acts, check whether the own server is back. Raises StreamClosed if it is."""
        if self._server is not None and self._server.is_away:
            self._server.check()

    def look(self, timeout_s: float) -> bool | None:
        """Return whether to reconnect: a peer was replaced, or the server's connection broke; None: a peer is away.

        A server that was paused, or cut off for a while, is the same one as before.
        """
        broke = self._server is not None and self._client_broke()
        if self._server is not None and self._server.is_elsewhere and broke:
            self._server.mark_suspect()
        found = [peer.find(timeout_s) for peer in self._peers]
        self._present = [entry for entry in found if entry is not None]
        if len(self._present) < len(found):
            self._patience.end()
            return None
        known = (peer.is_known(entry) for peer, entry in zip(self._peers, self._present, strict=True))
        return self._renewed or broke or not all(known)

    def _client_broke(self) -> bool:
        try:
            self._client.receive(0.0)  # a pending reply is requested again in any case
        except StreamClosed:
            return True
        except (StreamTimeout, UnknownPolicy):
            return False
        return False

    def wait(self, error: StreamClosed) -> None:
        """Wait briefly for unchanged peers, for at most CLOSED_S in total.

        Raises:
          StreamClosed: they are still there; `error` is why the streams were lost.
        """
        self._patience.pause(error, CLOSED_S)

    def renew(self) -> tuple[InferenceClient, SampleProducer] | None:
        """Return both ends, reconnected to the peers that `look` found; None: not ready, call `look` again.

        The client is always reconnected, so that no earlier request is answered.

        Raises:
          StreamClosed: an unchanged peer has refused this worker for a while, or a peer on another host does not answer.
        """
        try:
            return self._resume(self._present)
        except StreamTimeout as silence:
            error = self._writer.silent(self._present[: len(self._writer.peers)], silence)
            if error is None and self._server is not None and not self._present[-1].host:
                error = StreamClosed(f"the connection to the server broke, and cannot be made again: {silence}")
            if error is not None:
                self._patience.unanswered(error)
            return None
        except StreamClosed as refusal:
            self._patience.pause(refusal)
            return None

    def _resume(self, present: list[Registration]) -> tuple[InferenceClient, SampleProducer]:
        readers = len(self._writer.peers)
        if self._writer.follow(present[:readers], self._patience.connect_s):
            self._renewed = self.new_consumer = True
        if self._server is None:
            self._client.forget()
        else:
            self._client.close()
            server, found = self._server, present[readers]
            self._client = self._connect_inference(found, self._patience.connect_s, stays(server, found))
            server.known = found
        self.epoch = self._writer.read_epoch()
        self._patience.end()
        self._renewed = False
        return self._client, self._producer
