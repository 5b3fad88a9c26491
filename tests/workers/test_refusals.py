"""Complaints of a stream end no worker: they are counted, logged once, and valid messages still arrive."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import numpy as np
import pytest

from jsrl.errors import JsrlError, SpecMismatch, StreamClosed, StreamError, StreamTimeout
from jsrl.transport.base import ProducerId
from jsrl.transport.table import bind_samples, connect_samples
from jsrl.types import ArraySpec, zeros
from jsrl.workers.base import Refusals
from jsrl.workers.learner.batching import Batcher, BatchPlan
from tests.contracts.sample_producer import make_schema

SCHEMA = make_schema(3)


class MessageRecorder:
    """A reporter that stores its messages."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def event(self, name: str, text: str = "", **_: object) -> None:
        self.texts.append(f"{name}: {text}")


def test_complaints_are_counted_and_logged_once() -> None:
    told = MessageRecorder()
    refusals = Refusals("learner", told)  # type: ignore[arg-type]
    answers: list[object] = [SpecMismatch("leaf x"), StreamError("fenced"), 7]

    def take(timeout_s: float) -> object:
        answer = answers.pop(0)
        if isinstance(answer, JsrlError):
            raise answer
        return answer

    assert refusals.take(take, 10.0) == 7
    assert refusals.count == 2 and len(told.texts) == 1 and "leaf x" in told.texts[0]


@pytest.mark.parametrize("error", [StreamTimeout("late"), StreamClosed("gone")])
def test_valid_messages_pass_through(error: StreamError) -> None:
    refusals = Refusals("learner")

    def take(timeout_s: float) -> None:
        raise error

    with pytest.raises(type(error)):
        refusals.take(take, 10.0)
    assert refusals.count == 0


def test_flood_of_complaints_ends_at_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    clock_s, asked_s = 100.0, list[float]()
    monkeypatch.setattr("jsrl.workers.base.time", SimpleNamespace(monotonic=lambda: clock_s))
    refusals = Refusals("learner")

    def take(timeout_s: float) -> None:
        nonlocal clock_s
        clock_s += 1.0
        asked_s.append(timeout_s)
        raise SpecMismatch("again")

    with pytest.raises(StreamTimeout, match="again"):
        refusals.take(take, 3.5)
    assert asked_s == [3.5, 2.5, 1.5, 0.5] and refusals.count == 4


@pytest.mark.parametrize("transport", ["shm", "ipc"])
def test_hello_with_another_schema_leaves_batches_unchanged(transport: str, tmp_path) -> None:
    consumer = bind_samples(f"ipc://{tmp_path}/s" if transport == "ipc" else f"shm:{tmp_path}/run/samples", SCHEMA)
    rows, columns = SCHEMA.reward.shape
    plan = BatchPlan("fifo", (0,), columns, columns, rows - 1, max_lag=None)
    refusals = Refusals("learner")
    batcher = Batcher(consumer, SCHEMA, plan, refusals=refusals)

    def stranger() -> None:
        other = SCHEMA._replace(reward=ArraySpec(SCHEMA.reward.shape, "float64"))
        with pytest.raises(SpecMismatch):
            connect_samples(consumer.address, other, ProducerId("stranger", 0), 1, 20.0)

    thread = threading.Thread(target=stranger)
    thread.start()
    while thread.is_alive():
        assert batcher.next(0.05) is None
    assert batcher.next(0.2) is None and refusals.count == 1
    good = connect_samples(consumer.address, SCHEMA, ProducerId("actor-0", 0), 1, 20.0)
    good.put(zeros(SCHEMA), 0, 20.0)
    batch = None
    while batch is None:
        batch = batcher.next(1.0)
    assert np.array_equal(batch.trajectory.reward[0], zeros(SCHEMA).reward)
    good.close()
    consumer.close()
