"""The ranks of a learner: processes that make the same updates, each on its devices with its share of the batches.

Rank 0, the learner, publishes, saves and reports. It binds the stream that carries the ranks' agreement
(jsrl/workers/attached/agreement.py); the others connect. If a rank hangs all the same, a time limit on each turn ends it, and
the controller then replaces all ranks.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import socket as sockets
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from jsrl.agents.base import UpdateOutput
from jsrl.agents.finite import non_finite_metrics
from jsrl.errors import ConfigError, StreamTimeout
from jsrl.experiment import Experiment
from jsrl.experiment.settings import DeadlineConfig
from jsrl.parallel import join_processes, leave_processes
from jsrl.services.metrics.metrics import Meter
from jsrl.services.runs.values import Registration
from jsrl.transport.base import Ledger
from jsrl.transport.network.sockets import allowed_ports, none_free
from jsrl.transport.stream import name_at
from jsrl.transport.table import bind_ranks, connect_ranks
from jsrl.types import Tree
from jsrl.workers.attached.agreement import (
    Action,
    Do,
    FollowerAgreement,
    FromRank,
    Last,
    LeaderAgreement,
    RankMessage,
    RankReply,
    RankStart,
    Send,
    Turn,
)
from jsrl.workers.base import Reporter
from jsrl.workers.jobs import CONNECT_TIMEOUT_S, Job, StartPoint
from jsrl.workers.learner.batching import Batch
from jsrl.workers.learner.build import LearnerStart, count_on, start_of
from jsrl.workers.learner.checks import non_finite
from jsrl.workers.learner.outlet import Outlet
from jsrl.workers.learner.seams import Gate, LearnerState, Lifecycle, Refused, Snapshot, Source

RANKS = "ranks"  # the port
_MEASURED, _TIMES = 5, 10  # updates before their median counts, and the limit of a turn in medians


class TurnLimit:
    """Time limit of one turn of a rank's loop: ten times its median update, at least `rank_s`.

    Before it has measured five updates, ten times the longest one, at most `stuck_s`: the first one includes compilation.
    """

    def __init__(self, deadlines: DeadlineConfig) -> None:
        self._deadlines = deadlines
        self._took: deque[float] = deque(maxlen=101)

    def note(self, seconds: float) -> None:
        self._took.append(seconds)

    @property
    def seconds(self) -> float:
        if len(self._took) < _MEASURED:
            usual_s = min(self._deadlines.stuck_s, _TIMES * max(self._took, default=math.inf))
        else:
            usual_s = _TIMES * statistics.median(self._took)
        return max(self._deadlines.rank_s, usual_s)


class RankLink:
    """A rank's connection to the others: carries messages to and from an agreement, and executes its actions."""

    def __init__(self, job: Job, stream: Any, agreement: LeaderAgreement | FollowerAgreement) -> None:
        self.limit = TurnLimit(job.experiment.deadlines)
        self._stream, self._agreement = stream, agreement

    def agree(self, has_batch: bool, timeout_s: float) -> bool:
        """Wait until all ranks have a batch; return whether they do: then every rank makes its updates.

        Raises:
          StreamTimeout: another rank has been silent for too long, or has left.
        """
        return self._request(Turn(has_batch, timeout_s))

    def halt(self) -> bool:
        """Stop making updates; return whether the update with this rank's current batch must still be made."""
        return self._request(Last.HALT)

    def leave(self) -> None:
        """Leave with the others, if they answer in time: after `halt`, and after the learner's snapshot."""
        self._request(Last.LEAVE)
        self.close()

    def close(self) -> None:
        self._stream.close()

    def _meet(self, rank: int, begins: RankStart, local_devices: int) -> None:
        """Join the processes of all ranks into one group."""
        check_own_name(begins.coordinator)
        join_processes(begins.coordinator, rank, begins.count, local_devices)

    def _request(self, request: Turn | Last | None = None) -> bool:
        """Carry messages until a request has ended (None: the first one); return whether all ranks are ready."""
        found = None if request is None else self._execute(self._agreement.handle(request, time.monotonic()))
        wait_s = 0.0
        while found is None:
            for message in self._receive(wait_s):
                found = self._execute(self._agreement.handle(message, time.monotonic()))
            if found is None:
                found = self._execute(self._agreement.tick(time.monotonic()))
            wait_s = self._agreement.wait_s(time.monotonic())
        return found

    def _execute(self, actions: Sequence[Action]) -> bool | None:
        """Execute actions; return the end of the request, if it is among them."""
        for action in actions:
            if isinstance(action, Send):
                frame = msgspec.msgpack.encode(action.message)
                self._stream.send(*([action.receiver] if action.receiver else []), frame)
            elif action is Do.DEPART:
                leave_processes()
        return True if Do.GO in actions else False if Do.PASS in actions else None

    def _receive(self, timeout_s: float) -> Sequence[Any]:
        """Return the messages that have arrived; wait up to `timeout_s` for the first."""
        raise NotImplementedError


