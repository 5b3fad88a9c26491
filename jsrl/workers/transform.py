"""A worker between the writers and the readers of a sample stream: takes each trajectory, changes it, passes it on.

Subclass `TrajectoryTransform` and write `change`. The base class does the rest: credits, ledgers of both legs, reconnecting to
restarted neighbours. Its two ports are called `rows` (input) and `onwards` (output). It imports no jax.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

from jsrl.errors import ConfigError, StreamTimeout
from jsrl.services.metrics.phases import Activity
from jsrl.services.runs.control_bodies import Command
from jsrl.transport.base import Block, Entry, Lease, SampleConsumer
from jsrl.transport.stream import generation_at
from jsrl.types import Trajectory, leaves
from jsrl.workers.base import Refusals, Reporter
from jsrl.workers.ends import SampleWriter, begin_counting, bind_reader
from jsrl.workers.jobs import Job
from jsrl.workers.kinds import Port, make_meter


class TrajectoryTransform:
    """A worker that passes trajectories on, changed by `change`.

    Args:
      job: of this worker; `job.settings` come from the graph. reporter: takes its events.

    Attributes:
      passed: trajectories passed on so far by this process. ports, activities: for its kind.
    """

    ports = (Port("rows", "samples", "reads", schemas=("trajectory",)), Port("onwards", "samples", "writes"))
    activities = (
        Activity("change", "transport", "share of time changing trajectories", "below 0.7 (else: scale it)"),
        Activity("wait_rows", "wait", "share of time waiting for trajectories", "depends", "rows"),
        Activity("wait_block", "wait", "share of time waiting for room in the next stream", "near 0", "room"),
    )

    def __init__(self, job: Job, reporter: Reporter) -> None:
        self.job, self.name, self.reporter = job, job.name, reporter
        self.meter = make_meter(job)
        self._phases = self.meter.phases
        self._refusals = Refusals(self.name, reporter)
        self._consumer: SampleConsumer | None = None
        self._producer: SampleWriter | None = None
        self._lease: Lease | None = None
        self._generation = 0
        self.passed = 0

    def change(self, trajectory: Trajectory, entry: Entry) -> None:
        """Write into the arrays of a trajectory [T+1, B, ...], as in `trajectory.reward[...] *= 0.1`; return nothing.

        `entry` has its number and group.
        """

    def ready(self, lease: Lease) -> bool:
        """Return whether a trajectory can be changed now; called in each step until it can.

        Override it if `change` needs another worker's answer first. It may wait up to `job.poll_s`.
        """
        return True

    def rng(self, entry: Entry, row: int = 0) -> np.random.Generator:
        """Return random numbers of one row of a trajectory.

        They depend only on (seed, input stream, incarnation of the actor, group, env step), so the last row of a
        trajectory is changed like the first row of the next one, which is the same step.
        """
        made, stream = entry.origin, zlib.crc32(self.job.end("rows").stream.name.encode())
        step = made.sequence * self.job.experiment.rollout_length + row
        return np.random.default_rng((self.job.experiment.seed, stream, made.producer.incarnation, entry.group, step))

    # -- protocol of a worker -----------------------------------------------------------------------------------------

    def setup(self) -> None:
        """Bind the input stream, and connect to the reader of the output stream."""
        self.reporter.stage("connecting to its reader")
        schema = self.job.schemas.trajectory
        self._producer = SampleWriter(self.job, "onwards", schema)
        self._producer.open()
        self._announce_generation()
        self._consumer = bind_reader(self.job, "rows", schema, begin_counting(self.job, "rows"))

    def step(self) -> int:
        """Take a trajectory and pass it on; return 1 if that was possible, 0 otherwise.

        Raises:
          ConfigError: its setup did not open its streams, or `change` returned something.
        """
        if self._consumer is None or self._producer is None:
            raise ConfigError(f"setup of {type(self).__name__} must call super().setup(), which opens its streams.")
        if self._lease is None:
            self._lease = self._take(self._consumer)
        if self._lease is None or not self.ready(self._lease):
            self._producer.poll()
            self._announce_generation()
            return 0
        self._phases.enter("wait_block")
        block = self._producer.reserve(self.job.poll_s)
        if block is None:
            self._announce_generation()
            return 0
        self._phases.enter("change")
        self._pass_on(self._lease, block)
        self._phases.rest()
        return 1

    def _take(self, consumer: SampleConsumer) -> Lease | None:
        self._phases.enter("wait_rows")
        if self.job.in_process and not consumer.pending():
            return None
        try:
            return self._refusals.take(consumer.get, self.job.poll_s)
        except StreamTimeout:
            return None

    def _pass_on(self, lease: Lease, block: Block) -> None:
        assert self._consumer is not None and self._producer is not None
        for written, read in zip(leaves(block.trajectory), leaves(lease.trajectory), strict=True):
            written[...] = read
        returned: Any = self.change(block.trajectory, lease.entry)  # type: ignore[func-returns-value]
        if returned is not None:
            raise ConfigError(
                f"change of {type(self).__name__} returned a {type(returned).__name__}, which nobody reads; write into the "
                "arrays of the trajectory, as in trajectory.reward[...] *= 0.1, and return nothing."
            )
        if self._producer.commit(block, lease.entry.group, lease.entry.origin):
            self._consumer.release(lease)
            self._lease = None
            self.passed += 1
            self.meter.rate("trajectories")

    def _announce_generation(self) -> None:
        """Publish the reader's learner generation to the writers of this worker; they check it when nothing moves."""
        assert self._producer is not None
        generation = self._producer.read_generation()
        if generation != self._generation:
            self._generation = generation
            self.job.announce(generation_at(self.job.end("rows").stream.name, self.name), str(generation))

    def report(self) -> tuple[dict[str, float], dict[str, Any]]:
        """Return rates and shares, and how many trajectories were passed on."""
        return self.meter.flush(), {"trajectories": self.passed}

    def command(self, command: Command) -> None:
        """Ignore all commands."""

    def drop_pending(self) -> None:
        """Close the input stream: waiting trajectories count as dropped."""
        if self._consumer is not None:
            if self._lease is not None:
                self._consumer.release(self._lease, "closed")
                self._lease = None
            self._consumer.close()

    def close(self) -> dict[str, Any]:
        """Close both streams."""
        self.drop_pending()
        if self._producer is not None:
            self._producer.close()
        return {"trajectories": self.passed}
