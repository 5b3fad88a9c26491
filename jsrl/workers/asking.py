"""The client end of an inference stream, with failover: unanswered requests are sent again to the restarted server."""

from __future__ import annotations

from jsrl.errors import StreamClosed, StreamTimeout, UnknownPolicy
from jsrl.services.runs.values import Registration
from jsrl.transport.base import InferenceClient, Reply, Request
from jsrl.transport.door.hello import Check
from jsrl.transport.table import connect_inference
from jsrl.workers.ends import names_of_peers
from jsrl.workers.jobs import CONNECT_TIMEOUT_S, WorkerJob, whole
from jsrl.workers.peers import BriefRetry, FailoverPeer, meet_present, silent, stays


class InferenceRequests:
    """Sends inference requests through a port, one at a time; fails over between servers and their incarnations.

    It does not own these groups as an actor does: a server keeps separate cores for each requesting worker. A restarted server
    begins with fresh cores.

    Args:
      job: of the worker. port: of the inference stream.
    """

    def __init__(self, job: WorkerJob, port: str = "inference") -> None:
        self._job, self._end = whole(job), job.end(port)
        self._sizes = dict.fromkeys(self._end.groups, job.experiment.group_size)
        self._client: InferenceClient | None = None
        self._sent = False  # a request is pending
        self._patience = BriefRetry()

    def open(self) -> None:
        """Connect; wait for the server."""
        names = names_of_peers(self._end)
        self._peer = FailoverPeer(self._job.names, names, self._job.find(names[0]))
        meet_present(self._peer, CONNECT_TIMEOUT_S, self._connect)

    def _connect(self, found: Registration, timeout_s: float, check: Check = lambda: None) -> None:
        job = self._job
        self._client = connect_inference(
            found.address, job.schemas.act, job.producer, self._sizes, timeout_s, keys=job.keys, check=check
        )

    def ask(self, group: int, request: Request, timeout_s: float) -> Reply | None:
        """Return the reply to a request of one group; None: no reply yet, call again with the same request.

        The request's arrays [B, ...] must not change until it is answered; the reply's are valid until the next call.

        Raises:
          StreamClosed: the server is alive, but has refused this worker for a while, or not answered it from another host.
          UnknownPolicy: the request is for a policy that is not served.
        """
        if self._client is None:
            self._follow(timeout_s)
            return None
        try:
            if not self._sent:
                self._client.send(group, request)
                self._sent = True
            _, reply = self._client.receive(timeout_s)
        except StreamTimeout:
            self._look()
            return None
        except StreamClosed:
            self._leave()
            return None
        except UnknownPolicy:
            self._sent = False
            raise
        self._sent = False
        return reply

    def _look(self) -> None:
        if not self._job.in_process:
            try:
                self._peer.check()
            except StreamClosed:
                self._leave()

    def _leave(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client, self._sent = None, False

    def _follow(self, timeout_s: float) -> None:
        """Connect to the current server, if there is one, and send the request again."""
        found = self._peer.find(timeout_s)
        if found is None:
            self._patience.end()
            return
        try:
            self._connect(found, self._patience.connect_s, stays(self._peer, found))
        except StreamTimeout as silence:
            self._peer.known = found
            if self._peer.is_elsewhere:
                self._peer.mark_suspect()
                self._patience.unanswered(silent(found, silence))
            return
        except StreamClosed as refusal:
            self._patience.pause(refusal)
            return
        self._peer.known = found
        self._patience.end()

    def close(self) -> None:
        """Close the stream."""
        self._leave()
