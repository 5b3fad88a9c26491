"""Admission to batches across recoveries: never a row that is too old or was undone, and never starvation."""

from __future__ import annotations

import gc
import itertools
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from jsrl.transport.base import ProducerId
from jsrl.transport.ledger.legs import SAMPLES, leg_folder, read_leg
from jsrl.transport.ledger.page import LEDGER, open_ledger, read_page
from jsrl.transport.table import bind_samples, connect_samples
from jsrl.types import ArraySpec, Discrete, EnvSpec, make_trajectory_spec, make_version, zeros
from jsrl.workers.learner.batching import Batch, Batcher, BatchPlan

T, SIZE, GROUPS = 3, 1, 2
SPEC = make_trajectory_spec(EnvSpec(ArraySpec((1,), "float32"), Discrete(2)), (), (), num_rows=T, num_envs=SIZE)
_numbers = itertools.count()


class Admission(RuleBasedStateMachine):
    """A learner, its stream and actors that may have missed any number of updates, or a recovery.

    `history`: all published versions. `lineage`: the ancestors of the learner's params.
    """

    def __init__(self) -> None:
        super().__init__()
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # where fsync costs nothing
        self.folder = Path(tempfile.mkdtemp(prefix="jsrl-admission-", dir=memory))
        self.leg = leg_folder(self.folder, SAMPLES)
        self.consumer = None
        self.ends: list = []  # of all incarnations: dead ones are removed at the end only

    @initialize(order=st.sampled_from(["fifo", "by_group"]), slack=st.integers(0, 2), reuse=st.integers(1, 2))
    def begin(self, order: str, slack: int, reuse: int) -> None:
        self.order, self.reuse, self.max_lag = order, reuse, slack + reuse - 1
        self.snapshot = {"updates": 0, "ledger": None}
        self.history: list[int] = []
        self.lineage: set[int] = set()
        self.open: dict[int, list[int]] = {group: [] for group in range(GROUPS)}
        self.produced = self.incarnation = self.trained = 0
        self.live()

    def live(self) -> None:
        """Start a learner from the snapshot; actors join it in the middle of their trajectories."""
        self.generation, ledger = open_ledger(self.folder / LEDGER, 0, self.snapshot["ledger"], leg=self.leg)
        self.updates = self.snapshot["updates"]
        self.trained = self.snapshot["ledger"]["trained"] if self.snapshot["ledger"] else 0
        name = f"local:admission-{next(_numbers)}"
        self.consumer = bind_samples(name, SPEC, blocks_per_producer=64, ledger=ledger, leg=self.leg)
        self.incarnation += 1
        who = ProducerId("actor-0", self.incarnation)
        self.producer = connect_samples(name, SPEC, who, GROUPS, 1.0, leg=self.leg)
        self.ends += [self.producer, self.consumer]
        plan = BatchPlan(
            self.order, tuple(range(GROUPS)), SIZE, GROUPS * SIZE, T, max_lag=self.max_lag, reuse=self.reuse,
            start_updates=self.updates, generation=self.generation,
        )  # fmt: skip
        self.batcher = Batcher(self.consumer, SPEC, plan)
        self.publish()

    def publish(self) -> None:
        self.newest = make_version(self.generation, self.updates)
        self.history.append(self.newest)
        self.lineage.add(self.newest)

    @rule(group=st.integers(0, GROUPS - 1), age=st.integers(0, 12))
    def act(self, group: int, age: int) -> None:
        """Play one row with params that were published `age` publications ago, maybe by an earlier learner."""
        self.open[group].append(self.history[max(-1 - age, -len(self.history))])
        if len(self.open[group]) == T:
            self.commit(group, self.open[group])
            self.open[group] = []

    @rule(group=st.integers(0, GROUPS - 1))
    def act_freshly(self, group: int) -> None:
        """Play a whole trajectory with the newest params."""
        self.commit(group, [self.newest] * T)

    def commit(self, group: int, versions: list[int]) -> None:
        trajectory = zeros(SPEC)
        trajectory.version[:-1] = np.array(versions)[:, None]
        trajectory.reward[:-1] = trajectory.version[:-1] % 1_000_003  # is sent with the version, and must stay with it
        self.producer.put(trajectory, group, 1.0)
        self.produced += 1

    @rule()
    def learn(self) -> None:
        batch = self.batcher.next(0.0)
        if batch is not None:
            self.train(batch)

    def train(self, batch: Batch) -> None:
        """Check every row of a batch as its updates start, then make them."""
        versions = batch.trajectory.version[0, :T]
        np.testing.assert_array_equal(batch.trajectory.reward[0, :T], (versions % 1_000_003).astype(np.float32))
        assert set(versions.flat) <= self.lineage, "a row of updates that were undone"
        for _ in range(self.reuse):
            lag = self.updates - int((versions & ((1 << 40) - 1)).min())
            assert 0 <= lag <= self.max_lag
            self.updates += 1
        assert max(batch.lags) == lag - self.reuse + 1
        self.trained += GROUPS
        self.batcher.used(batch, None)  # type: ignore[arg-type]
        self.publish()

    @rule()
    def save(self) -> None:
        self.snapshot = {
            "updates": self.updates,
            "ledger": self.consumer.ledger.counts | {"trained": self.trained, "generation": self.generation},
        }

    @precondition(lambda self: len(self.history) > 1)
    @rule()
    def kill_the_learner(self) -> None:
        """Lose everything committed, joined and published since the snapshot; the page stays."""
        self.lineage = {v for v in self.lineage if v & ((1 << 40) - 1) <= self.snapshot["updates"]}
        last = self.generation
        self.live()
        assert self.generation == last + 1

    @invariant()
    def nothing_is_unaccounted_for(self) -> None:
        if self.consumer is None:
            return
        ledger, page, leg = self.consumer.ledger, read_page(self.folder / LEDGER), read_leg(self.folder)
        assert ledger.balanced and ledger.received == self.produced
        assert leg is not None and leg.balanced and leg.produced == self.produced
        assert page is not None and page.ledger.counts == ledger.counts
        assert ledger.consumed >= self.trained

    def teardown(self) -> None:
        """Let actors that follow the params feed the learner after any history."""
        if self.consumer is not None:
            target = self.updates + 2 * self.reuse
            for _ in range(400):
                if self.updates >= target:
                    break
                for group in range(GROUPS):
                    self.act_freshly(group)
                for _ in range(4):
                    self.learn()
            assert self.updates >= target, "the learner starves"
            self.nothing_is_unaccounted_for()
        for end in self.ends:
            end.close()
        self.ends, self.consumer, self.producer, self.batcher = [], None, None, None
        shutil.rmtree(self.folder)


def drive(examples: int, *, derandomize: bool) -> None:
    quiet = (HealthCheck.too_slow, HealthCheck.filter_too_much)
    run_state_machine_as_test(
        Admission,
        settings=settings(
            max_examples=examples,
            stateful_step_count=40,
            deadline=None,
            derandomize=derandomize,
            database=None,
            suppress_health_check=quiet,
        ),
    )
    gc.collect()  # pages of dead incarnations, each an open file


@pytest.mark.slow
def test_admission_through_recoveries() -> None:
    drive(5, derandomize=True)


@pytest.mark.nightly
def test_admission_through_many_recoveries() -> None:
    drive(100, derandomize=False)
