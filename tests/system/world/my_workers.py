"""User kinds of workers, in a file outside jsrl: one changes trajectories, one watches params."""

from __future__ import annotations

import time

import numpy as np

from jsrl.extend import (
    Activity,
    Graph,
    Kind,
    Lifecycle,
    Metric,
    Port,
    Shown,
    StreamTimeout,
    TrajectoryTransform,
    Travel,
    begin_counting,
    bind_reader,
    make_meter,
    node,
    subscribe,
    version_updates,
    with_policy,
)


class Augment(TrajectoryTransform):
    """Adds noise of a given size to every observation; size 0 forwards trajectories unchanged."""

    def change(self, trajectory, entry):
        size = self.job.settings["noise"]
        if size:
            for row, observation in enumerate(trajectory.observation):
                observation += size * self.rng(entry, row).standard_normal(observation.shape, np.float32)


AUGMENT = Kind(
    "augment",
    "augmenters",
    "my_workers:Augment",
    ports=TrajectoryTransform.ports,
    loads_jax=False,
    shown=Shown(
        TrajectoryTransform.activities, (Metric("trajectories_per_s", "trajectories passed on", "1/s", "level"),)
    ),
)


class Watcher:
    """Measures how far each version of the params is from the first one."""

    def __init__(self, job, reporter):
        self.job, self.name, self.reporter, self.meter = job, job.name, reporter, make_meter(job)
        self._first = None

    def setup(self):
        self._params = subscribe(self.job, "params")

    def step(self):
        self.meter.phases.enter("wait")
        newer = self._params.poll()
        if newer is None:
            time.sleep(self.job.poll_s)
            return 0
        self.meter.phases.enter("measure")
        version, values = newer
        self._first = self._first or values
        distance = sum(float(np.abs(new - old).sum()) for new, old in zip(values, self._first, strict=True))
        self.meter.last("distance", distance)
        self.meter.last("params_updates", version_updates(version))
        self.meter.phases.rest()
        return 1

    def report(self):
        return self.meter.flush(), {}

    def command(self, command):
        pass

    def close(self):
        self._params.close()
        return {}


WATCH = Kind(
    "watch",
    "watchers",
    "my_workers:Watcher",
    ports=(Port("params", "params", "reads"),),
    loads_jax=False,
    lifecycle=Lifecycle(loss_ends_run=False),
    shown=Shown(
        activities=(
            Activity("measure", "other", "share of time measuring"),
            Activity("wait", "wait", "share of time without new params", "above 0.5", "new params"),
        ),
        metrics=(
            Metric("distance", "distance of the params from the first ones", "-", "rises"),
            Metric("params_updates", "updates that the measured params have seen", "updates", "rises"),
        ),
    ),
    travel=Travel(needs_folder=""),
)


class Counter:
    """Only reads: counts the trajectories of each group."""

    def __init__(self, job, reporter):
        self.job, self.name, self.reporter, self.meter = job, job.name, reporter, make_meter(job)
        self.counts = {}

    def setup(self):
        schema = self.job.schemas.trajectory
        self._rows = bind_reader(self.job, "rows", schema, begin_counting(self.job, "rows"))

    def step(self):
        try:
            lease = self._rows.get(self.job.poll_s)
        except StreamTimeout:
            return 0
        self.counts[lease.entry.group] = self.counts.get(lease.entry.group, 0) + 1
        self._rows.release(lease)
        return 1

    def report(self):
        self.meter.last("counted", sum(self.counts.values()))
        return self.meter.flush(), {}

    def command(self, command):
        pass

    def close(self):
        self._rows.close()
        return {}


COUNT = Kind(
    "count",
    "counters",
    "my_workers:Counter",
    ports=(Port("rows", "samples", "reads", schemas=("trajectory",)),),
    loads_jax=False,
    shown=Shown(metrics=(Metric("counted", "trajectories counted in this life", "count", "rises", "sum"),)),
)


def counted(graph: Graph) -> Graph:
    """Let a second worker read everything that goes to the learner."""
    return graph.add(node("count", "my_workers:COUNT", rows="samples")).with_stream("samples", routing="broadcast")


def augmented(graph: Graph) -> Graph:
    """Put two augmenters between actors and learner, and a watcher beside them."""
    return watched(graph.insert("my_workers:AUGMENT", settings={"noise": 0.1}, count=2))


def passed_on(graph: Graph) -> Graph:
    """Put a worker that changes nothing between actors and learner."""
    return graph.insert("my_workers:AUGMENT", settings={"noise": 0.0})


def watched(graph: Graph) -> Graph:
    """Let a watcher read the params that the evaluator reads."""
    return graph.add(node("watch", "my_workers:WATCH", params=graph.params))


def passed_on_and_watched(graph: Graph) -> Graph:
    """Apply both changes."""
    return watched(passed_on(graph))


def two_policies(graph: Graph) -> Graph:
    """Let a second learner train another policy on the last half of the groups."""
    groups = graph.stream("samples").groups
    return with_policy(graph, "b", groups[len(groups) // 2 :], {"seed": 7})
