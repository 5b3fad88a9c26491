"""The inference server: acts once for all requests that have arrived, and replies; params change between batches only.

It may serve several policies: each has its own stream, params and engine, and its rows are a separate call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import zmq

from jsrl.errors import SnapshotError, SpecMismatch, StreamTimeout
from jsrl.services.metrics.metrics import Meter
from jsrl.services.runs.control_bodies import Command
from jsrl.transport.base import ClientRequest, InferenceServer, ParamsSubscriber, ProducerId
from jsrl.transport.ends.inference import unknown_policy, unserved
from jsrl.types import version_updates
from jsrl.workers.acting import Engine, GroupSlots, frozen_players, make_agent
from jsrl.workers.base import Refusals, Reporter
from jsrl.workers.ends import bind_server, subscribe
from jsrl.workers.jobs import Job
from jsrl.workers.kinds import make_meter

LOADING_S = 0.001  # between checks whether a frozen player is loaded
_SOME_WAIT_S = 0.0003  # wait for requests that can be served, while others wait for newer params
_ALL_WAIT_S = 0.005  # wait for newer params, while all requests wait for them
_HELD_WAIT_S = 0.001  # between checks for the params that some policies' requests wait for


@dataclass(frozen=True)
class InferenceSettings:
    """Settings of an inference server.

    Attributes:
      max_rows: of one batch. merge: several groups in one batch (never in deterministic mode). poll_s: how long a step waits
        for requests.
    """

    max_rows: int = 1024
    merge: bool = True
    poll_s: float = 0.1


class ServedPolicy:
    """Answers the requests for one policy with its latest params; keeps cores by (client, group).

    Args:
      name: of the server. connect: () -> (the server end of the stream, params subscriber).

    Attributes:
      engine: acts. server: the server end, once connected.
    """

    def __init__(
        self,
        name: str,
        engine: Engine,
        settings: InferenceSettings,
        connect: Callable[[], tuple[InferenceServer, ParamsSubscriber]],
        refusals: Refusals,
        meter: Meter,
    ) -> None:
        self.engine, self._settings, self._connect = engine, settings, connect
        self._name, self._refusals, self._meter = name, refusals, meter
        self._phases = meter.phases
        self._served: dict[tuple[ProducerId, int], GroupSlots] = {}
        self._vacant: dict[tuple[int, int], list[GroupSlots]] = {}  # (group, size) -> slots without a client
        self._held: list[ClientRequest] = []
        self._warm_compilations = 0

    def warm_up(self) -> None:
        self.engine.warm_up()
        self._warm_compilations = self.engine.compilations

    def connect(self) -> None:
        self.server, self._params = self._connect()

    @property
    def holds(self) -> bool:
        """Return whether some requests wait for params."""
        return bool(self._held)

    @property
    def late_compilations(self) -> int:
        return self.engine.compilations - self._warm_compilations

    def serve(self, max_wait_s: float) -> int:
        """Answer the requests that have arrived or have got their params; return the rows answered."""
        self._phases.enter("transport")
        self._refresh()
        arrived = self._collect(max_wait_s)
        self._phases.enter("transport")
        arrived = [r for r in arrived if self._serves(r)]
        requests, self._held = self._held + arrived, []
        if self.engine.frozen is not None:
            self.engine.frozen.receive()
        updates = version_updates(self.engine.version) if self.engine.version >= 0 else -1
        ready: list[ClientRequest] = []
        for r in requests:
            if self.engine.version < 0 or r.request.min_updates > updates:
                self._held.append(r)
            elif (found := self._has_frozen(r)) is None:
                continue
            else:
                (ready if found else self._held).append(r)
        return self._answer(ready) if ready else 0

    def _refresh(self) -> None:
        newer = self._params.poll(0)
        if newer is not None:
            self.engine.set_params(*newer)

    def _has_frozen(self, request: ClientRequest) -> bool | None:
        """Return whether the frozen players of a request are loaded; None: loading failed, and the request was refused."""
        versions = self.engine.frozen_versions(request.request)
        if not versions:
            return True
        try:
            return self.engine.take_frozen((request.client, request.group), versions)
        except SnapshotError as error:
            self._refuse(request, str(error))
            return None

    def _serves(self, request: ClientRequest) -> bool:
        """Return whether the engine has the requested policies; refuse the request if not."""
        if self.engine.serves(request.request.policy):
            return True
        self._refuse(request)
        return False

    def _refuse(self, request: ClientRequest, problem: str = "") -> None:
        refusal = unserved(request.group, request.request.policy, self.engine.served, problem)
        self._refusals.note(unknown_policy(self._name, refusal))
        self.server.refuse(request, self.engine.served, problem)

    def _collect(self, max_wait_s: float) -> list[ClientRequest]:
        """Take the requests that have arrived. While some wait for newer params, also check for those."""
        if not self._held:
            arrived = self._arrived(0.0)
            if not arrived and max_wait_s > 0:
                self._phases.enter("wait")
                arrived = self._arrived(max_wait_s)
            return arrived
        if any(self.engine.frozen_versions(r.request) for r in self._held):
            self._phases.enter("wait")
            return self._arrived(LOADING_S)
        everybody_waits = len(self._held) >= max(1, len(self._served))
        self._phases.enter("wait_params" if everybody_waits else "wait")
        arrived = self._arrived(0.0 if everybody_waits else min(_SOME_WAIT_S, max_wait_s))
        if self._held and not arrived and everybody_waits and max_wait_s > 0:
            try:
                oldest = min(r.request.min_updates for r in self._held)
                self._params.wait(0, oldest, min(_ALL_WAIT_S, max_wait_s))
            except StreamTimeout:
                return []
        self._refresh()
        return arrived

    def _arrived(self, max_wait_s: float) -> list[ClientRequest]:
        arrived: list[ClientRequest] = []
        try:
            arrived = self.server.collect(self._settings.max_rows, max_wait_s)
        except SpecMismatch as error:  # the client got the error and was rejected
            self._refusals.note(error)
        self._forget_departed()
        return arrived

    def _answer(self, ready: list[ClientRequest]) -> int:
        rows = 0
        for batch in self._batched(ready):
            pairs = [(self._seat(r), r.request) for r in batch]
            self._phases.enter("act")
            if self._settings.merge and len(batch) > 1:
                replies = self.engine.act_merged(pairs)
            else:
                replies = [self.engine.act(served, request) for served, request in pairs]
            self._phases.enter("transport")
            for request, reply in zip(batch, replies, strict=True):
                self.server.reply(request, reply)
            batch_rows = sum(len(served.index) for served, _ in pairs)
            self._meter.mean("batch_rows_mean", batch_rows)
            self._meter.rate("rows", batch_rows)
            rows += batch_rows
        return rows

    def _batched(self, ready: list[ClientRequest]) -> list[list[ClientRequest]]:
        """Split requests into batches of at most `max_rows` rows (one group each if merging is off)."""
        if not self._settings.merge:
            return [[r] for r in ready]
        batches: list[list[ClientRequest]] = [[]]
        rows = 0
        for r in ready:
            size = len(r.request.is_first)
            if batches[-1] and rows + size > self._settings.max_rows:
                batches.append([])
                rows = 0
            batches[-1].append(r)
            rows += size
        return batches

    def _seat(self, request: ClientRequest) -> GroupSlots:
        """Return the slots of this client's group; a restarted client takes over its old slots."""
        key = (request.client, request.group)
        if key not in self._served:
            size = len(request.request.is_first)
            vacant = self._vacant.get((request.group, size))
            self._served[key] = vacant.pop() if vacant else self.engine.serve(request.group, size)
        return self._served[key]

    def _forget_departed(self) -> None:
        """Free the slots of clients that were gone at the last `collect`.

        One that came back may have sent a request since. Clients that left later keep their slots until the next call, so
        that no freed slot is used again too early.
        """
        for client in self.server.departed(poll=False):
            groups = {r.group for r in self._held if r.client == client}
            for key in [k for k in self._served if k[0] == client]:
                served = self._served.pop(key)
                self._vacant.setdefault((served.group, len(served.index)), []).append(served)
                groups.add(key[1])
            if self.engine.frozen is not None:
                for group in groups:
                    self.engine.frozen.forget((client, group))
            self._held = [r for r in self._held if r.client != client]

    def close(self) -> None:
        if hasattr(self, "server"):
            self.server.close()
            self._params.close()
        if self.engine.frozen is not None:
            self.engine.frozen.close()


