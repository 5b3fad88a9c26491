"""Workers between actors and replay: the origin of a trajectory is passed on, and replay joins lanes by it."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jsrl.envs.config import EnvConfig
from jsrl.errors import ConfigError, SpecMismatch
from jsrl.experiment import AgentReference, EvaluatorConfig, Experiment, ReplayConfig
from jsrl.graph.graph import Graph, node
from jsrl.graph.plan import Plan, make_plan
from jsrl.replay.shared import windows_spec
from jsrl.transport.base import Entry, Origin, ProducerId, SampleConsumer
from jsrl.transport.ledger.legs import read_legs
from jsrl.transport.stream import replay_batch_spec
from jsrl.transport.table import connect_samples
from jsrl.types import ArraySpec
from jsrl.workers.base import Reporter
from jsrl.workers.ends import Writer, begin_counting, bind_reader
from jsrl.workers.kinds import build_worker
from jsrl.workers.replay.worker import ReplayWorker
from jsrl.workers.transform import TrajectoryTransform

WORLD = Path(__file__).parents[1] / "system" / "world"
T = 4


class Silent(Reporter):
    stage = event = entering = left = lambda *_, **__: None


def two_in_a_row(graph: Graph) -> Graph:
    first = graph.insert("my_workers:AUGMENT", settings={"noise": 0.0})
    return first.insert("my_workers:AUGMENT", stream="samples-augment", name="second", settings={"noise": 0.0})


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    monkeypatch.syspath_prepend(str(WORLD))
    monkeypatch.delitem(sys.modules, "my_workers", raising=False)
    experiment = Experiment(
        agent=AgentReference("tests.replay.learning:acting_toy", {"poison": 1e9}),
        env=EnvConfig("CartPole-v1"),
        num_envs=2,
        rollout_length=T,
        total_env_steps=1_000,
        placement="serial",
        replay=ReplayConfig(kind="host", capacity=200, batch_size=4, min_size=100),
        evaluator=EvaluatorConfig(enabled=False),
    )
    return make_plan(experiment, str(tmp_path / "run"), tmp_path / "memory", edit=two_in_a_row)


class Row:
    """An actor's end, two workers in sequence, a replay worker and a learner's end, in this process."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        learner = plan.job("learner")
        windows = windows_spec(learner.experiment.buffer, learner.schemas.trajectory)
        self.batches = bind_reader(learner, "samples", replay_batch_spec(windows))
        self.workers: dict[str, Any] = {}
        for name in ("replay-0", "second", "augment"):
            self.start(name, 0)
        self.act(0)

    def start(self, name: str, incarnation: int) -> None:
        job = dataclasses.replace(self.plan.job(name), incarnation=incarnation)
        self.workers[name] = build_worker(job, Silent())
        self.workers[name].setup()

    def act(self, incarnation: int) -> None:
        """Start an incarnation of the actor."""
        job = dataclasses.replace(self.plan.job("actor-0"), incarnation=incarnation)
        self.actor = Writer(job, "samples", job.schemas.trajectory)
        self.actor.open()

    def send(self, count: int, *through: str) -> None:
        for _ in range(count):
            self.actor.reserve(1.0).commit(0)
            for name in through or ("augment", "second", "replay-0"):
                for _ in range(3):
                    self.workers[name].step()

    def replace(self, name: str) -> None:
        """End a worker with all that it holds, and start its replacement."""
        old = self.workers[name]
        old.close()
        self.start(name, old.job.incarnation + 1)

    @property
    def breaks(self) -> int:
        """Return how often the replay worker found a trajectory that does not follow the last one."""
        replay: ReplayWorker = self.workers["replay-0"]
        return int(replay._replay.rows.after_gap.sum()) // self.plan.experiment.group_size

    @property
    def inserted(self) -> int:
        return self.workers["replay-0"]._replay.inserted // self.plan.experiment.group_size // T

    def close(self) -> None:
        self.actor.close()
        for worker in reversed(self.workers.values()):
            worker.close()
        self.batches.close()


@pytest.fixture
def row(plan: Plan):
    made = Row(plan)
    yield made
    made.close()


def test_lane_continues_after_a_transform_worker_is_replaced(row: Row) -> None:
    row.send(3)
    row.replace("second")
    row.send(3)
    assert (row.inserted, row.breaks) == (6, 0)


def test_lane_breaks_where_a_transform_worker_lost_a_trajectory(row: Row) -> None:
    row.send(3)
    row.send(1, "augment")  # waits in the second worker's stream
    row.replace("second")
    row.send(3)
    assert (row.inserted, row.breaks) == (6, 1)


