"""The inference server: acts once for all requests that have arrived, and replies; params change between batches only.

It may serve several policies: each has its own stream, params and engine, and its rows are a separate call.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import zmq

from jsrl.services.metrics.metrics import Meter
from jsrl.services.runs.control_bodies import Command
from jsrl.transport.base import InferenceServer, ParamsSubscriber
from jsrl.types import version_updates
from jsrl.workers.acting import Engine, frozen_players, make_agent
from jsrl.workers.base import Refusals, Reporter
from jsrl.workers.ends import bind_server, subscribe
from jsrl.workers.inference.served import InferenceSettings, ServedPolicy
from jsrl.workers.jobs import Job
from jsrl.workers.kinds import make_meter

_HELD_WAIT_S = 0.001  # between checks for the params that some policies' requests wait for


class InferenceWorker:
    """A worker that answers observations with actions.

    Args:
      policies: that it serves. refusals: counts their rejections.
    """

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
        self._arrivals = Arrivals(policy.server for policy in self._policies)

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
        self._arrivals.wait(_HELD_WAIT_S if holds else self._settings.poll_s)
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
    settings = InferenceSettings(e.inference.max_rows, _merges(job), job.poll_s)
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


def _merges(job: Job) -> bool:
    return not job.experiment.is_deterministic and _all_rows(job) > job.experiment.group_size


def batch_sizes(group_size: int, most: int) -> list[int]:
    """Return the padded batch sizes: the group's size, doubling, up to `most`."""
    sizes = [group_size]
    while sizes[-1] < most:
        sizes.append(min(2 * sizes[-1], most))
    return sizes


class Arrivals:
    """Waits until a request has arrived at any of these ends."""

    def __init__(self, servers: Iterable[InferenceServer]) -> None:
        self._poller = zmq.Poller()
        for server in servers:
            if server.waitable is not None:
                self._poller.register(server.waitable, zmq.POLLIN)

    def wait(self, max_wait_s: float) -> None:
        self._poller.poll(int(1000 * max_wait_s))