class InferenceWorker:
    """A worker that answers observations with actions."""

    def __init__(
        self,
        name: str,
        policies: Sequence[ServedPolicy],
        settings: InferenceSettings,
        reporter: Reporter,
        meter: Meter,
        refusals: Refusals,
    ) -> None:
        self.name, self._policies, self._settings, self._reporter = name, tuple(policies), settings, reporter
        self._refusals = refusals
        self._rows = 0
        self.meter = self._meter = meter
        self._phases = meter.phases

    def setup(self) -> None:
        """Compile every batch size, bind the streams, wait for the first params."""
        self._reporter.stage("compiling act")
        for policy in self._policies:
            policy.warm_up()
        self._reporter.stage("binding streams")
        for policy in self._policies:
            policy.connect()
        self._arrivals = zmq.Poller()
        for policy in self._policies:
            if policy.server.waitable is not None:
                self._arrivals.register(policy.server.waitable, zmq.POLLIN)

    def step(self) -> int:
        """Answer the requests that have arrived or have got their params; return the rows answered."""
        if len(self._policies) == 1:
            rows = self._policies[0].serve(self._settings.poll_s)
        else:
            rows = self._serve_all()
        self._rows += rows
        self._phases.rest()
        return rows

    def _serve_all(self) -> int:
        """Answer all requests that have arrived, per policy; if there are none, wait for requests to any policy."""
        rows = sum(policy.serve(0.0) for policy in self._policies)
        if rows or self._settings.poll_s == 0:
            return rows
        holds = any(policy.holds for policy in self._policies)  # requests that wait for params of a later version
        self._phases.enter("wait_params" if all(policy.holds for policy in self._policies) else "wait")
        self._arrivals.poll(int(1000 * (_HELD_WAIT_S if holds else self._settings.poll_s)))
        return sum(policy.serve(0.0) for policy in self._policies)

    def report(self) -> tuple[dict[str, float], dict[str, Any]]:
        """Return rates, batch sizes, and the number of compilations after the warm-up (healthy: 0)."""
        engines = [policy.engine for policy in self._policies]
        self._meter.last("compilations", sum(engine.compilations for engine in engines))
        self._meter.last("compilations_after_warmup", self._late_compilations)
        self._meter.last("refused", self._refusals.count)
        frozen = [engine.frozen.figures() for engine in engines if engine.frozen is not None]
        for name in frozen[0] if frozen else ():
            self._meter.last(name, sum(figures[name] for figures in frozen))
        if (oldest := min(engine.version for engine in engines)) >= 0:
            self._meter.last("params_updates", version_updates(oldest))
        return self._meter.flush(), {"rows": self._rows}

    @property
    def _late_compilations(self) -> int:
        return sum(policy.late_compilations for policy in self._policies)

    def command(self, command: Command) -> None:
        """Inference servers take no commands but stop."""

    def close(self) -> dict[str, Any]:
        for policy in self._policies:
            policy.close()
        if self._settings.merge and self._late_compilations:
            self._reporter.event("warning", f"{self.name} compiled again after its warm-up; batch sizes are not fixed.")
        return {"rows": self._rows}


