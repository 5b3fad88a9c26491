"""The parameter server: relays params between hosts, away from the learner, and keeps numbered copies of them on disk."""

from __future__ import annotations

import functools
import time
from typing import Any

import jax

from jsrl.experiment.building import build_agent
from jsrl.services.runs.control_bodies import Command
from jsrl.services.snapshots.store import SnapshotStore
from jsrl.types import version_updates
from jsrl.workers.base import Reporter
from jsrl.workers.ends import bind_publisher, subscribe
from jsrl.workers.jobs import Job
from jsrl.workers.kinds import make_meter


class ParameterServer:
    """A worker between the learner's params stream (this host) and that of all other workers (ZeroMQ)."""

    def __init__(self, job: Job, reporter: Reporter) -> None:
        self.name, self._job, self._reporter = job.name, job, reporter
        warn = functools.partial(reporter.event, "warning", once="snapshots")
        self._store = SnapshotStore(job.snapshots / "params", on_warning=warn)
        self.meter = make_meter(job)
        self._phases = self.meter.phases
        self._latest: tuple[int, list[Any]] | None = None
        self._relayed = 0
        self._saved_at = time.monotonic()

    def setup(self) -> None:
        self._reporter.stage("connecting to the learner's params")
        agent = build_agent(self._job.experiment.agent, self._job.schemas.env)
        self._structure = jax.tree.structure(jax.eval_shape(agent.init, jax.random.key(0)).params)
        self._subscriber = subscribe(self._job, "params")
        self._relay = bind_publisher(self._job, "relayed")

    def step(self) -> int:
        """Relay newer params; return 1 if there were some."""
        self._phases.enter("wait")
        newer = self._subscriber.poll(0)
        if newer is None:
            time.sleep(0.001)
            return 0
        self._phases.enter("publish")
        self._latest = newer
        self._relay.publish(0, *newer)
        self._phases.rest()
        self._relayed += 1
        if time.monotonic() - self._saved_at >= self._job.experiment.snapshots.period_s:
            self._save(wait=False)
        return 1

    def _save(self, *, wait: bool) -> None:
        self._phases.enter("snapshot")
        self._saved_at = time.monotonic()
        if self._latest is not None:
            version, values = self._latest
            params = jax.tree.unflatten(self._structure, values)
            meta = {"version_updates": version_updates(version)}
            self._store.save(version, {"params": params}, meta=meta, tags=(), wait=wait)  # `latest` is the learner's
        self._phases.rest()

    def report(self) -> tuple[dict[str, float], dict[str, Any]]:
        self.meter.last("relayed", self._relayed)
        return self.meter.flush(), {"relayed": self._relayed}

    def command(self, command: Command) -> None:
        if command.name == "snapshot":
            self._save(wait=True)

    def close(self) -> dict[str, Any]:
        self._save(wait=True)
        self._relay.close()
        self._subscriber.close()
        self._store.close()
        return {"relayed": self._relayed}
