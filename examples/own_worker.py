"""A kind of worker of your own: it reads all trajectories beside the learner, and measures which states they cover.

`python examples/own_worker.py` trains CartPole, with the worker `coverage` in the graph. Its figures are in the report, the
live page and `metrics.jsonl` (`coverage/cells`), and the map itself in `coverage.json` in the run folder.

A worker between actors and learner that changes what it passes on, and one that watches the params, are in docs/dataflow.md.
"""

import argparse
import json
from pathlib import Path

import numpy as np

import jsrl
from jsrl.extend import (
    Activity,
    ConfigError,
    Kind,
    Metric,
    Port,
    Shown,
    StreamTimeout,
    Travel,
    begin_counting,
    bind_reader,
    make_meter,
    node,
)

FILE = "coverage.json"


class Coverage:
    """Counts how often each cell of a grid over two of the observation's numbers was visited.

    Settings: `numbers` (which two), `low` and `high` (of the grid), `cells` (per axis).
    After a restart it goes on from its file.
    """

    def __init__(self, job, reporter):
        """Make the grid; the streams come in `setup`."""
        del reporter  # for events and for calls that may hang
        self.job, self.name, self.meter = job, job.name, make_meter(job)
        cells = job.settings["cells"]
        self.path = Path(job.folder, FILE)
        self.visits = np.zeros((cells, cells), int)
        if self.path.exists():
            self.visits += json.loads(self.path.read_text())

    def setup(self):
        """Bind the stream: the actors connect to it as they do to the learner."""
        ledger = begin_counting(self.job, "rows")
        self.rows = bind_reader(self.job, "rows", self.job.schemas.trajectory, ledger)

    def step(self):
        """Read one trajectory; return the number of rows read, 0 if none came in time."""
        self.meter.phases.enter("wait")
        try:
            lease = self.rows.get(self.job.poll_s)
        except StreamTimeout:
            return 0
        self.meter.phases.enter("count")
        settings = self.job.settings
        low, high = np.array(settings["low"]), np.array(settings["high"])
        # Row T is row 0 of the next trajectory; all others are observations that the environment returned.
        seen = lease.trajectory.observation[:-1][..., settings["numbers"]].reshape(-1, 2)
        self.rows.release(lease)  # `seen` is a copy
        share = np.clip((seen - low) / (high - low), 0.0, 1.0 - 1e-6)
        np.add.at(self.visits, tuple((share * settings["cells"]).astype(int).T), 1)
        self.meter.rate("rows", len(seen))
        self.meter.phases.rest()
        return len(seen)

    def report(self):
        """Return the metrics, and counters for the run's status."""
        cells = int((self.visits > 0).sum())
        self.meter.last("cells", cells)
        self.meter.last("share", cells / self.visits.size)
        self.path.write_text(json.dumps(self.visits.tolist()))
        return self.meter.flush(), {"rows": int(self.visits.sum())}

    def command(self, command):
        """Take no commands."""

    def close(self):
        """Close the stream, and write the last map."""
        self.rows.close()
        self.path.write_text(json.dumps(self.visits.tolist()))
        return {"rows": int(self.visits.sum())}


def check(worker):
    """Refuse wrong settings before anything starts."""
    settings = worker.settings or {}
    if {len(settings.get(name, ())) for name in ("numbers", "low", "high")} != {2}:
        raise ConfigError(
            f"{worker.name} has the settings {settings}; give two numbers for each of numbers, low, high."
        )


COVERAGE = Kind(
    "coverage",
    "coverages",
    "own_worker:Coverage",
    ports=(Port("rows", "samples", "reads", schemas=("trajectory",)),),
    loads_jax=False,
    check=check,
    shown=Shown(
        activities=(
            Activity("wait", "wait", "share of time without trajectories", waits_for="trajectories"),
            Activity("count", "other", "share of time counting"),
        ),
        metrics=(
            Metric("cells", "cells that were visited", "cells", "rises"),
            Metric("share", "share of all cells that was visited", "-", "rises"),
            Metric("rows_per_s", "rows read", "1/s", "level"),
        ),
    ),
    travel=Travel(needs_folder=f"it writes {FILE}"),
)


def with_coverage(graph):
    """Return the graph with this worker: every trajectory goes to the learner and to it."""
    settings = {
        "numbers": [0, 2],
        "low": [-2.4, -0.21],
        "high": [2.4, 0.21],
        "cells": 20,
    }  # CartPole's position and angle
    graph = graph.add(node("coverage", "own_worker:COVERAGE", rows="samples", settings=settings))
    return graph.with_stream("samples", routing="broadcast")


def experiment(total_env_steps=60_000):
    """Return the experiment; any other with trajectories of such observations would do."""
    return jsrl.Experiment(
        name="own_worker",
        agent=jsrl.PPOConfig(learning_rate=3e-3, schedule="linear", gamma=0.98, gae_lambda=0.9, num_epochs=8),
        env=jsrl.EnvConfig("CartPole-v1"),
        num_envs=16,
        rollout_length=64,
        total_env_steps=total_env_steps,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--total-env-steps", type=int, default=60_000)
    result = jsrl.run(experiment(parser.parse_args().total_env_steps), graph=with_coverage)
    visits = np.array(json.loads((result.folder / FILE).read_text()))
    print(result)
    print(
        f"{(visits > 0).sum()} of {visits.size} cells visited in {visits.sum():,} rows; their map is {result.folder / FILE}"
    )