class Leader(RankLink):
    """Rank 0.

    Args:
      job: of the learner. begins: the message for the others; their numbers, and where processes meet, are filled in.
    """

    def __init__(self, job: Job, begins: RankStart) -> None:
        end, others = job.end(RANKS), [peer.worker for peer in job.end(RANKS).peers]
        stream = bind_ranks(end.address, keys=job.keys)
        self._port, coordinator = held_port(stream.address)
        self._begins = msgspec.structs.replace(begins, count=len(others) + 1, coordinator=coordinator)
        limits = job.experiment.deadlines
        super().__init__(job, stream, LeaderAgreement(others, job.incarnation, self._begins, limits, time.monotonic()))
        job.announce(name_at(end.stream.name, job.name), stream.address)

    def gather(self, local_devices: int) -> None:
        """Wait for the other ranks, and join all processes into one group. Raises StreamTimeout."""
        self._request()
        self._meet(0, self._begins, local_devices)

    def _receive(self, timeout_s: float) -> list[FromRank]:
        found = []
        for sender, frame in self._stream.receive(timeout_s):
            with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
                message = msgspec.msgpack.decode(frame, type=RankMessage)
                if self._stream.speaks_for(sender, message.worker):
                    found.append(FromRank(sender, message))
        return found

    def close(self) -> None:
        """Close the stream, and give the port of jax's coordinator back."""
        super().close()
        self._port.close()


class Follower(RankLink):
    """Any other rank; it looks for the learner of its own incarnation."""

    _agreement: FollowerAgreement

    def __init__(self, job: Job) -> None:
        end, limits = job.end(RANKS), job.experiment.deadlines
        leader, self._ready_s = end.peers[0].worker, limits.ready_s
        found = await_incarnation(job, name_at(end.stream.name, leader))
        stream = connect_ranks(found.address, keys=job.keys)
        super().__init__(job, stream, FollowerAgreement(job.name, job.incarnation, leader, limits, time.monotonic()))

    def join(self, local_devices: int) -> RankStart:
        """Join the learner and the group of all processes; return where this start begins.

        Raises:
          StreamTimeout: the learner did not answer in time. AccessDenied: it rejects this run's keys.
        """
        self._request()
        begins = self._agreement.begins
        if begins is None:
            raise self._stream.no_answer(self._ready_s)
        self._meet(begins.rank, begins, local_devices)
        return begins

    def _receive(self, timeout_s: float) -> list[RankStart | RankReply]:
        if self._agreement.begins is None:
            self._stream.poll()
        frame = self._stream.receive(timeout_s)
        return [] if frame is None else [msgspec.msgpack.decode(frame, type=RankStart | RankReply)]


def await_incarnation(job: Job, name: str) -> Registration:
    """Return the registration of the worker behind a name, of the same incarnation as this one."""
    until_s = time.monotonic() + CONNECT_TIMEOUT_S
    while True:
        found = job.find(name)
        if found.incarnation == job.incarnation:
            return found
        if time.monotonic() > until_s:
            raise StreamTimeout(
                f"{name} is registered by incarnation {found.incarnation}, and {job.incarnation} did not come within "
                f"{CONNECT_TIMEOUT_S:g} s; look at the log of the learner."
            )
        time.sleep(0.05)


def check_own_name(coordinator: str) -> None:
    """Refuse a host whose own name resolves to itself alone, if ranks on CPU meet over the network.

    Gloo publishes that name.
    """
    if coordinator.startswith(("127.", "[::1]")) or os.environ.get("CUDA_VISIBLE_DEVICES"):
        return
    name = sockets.gethostname()
    try:
        found = sockets.gethostbyname(name)
    except OSError:
        found = "nothing"
    if found.startswith("127.") or found == "nothing":
        raise ConfigError(
            f"the name of this host, {name}, resolves to {found}, where ranks on other hosts cannot reach it; have /etc/hosts "
            f"or the name service resolve it to its address in the network of {coordinator}."
        )


def own_devices(e: Experiment) -> int:
    """Return how many devices this process will have, without loading jax's backend."""
    visible = [gpu for gpu in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu.strip()]
    return len(visible) or e.learner_devices or 1


def held_port(address: str) -> tuple[sockets.socket, str]:
    """Return (a socket that keeps a port of the host of an address from others, HOST:PORT); on loopback for a Unix socket.

    Only a socket with SO_REUSEPORT can listen there, as those of jax's coordinator do.
    """
    host = (
        address.removeprefix("tcp://").rpartition(":")[0].strip("[]") if address.startswith("tcp://") else "127.0.0.1"
    )
    family = sockets.AF_INET6 if ":" in host else sockets.AF_INET
    for port in allowed_ports():
        if port and not _is_free(family, host, port):
            continue
        held = sockets.socket(family, sockets.SOCK_STREAM)
        held.setsockopt(sockets.SOL_SOCKET, sockets.SO_REUSEPORT, 1)
        held.bind((host, port))
        port = held.getsockname()[1]
        return held, f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    raise none_free(host)


