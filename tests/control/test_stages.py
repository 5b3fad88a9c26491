"""Stages of workers: counts and waits follow every change."""

from __future__ import annotations

from jsrl.control.status_writer import Stages
from jsrl.services.metrics.display_state import Waiting
from jsrl.workers.kinds import find_kind


def test_counts_and_waits_follow_every_change():
    kinds = {"actor-0": find_kind("actor"), "actor-1": find_kind("actor"), "learner": find_kind("learner")}
    stages = Stages(kinds)
    for worker in kinds:
        stages.set(worker, "starting the interpreter", 1.0)
    assert stages.counts == {"actor": 2, "learner": 1} and stages.rows.keys() == {"actor", "learner"}
    stages.set("actor-0", "ready", 2.0)
    stages.set("learner", "compiling", 3.0)
    assert stages.waiting(5.0) == (
        Waiting("actor-1", "starting the interpreter", 4.0),
        Waiting("learner", "compiling", 2.0),
    )
    stages.set("actor-0", "restarting", 6.0)  # counted once
    stages.remove("actor-1")
    stages.remove("actor-1")
    assert stages.counts == {"actor": 1, "learner": 1}
    assert list(stages) == [("actor-0", "restarting", 6.0), ("learner", "compiling", 3.0)]
    assert [waits.worker for waits in stages.waiting(6.0)] == ["learner", "actor-0"]


def test_a_long_call_is_shown_until_it_ends():
    stages = Stages({name: find_kind("actor") for name in ("actor-0", "actor-1")} | {"learner": find_kind("learner")})
    for worker in ("learner", "actor-0"):
        stages.set(worker, "ready", 1.0)
    stages.call("learner", "an update", 0.2, 10.0)
    assert stages.long_calls(10.0) == ()
    stages.call("learner", "an update", 6.0, 16.0)
    stages.call("actor-0", "actor-0: a step", 8.0, 16.0)  # texts about environments begin with the worker's name
    assert [str(call) for call in stages.long_calls(18.0)] == ["actor-0: a step for 10s", "learner: an update for 8s"]
    stages.call("learner", "", 0.0, 19.0)
    stages.remove("actor-0")
    assert stages.long_calls(19.0) == ()
