"""The client end of an inference stream: it connects to a server, and again to its next incarnation or to another one."""

from __future__ import annotations

from jsrl.errors import StreamClosed, StreamTimeout, UnknownPolicy
from jsrl.services.runs.values import Registration
from jsrl.transport.base import InferenceClient, Reply, Request
from jsrl.transport.door.hello import Check
from jsrl.transport.table import connect_inference
from jsrl.workers.ends import names_of_peers
from jsrl.workers.jobs import Job, WorkerJob, whole
from jsrl.workers.peers import Connector, FailoverPeer, first_present


class Servers(Connector[InferenceClient]):
    """Connects to a worker's own inference server, or to a substitute while that one is gone.

    Args:
      job: of the worker. port: of the inference stream. group_sizes: group -> its number of environments.
    """

    peer: FailoverPeer

    def __init__(self, job: Job, port: str, group_sizes: dict[int, int]) -> None:
        self._job, self._sizes = job, group_sizes
        names = names_of_peers(job.end(port))
        # At the start of a run each worker waits for its own server, which is still starting.
        present = first_present(job.names, names) if job.incarnation else None
        super().__init__(FailoverPeer(job.names, names, present or job.find(names[0])), self._connect_to)

    def _connect_to(self, found: Registration, timeout_s: float, check: Check) -> InferenceClient:
        job = self._job
        return connect_inference(
            found.address, job.schemas.act, job.producer, self._sizes, timeout_s, keys=job.keys, check=check
        )


class InferenceRequests:
    """Sends inference requests through a port, one at a time; fails over between servers and their incarnations.

    It does not own these groups as an actor does: a server keeps separate cores for each requesting worker. A restarted server
    begins with fresh cores.

    Args:
      job: of the worker. port: of the inference stream.
    """

    def __init__(self, job: WorkerJob, port: str = "inference") -> None:
        self._job, self._port = whole(job), port
        self._client: InferenceClient | None = None
        self._sent = False  # a request is pending

    def open(self) -> None:
        """Connect; wait for the server."""
        groups = self._job.end(self._port).groups
        self._servers = Servers(self._job, self._port, dict.fromkeys(groups, self._job.experiment.group_size))
        self._client = self._servers.first()

    def ask(self, group: int, request: Request, timeout_s: float) -> Reply | None:
        """Return the reply to a request of one group; None: no reply yet, call again with the same request.

        The request's arrays [B, ...] must not change until it is answered; the reply's are valid until the next call.

        Raises:
          StreamClosed: the server is alive, but has refused this worker for a while, or not answered it from another host.
          UnknownPolicy: the request is for a policy that is not served.
        """
        if self._client is None:
            self._client = self._servers.connect(timeout_s)
            return None
        try:
            if not self._sent:
                self._client.send(group, request)
                self._sent = True
            _, reply = self._client.receive(timeout_s)
        except StreamTimeout:
            self._check()
            return None
        except StreamClosed:
            self.close()
            return None
        except UnknownPolicy:
            self._sent = False
            raise
        self._sent = False
        return reply

    def _check(self) -> None:
        if not self._job.in_process:
            try:
                self._servers.peer.check()
            except StreamClosed:
                self.close()

    def close(self) -> None:
        """Close the stream."""
        if self._client is not None:
            self._client.close()
            self._client, self._sent = None, False
