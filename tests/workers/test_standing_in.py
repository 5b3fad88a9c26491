"""Groups stand in for those that nobody steps: batches are still filled, in order, and within the limit of the lag."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import numpy as np
import pytest

from jsrl.errors import StreamTimeout
from jsrl.services.runs.control_bodies import Command
from jsrl.transport.base import ProducerId, Reply, Request
from jsrl.transport.table import bind_samples, connect_samples
from jsrl.types import make_version
from jsrl.workers.actor.policies import ActingPolicy, Pace, Progress
from jsrl.workers.actor.streams import Streams
from jsrl.workers.actor.worker import Actor, ActorSettings
from jsrl.workers.base import NullReporter
from jsrl.workers.learner.batching import Batcher, BatchPlan
from tests.marks import slow
from tests.workers.test_actor import SPEC as ACTOR_SPEC
from tests.workers.test_actor import B, Counted, Rig
from tests.workers.test_actor import T as ROWS
from tests.workers.test_batching import SIZE, SPEC, Stream, T, filled, joined, numbers, same


def test_a_pace_makes_more_for_each_batch_from_one_on_and_counts_on_afterwards() -> None:
    usual = Pace()
    assert [usual.batch_of(n) for n in range(4)] == [0, 1, 2, 3]
    double = usual.changed(2, 2, 3)  # it has made one for batch 2, and waits to make one for batch 3
    assert [double.batch_of(n) for n in range(1, 8)] == [1, 2, 2, 3, 3, 4, 4]
    triple = double.changed(3, 3, 4)
    assert [triple.batch_of(n) for n in range(4, 9)] == [3, 3, 3, 4, 4]
    back = double.changed(3, 1, 4)  # its open trajectory is for batch 3, which gets two
    assert [back.batch_of(n) for n in range(5, 9)] == [3, 4, 5, 6]  # 4 and 5 are for batch 3
    assert double.changed(3, 1, None).batch_of(5) == 4  # of a new consumer, which knows none of its trajectories


def test_columns_of_absent_groups_are_filled_by_the_others_until_they_are_back() -> None:
    wants: list[tuple[int, dict]] = []
    stream = Stream(groups=4, max_lag=1, start_updates=6, reuse=2)
    stream.batcher._ask = lambda batch, each: wants.append((batch, dict(each)))

    def put(group: int, seed: int, updates: int) -> Any:
        return stream.put(group, seed, make_version(0, updates))

    first, gone = put(0, 1, 6), put(3, 2, 6)
    assert stream.fill() is None
    stream.batcher.stand_in([1, 3, 99])  # 99 is another learner's
    assert stream.fill() is None and wants == [(3, {0: 2, 2: 2})]
    assert stream.ledger.in_flight == 0
    further, second, extra = put(0, 3, 6), put(2, 4, 6), put(2, 5, 6)
    same(stream.fill().trajectory, joined([first, further, second, gone]))  # what an absent group made still counts
    assert stream.ledger.in_flight == 1 and extra is not None  # one too many, of too old params for the next batch
    stream.batcher.stand_in([])
    rows = [put(group, 10 + group, 8) for group in range(4)]
    same(stream.fill().trajectory, joined(rows))
    assert wants[1:] == [(4, {0: 1, 2: 1})]
    assert stream.ledger.dropped == {"stale": 1} and stream.ledger.consumed == 8


def test_many_absent_groups_are_spread_over_the_others_and_a_learner_without_any_waits() -> None:
    wants: list[dict] = []
    stream = Stream(groups=6, max_lag=None)
    stream.batcher._ask = lambda batch, each: wants.append(dict(each))
    for absent in ([0, 1], [0, 1, 2, 3], [0, 1, 2, 3, 4, 5], []):
        stream.batcher.stand_in(absent)
        stream.fill(1)
    assert wants == [{2: 2, 4: 2}, {2: 1, 4: 3, 5: 3}, {4: 1, 5: 1}]
    stream = Stream(groups=2, max_lag=None, order="fifo")
    stream.batcher._ask = lambda batch, each: wants.append(dict(each))
    stream.batcher.stand_in([0])
    assert stream.fill() is None and len(wants) == 3  # in any order nobody is waited for


class Here:
    """A client that acts here: for requests whose params are there."""

    def __init__(self) -> None:
        self.updates = 0
        self.asked: dict[int, Request] = {}
        self.steps: list[int] = []

    def send(self, group: int, request: Request) -> None:
        self.asked[group] = request

    def receive(self, timeout_s: float) -> tuple[int, Reply]:
        for group, request in self.asked.items():
            if request.min_updates <= self.updates:
                del self.asked[group]
                self.steps.append(request.step)
                row = np.zeros(B, np.float32)
                core = (np.zeros((B, 3), np.float32),)
                return group, Reply(row.astype(np.int32), row, {"value": row}, make_version(0, self.updates), core)
        raise StreamTimeout("no params")

    def close(self) -> None: ...


def test_an_actor_makes_further_trajectories_with_the_same_params_and_goes_on_from_there() -> None:
    consumer = bind_samples(f"local:standing-{next(numbers)}", ACTOR_SPEC, blocks_per_producer=8)
    producer = connect_samples(consumer.address, ACTOR_SPEC, ProducerId("actor-0", 0), 2, 1.0)
    client = Here()
    policy = ActingPolicy(Streams(lambda sizes: (client, producer)), max_lag=0, acts_here=True)
    environments = {group: (lambda group=group: Counted(group)) for group in (0, 1)}
    actor = Actor("actor-0", ActorSettings(ROWS, poll_s=0.0), environments, [policy], NullReporter())
    actor.setup()

    def made(updates: int) -> list[int]:
        client.updates = updates
        for _ in range(20 * ROWS):
            actor.step()
        leases = [consumer.get(0.0) for _ in range(consumer.pending())]
        assert {int(v) for lease in leases for v in lease.trajectory.version[:-1].ravel()} <= {updates}
        for lease in leases:
            consumer.release(lease)
        return sorted(lease.entry.group for lease in leases)

    def stand_in(batch: int, **each: int) -> None:
        facts = {"policy": 0, "generation": 0, "batch": batch, "each": [[int(g[1:]), n] for g, n in each.items()]}
        actor.command(Command("stand_in", facts))

    assert made(0) == [0, 1] and made(0) == []
    actor.command(
        Command("stand_in", {"policy": 1, "generation": 0, "batch": 0, "each": [[0, 2]]})
    )  # of another policy
    actor.command(Command("stand_in", {"policy": 0, "generation": 0, "batch": 0, "each": [[7, 2]]}))  # of another actor
    assert made(0) == []
    stand_in(0, g0=3)
    assert made(0) == [0, 0] and made(0) == []
    assert made(1) == [0, 0, 0, 1] and made(1) == []
    stand_in(2, g0=1)
    assert made(2) == [0, 0, 0, 1]  # batch 2 was begun with three: the learner drops two
    assert made(3) == [0, 1] and made(4) == [0, 1]
    own = client.steps
    assert len(own) == len(set(own)) + 5 * ROWS  # both groups have the same numbers; no group repeats one
    actor.close()
    assert consumer.ledger.balanced


def test_an_actor_that_is_served_waits() -> None:
    """A server answers the requests that it has; the absent groups' rows come from their replacements."""
    rig = Rig()
    rig.actor.command(Command("stand_in", {"policy": 0, "generation": 0, "batch": 3, "each": [[0, 2]]}))
    assert rig.actor.groups[0].progress[0].pace == Pace()
    rig.actor.close()