def _is_free(family: int, host: str, port: int) -> bool:
    """Return whether nothing holds a port; a socket with SO_REUSEPORT could share one that another socket holds so."""
    with sockets.socket(family, sockets.SOCK_STREAM) as probe:
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


class SynchronizedSource:
    """The batches of one rank of a learner, each lent once all ranks have one."""

    def __init__(self, source: Source, group: RankLink) -> None:
        self._source, self._group = source, group
        self.example, self.begin, self.env_steps = source.example, source.begin, source.env_steps
        self.pending, self.stand_in, self.close = source.pending, source.stand_in, source.close
        self.counts, self.ledger = source.counts, source.ledger
        self._waiting: Batch | None = None
        self._lent_s = 0.0

    def next(self, timeout_s: float) -> Batch | None:
        """Return the next batch, or None if this rank or another has none within `timeout_s`."""
        until_s = time.monotonic() + timeout_s
        if self._waiting is None:
            self._waiting = self._source.next(timeout_s)
        left_s = max(0.0, until_s - time.monotonic())
        return self._lend() if self._group.agree(self._waiting is not None, left_s) else None

    def last(self) -> Batch | None:
        """Stop making updates; return the batch that must still be trained on, after which call this again."""
        return self._lend() if self._group.halt() else None

    def _lend(self) -> Batch | None:
        batch, self._waiting, self._lent_s = self._waiting, None, time.monotonic()
        return batch

    def used(self, batch: Batch, output: UpdateOutput) -> int:
        self._group.limit.note(time.monotonic() - self._lent_s)
        return self._source.used(batch, output)


class RankLifecycle(Lifecycle):
    """Ends with the other ranks: the promised update is made, rank 0 saves, all leave together."""

    def __init__(self, group: RankLink, reporter: Reporter, *, leads: bool) -> None:
        self._group, self._reporter, self.leads = group, reporter, leads

    @property
    def limit_s(self) -> float:  # type: ignore[override]
        return self._group.limit.seconds

    def shared(self, source: Source) -> Source:
        self._source = SynchronizedSource(source, self._group)
        return self._source

    @contextlib.contextmanager
    def saving(self) -> Iterator[None]:
        """Lift the limit of a turn."""
        self._reporter.entering("writing a snapshot", math.inf)
        try:
            yield
        finally:
            self._reporter.left()

    def last(self) -> Batch | None:
        return self._source.last()

    def leave(self) -> None:
        """Leave together; not before the snapshot: jax's processes write it while they form a group."""
        self._group.leave()


class NoOutlet(Outlet):
    """The outlet of a rank: rank 0 publishes, saves and reports."""

    def __init__(self, meter: Meter) -> None:
        self.meter = meter

    def open(self) -> None: ...

    def event(self, name: str, **facts: Any) -> None: ...

    def publish(self, version: int, params: Tree) -> None: ...

    def learned(self, metrics: dict[str, float], replay: dict[str, float]) -> None: ...

    def trained(self, rows: int) -> None: ...

    def save(self, version: int, snapshot: Callable[[], Snapshot], tags: tuple[str, ...], *, wait: bool) -> None: ...

    def report(self, ledger: Ledger, facts: dict[str, Any]) -> tuple[dict[str, float], dict[str, Any]]:
        return self.meter.flush(), {}

    def close(self, facts: dict[str, Any]) -> dict[str, Any]:
        return {}


class OnlyFinite(Gate):
    """Refuses non-finite updates, and keeps nothing: the batch is spread over several ranks."""

    def after(self, before: LearnerState, state: Any, batch: Batch, metrics: dict[str, float]) -> Refused | None:
        if not (bad := non_finite_metrics(metrics)):
            return None
        kept = "Its batch was spread over several ranks and is not kept: with learner.num_ranks 1 it would be."
        return Refused(before.state, non_finite(before.updates, bad, metrics, kept))


def part_of(job: Job, reporter: Reporter) -> tuple[Job, LearnerStart, RankLifecycle]:
    """Return a rank's part in its learner, once the processes of all ranks have joined; call it before using jax."""
    devices = own_devices(job.experiment)
    if job.end(RANKS).address:  # rank 0 binds
        start = start_of(job)
        at = job.start_point
        leader = Leader(
            job,
            RankStart(
                0, 0, "", start.generation, at.updates, start.trained, start.saved_generation, at.unmade, at.env_steps
            ),
        )
        leader.gather(devices)
        return job, start, RankLifecycle(leader, reporter, leads=True)
    follower = Follower(job)
    begins = follower.join(devices)
    saved = None
    if begins.saved_generation is not None:  # as many trajectories as the learner, of its own share
        saved = {
            "generation": begins.saved_generation,
            "consumed": begins.trained,
            "dropped": {},
            "trained": begins.trained,
        }
    at = StartPoint(begins.generation, begins.updates, env_steps=begins.env_steps, unmade=begins.unmade)
    job = dataclasses.replace(job, start_point=at)
    start = LearnerStart(begins.generation, begins.trained, count_on(job, saved)[1])
    return job, start, RankLifecycle(follower, reporter, leads=False)