def build_inference(job: Job, reporter: Reporter) -> InferenceWorker:
    e = job.experiment
    settings = InferenceSettings(
        e.inference.max_rows,
        not e.is_deterministic and _all_rows(job) > e.group_size,
        job.poll_s,
    )
    meter, refusals = make_meter(job), Refusals(job.name, reporter)
    policies = [_serve(own, settings, refusals, meter) for own in job.by_policy]
    return InferenceWorker(job.name, policies, settings, reporter, meter, refusals)


def _serve(job: Job, settings: InferenceSettings, refusals: Refusals, meter: Meter) -> ServedPolicy:
    e, everybody = job.experiment, _all_rows(job)
    most = min(everybody, max(e.inference.max_rows, e.group_size))
    engine = Engine(
        make_agent(job),
        job.schemas.env,
        num_slots=2 * everybody,
        sizes=batch_sizes(e.group_size, most) if settings.merge else [e.group_size],
        seed=job.incarnation_seed,
        number=job.index,
        policy=job.policy_number,
        policy_name=job.policy,
        frozen=frozen_players(job, background=True),
    )
    return ServedPolicy(job.name, engine, settings, functools.partial(_connect, job), refusals, meter)


def _connect(job: Job) -> tuple[InferenceServer, ParamsSubscriber]:
    return bind_server(job, "inference"), subscribe(job)


def _all_rows(job: Job) -> int:
    """Return the rows of all environments for which a server may act: it may replace other servers."""
    end = job.end("inference")
    groups = end.stream.groups if end.stream.failover else end.groups
    return len(groups) * job.experiment.group_size * end.clients_per_group


def batch_sizes(group_size: int, most: int) -> list[int]:
    """Return the padded batch sizes: the group's size, doubling, up to `most`."""
    sizes = [group_size]
    while sizes[-1] < most:
        sizes.append(min(2 * sizes[-1], most))
    return sizes