def test_lane_breaks_where_the_actor_upstream_is_replaced(row: Row) -> None:
    row.send(3)
    row.actor.close()
    row.act(1)
    row.send(3)
    assert (row.inserted, row.breaks) == (6, 1)


def test_a_stranger_with_another_schema_does_not_end_the_worker(row: Row) -> None:
    second = row.workers["second"]
    schema = row.plan.schemas.trajectory
    other = schema._replace(reward=ArraySpec(schema.reward.shape, "float64"))
    with pytest.raises(SpecMismatch):
        connect_samples(second._consumer.address, other, ProducerId("augment", 9), 1, 1.0)
    row.send(2)
    assert row.inserted == 2 and second._refusals.count == 1


def test_broadcast_waits_for_the_slowest_reader(plan: Plan, tmp_path: Path) -> None:
    def counted(graph: Graph) -> Graph:
        onwards = graph.insert("my_workers:AUGMENT", settings={"noise": 0.0})
        both = onwards.add(node("count", "my_workers:COUNT", rows="samples-augment"))
        return both.with_stream("samples-augment", routing="broadcast")

    folder = tmp_path / "other"
    jobs = make_plan(plan.experiment, str(folder), tmp_path / "memory-2", edit=counted).job
    schema = plan.schemas.trajectory

    def reader(name: str, incarnation: int) -> SampleConsumer:
        job, port = (
            dataclasses.replace(jobs(name), incarnation=incarnation),
            "samples" if name == "replay-0" else "rows",
        )
        return bind_reader(job, port, schema, begin_counting(job, port))

    def taken(consumer: SampleConsumer) -> list[int]:
        leases = [consumer.get(1.0) for _ in range(consumer.pending())]
        for lease in leases:
            consumer.release(lease)
        return [lease.entry.origin.sequence for lease in leases]

    replay, count = reader("replay-0", 0), reader("count", 0)
    between = build_worker(jobs("augment"), Silent())
    between.setup()
    actor = Writer(jobs("actor-0"), "samples", schema)
    actor.open()
    for _ in range(3):
        actor.reserve(1.0).commit(0)
        between.step()
    assert between.passed == 2 == count.pending()  # as many as there are blocks
    assert taken(replay) == [0, 1]
    between.step()
    assert between.passed == 2 and not replay.pending()
    count.close()
    between.step()
    count = reader("count", 1)
    for _ in range(3):
        between.step()
    assert taken(count) == taken(replay) == [2]
    for end in (actor, between, replay, count):
        end.close()
    ledgers = read_legs(folder)
    assert {name: ledger.produced for name, ledger in ledgers.items()} == {
        "samples.augment": 3,
        "samples-augment.replay-0": 3,
        "samples-augment.count": 3,
    }
    assert all(ledger.balanced for ledger in ledgers.values())
    assert ledgers["samples-augment.count"].dropped == {"closed": 2}


def test_a_change_that_returns_a_trajectory_is_refused(row: Row) -> None:
    row.workers["augment"].change = lambda trajectory, entry: trajectory._replace(reward=0.1 * trajectory.reward)
    with pytest.raises(ConfigError, match=r"change of \w+ returned a Trajectory, .*write into the arrays"):
        row.send(1, "augment")
    del row.workers["augment"].change


def test_a_setup_that_does_not_call_that_of_the_base_class_is_named(plan: Plan) -> None:
    with pytest.raises(ConfigError, match=r"setup of \w+ must call super\(\).setup\(\)"):
        build_worker(plan.job("augment"), Silent()).step()


def test_random_numbers_depend_on_the_actor_and_differ_per_worker(row: Row) -> None:
    first, second = row.workers["augment"], row.workers["second"]
    made = Origin(ProducerId("actor-0", 2), 5)

    def numbers(worker: TrajectoryTransform, entry: Entry, at: int = 0) -> list[float]:
        return worker.rng(entry, at).standard_normal(3).tolist()

    entry = Entry(ProducerId("actor-0", 2), 0, 5)
    passed_on = Entry(ProducerId("augment", 7), 0, 1, made)
    assert numbers(second, entry) == numbers(second, passed_on) != numbers(first, passed_on)
    following = Entry(passed_on.producer, 0, 2, made._replace(sequence=6))
    np.testing.assert_array_equal(numbers(second, passed_on, T), numbers(second, following, 0))
