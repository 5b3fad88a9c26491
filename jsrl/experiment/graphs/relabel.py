"""Rewards with an entropy bonus: a worker between actors and learner evaluates the newest policy on every row.

`python experiments/run.py ppo_cartpole --num-actors 4 --graph jsrl.experiment.graphs.relabel:with_entropy`

The reward of a row becomes r + weight * -log pi(a' | o), with a' drawn from the newest policy at the row's observation: one
draw's estimate of that policy's entropy there, the reward of maximum-entropy reinforcement learning (arXiv 1702.08165). The
weight falls to 0 within `updates` updates, counted by the params' version. Agents without log-probabilities
get no bonus.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from jsrl.extend import (
    Activity,
    Entry,
    Graph,
    InferenceRequests,
    Kind,
    Lease,
    Metric,
    Port,
    Request,
    Shown,
    Stream,
    Trajectory,
    TrajectoryTransform,
    map_tree,
    node,
    subscribe,
    version_updates,
)

OWN_KEYS = 1 << 31  # keys of its requests differ from the actors' of the same group and step


class Relabel(TrajectoryTransform):
    """Adds the bonus to rewards; sends rows one by one, so that recurrent policies see them in order."""

    def setup(self) -> None:
        """Connect to the inference server and to the params, then as any worker between."""
        self._asker, self._params = InferenceRequests(self.job), subscribe(self.job, "params")
        self._asker.open()
        self._entry: Entry | None = None
        self._weight, self._entropy = self.job.settings["weight"], list[np.ndarray]()
        super().setup()

    def ready(self, lease: Lease) -> bool:
        """Request the rows that have no reply yet; return whether all have one."""
        if lease.entry != self._entry:
            self._entry, self._entropy = lease.entry, []
            self._look_at_params()
        rows, first = lease.trajectory, lease.entry.origin.sequence * self.job.experiment.rollout_length
        self._phases.enter("wait_answers")
        while self._weight and (at := len(self._entropy)) < len(rows.reward) - 1:
            observation = map_tree(lambda leaf, at=at: leaf[at], rows.observation)
            request = Request(observation, rows.is_first[at], step=OWN_KEYS + first + at)
            reply = self._asker.ask(lease.entry.group, request, self.job.poll_s)
            if reply is None:
                return False
            log_prob = np.asarray(reply.log_prob)
            self._entropy.append(-log_prob.reshape(len(log_prob), -1).sum(axis=1))  # of all agents together
        return True

    def _look_at_params(self) -> None:
        newer = self._params.poll()
        if newer is not None:
            done = version_updates(newer[0]) / self.job.settings["updates"]
            self._weight = self.job.settings["weight"] * max(0.0, 1.0 - done)
            self.meter.last("weight", self._weight)

    def change(self, trajectory: Trajectory, entry: Entry) -> None:
        """Add the bonus to the rewards [T, B] of rows on which the agent acted."""
        if self._weight:
            bonus = self._weight * np.stack(self._entropy) * ~trajectory.is_first[1:]
            trajectory.reward[:-1] += bonus.reshape(bonus.shape + (1,) * (trajectory.reward.ndim - 2))
            self.meter.mean("bonus_mean", float(bonus.mean()))

    def close(self) -> dict[str, Any]:
        """Disconnect from all streams."""
        self._asker.close()
        self._params.close()
        return super().close()


RELABEL = Kind(
    "relabel",
    "relabelers",
    "jsrl.experiment.graphs.relabel:Relabel",
    ports=(*TrajectoryTransform.ports, Port("inference", "inference", "asks"), Port("params", "params", "reads")),
    loads_jax=False,
    shown=Shown(
        activities=(
            *TrajectoryTransform.activities,
            Activity("wait_answers", "wait", "share of time waiting for the inference server", "depends", "actions"),
        ),
        metrics=(
            Metric("bonus_mean", "bonus of a row", "reward", "falls with the weight"),
            Metric("weight", "weight of the entropy in the reward", "-", "falls to 0"),
            Metric("trajectories_per_s", "trajectories passed on", "1/s", "level"),
        ),
    ),
)


def with_entropy(graph: Graph) -> Graph:
    """Put a relabeler between actors and learner; if no server acts for the actors, add one for it."""
    graph = graph.insert("jsrl.experiment.graphs.relabel:RELABEL", settings={"weight": 0.01, "updates": 1_000})
    groups = graph.stream("samples").groups
    if not graph.family("inference"):
        server = node("inference-0", "inference", inference=("inference", groups), params=graph.params)
        graph = graph.add(server, Stream("inference", "inference", groups=groups))
    return graph.connect("relabel", inference=("inference", groups), params=graph.params)