def test_a_new_learner_may_ask_before_an_actor_has_found_it() -> None:
    rows = Progress(ActingPolicy(UNUSED), trajectory=9)
    rows.stand_in(0, 9, 2)
    rows.stand_in(1, 4, 3)
    rows.for_new_learner(1)
    rows.trajectory = 5  # of its first reply: with three for each batch from 4 on, this one is still for 4
    assert rows.batch == 4
    rows.for_new_learner(2)
    rows.trajectory = 5
    assert rows.batch == 5


UNUSED: Any = None  # instead of streams


class World:
    """A learner, groups that nobody may step for a while, and messages that take their time."""

    def __init__(self, seed: int, groups: int, max_lag: int, prefetched: int) -> None:
        self.rng = random.Random(seed)
        self.policy = ActingPolicy(UNUSED, max_lag=max_lag, acts_here=True)
        self.version, self.prefetched, self.batches = 0, prefetched, deque[Any]()
        self.consumer = bind_samples(f"local:world-{next(numbers)}", SPEC, blocks_per_producer=2)
        plan = BatchPlan("by_group", tuple(range(groups)), SIZE, groups * SIZE, T, max_lag=max_lag, buffers=4)
        self.to_actors = deque[tuple[int, dict[int, int]]]()
        self.batcher = Batcher(
            self.consumer, SPEC, plan, ask=lambda batch, each: self.to_actors.append((batch, dict(each)))
        )
        self.to_learner: list[int] = []  # the groups that it is to know as absent
        self.incarnations = dict.fromkeys(range(groups), -1)
        self.rows: dict[int, Progress | None] = {}
        self.producers: dict[int, Any] = {}
        self.lags: list[int] = []
        self.trajectory = filled(seed)
        for group in range(groups):
            self.begin(group)

    def begin(self, group: int) -> None:
        self.incarnations[group] += 1
        who = ProducerId(f"actor-{group}", self.incarnations[group])
        self.producers[group] = connect_samples(self.consumer.address, SPEC, who, group + 1, 1.0)
        self.rows[group] = Progress(self.policy)

    def die(self, group: int) -> None:
        self.rows[group] = None
        self.consumer.fence(ProducerId(f"actor-{group}", self.incarnations[group]))

    def act(self, group: int) -> None:
        """Make a whole trajectory, if its params are there and a block is free."""
        rows = self.rows[group]
        if rows is None or self.policy.min_updates(rows.batch) > self.version:
            return
        try:
            self.trajectory.version[:-1] = make_version(0, self.version)
            self.producers[group].put(self.trajectory, group, 0.0)
        except StreamTimeout:
            return
        rows.trajectory = (self.version if rows.trajectory is None else rows.trajectory) + 1

    def learn(self) -> None:
        if len(self.batches) <= self.prefetched and (batch := self.batcher.next(0.0)) is not None:
            self.batches.append(batch)
            self.lags += batch.lags

    def train(self) -> None:
        if self.batches:
            self.batcher.used(self.batches.popleft(), None)
            self.version += 1

    def tell(self) -> None:
        """Deliver the next message to the actors."""
        if self.to_actors:
            batch, each = self.to_actors.popleft()
            for group, number in each.items():
                if (rows := self.rows[group]) is not None:
                    rows.stand_in(0, batch, number)

    def until(self, updates: int) -> None:
        """Let everything happen in any order until so many further updates are made."""
        goal = self.version + updates
        for _ in range(3000):
            if self.version >= goal:
                return
            turn = self.rng.randrange(len(self.rows) + 4)
            if turn < len(self.rows):
                self.act(turn)
            else:
                (self.learn, self.learn, self.train, self.tell)[turn - len(self.rows)]()
        raise AssertionError(f"stands still at update {self.version} with {sorted(self.rows)}")


@pytest.mark.parametrize(("max_lag", "prefetched"), [(0, 0), slow(1, 0), (1, 1), slow(3, 1)])
def test_training_goes_on_whoever_is_lost_and_comes_back_at_any_moment(max_lag: int, prefetched: int) -> None:
    for seed in range(8):
        world = World(seed, 4, max_lag, prefetched)
        rng = random.Random(seed)
        for _ in range(8):
            world.until(rng.randrange(3))
            lost = rng.sample(range(4), rng.randrange(1, 4))
            for group in lost:
                world.die(group)
            world.batcher.stand_in(lost)
            world.until(rng.randrange(6))
            for group in sorted(lost, key=lambda group: rng.random()):  # one after another
                world.begin(group)
                lost = [other for other in lost if other != group]
                world.batcher.stand_in(lost)
                world.until(rng.randrange(3))
        world.until(10)
        assert max(world.lags) <= max_lag
        consumed = world.consumer.ledger.consumed
        assert world.consumer.ledger.balanced
        for producer in world.producers.values():
            producer.close()
        world.batcher.close()
        world.consumer.close()
        assert consumed >= 4 * world.version and world.version >= 10
