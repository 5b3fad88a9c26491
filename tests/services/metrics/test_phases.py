from __future__ import annotations

import itertools
import json
import timeit
from pathlib import Path

import pytest

from jsrl.services.metrics.metrics import Meter
from jsrl.services.metrics.phases import PHASES, TRACES, Phases, by_phase
from jsrl.services.metrics.tracing import FILE, TracedPhases, Tracer, merge_traces
from jsrl.workers.kinds import catalogue, find_kind, own_kinds, phase_of


class Clock:
    """Nanoseconds that pass only when set."""

    def __init__(self) -> None:
        self.now_ns = 5_000

    def __call__(self) -> int:
        return self.now_ns


def test_every_activity_has_a_phase_and_a_metric():
    for kind in own_kinds():
        activities = kind.all_activities
        names = [activity.name for activity in activities]
        assert len(set(names)) == len(names)
        assert {activity.phase for activity in activities} <= set(PHASES)
        assert all(f"{kind.prefix}/{name}_share" in catalogue().by_name for name in names)
        assert {"other", "wait_turn"} <= set(names)


def test_every_moment_belongs_to_one_activity():
    clock = Clock()
    phases = Phases(clock_ns=clock)
    clock.now_ns += 10_000  # the setup
    phases.begin()
    for activity, spent_ns in (("env", 300), ("transport", 100), ("env", 500)):
        phases.enter(activity)
        clock.now_ns += spent_ns
    phases.rest()
    clock.now_ns += 100
    assert phases.shares() == pytest.approx({"env": 0.8, "transport": 0.1, "other": 0.1})
    clock.now_ns += 50  # the current activity counts too
    assert phases.shares() == pytest.approx({"env": 0.0, "transport": 0.0, "other": 1.0})
    phases.enter("env")
    clock.now_ns += 150
    phases.enter("transport")
    clock.now_ns += 50
    assert phases.shares() == pytest.approx({"env": 0.75, "transport": 0.25, "other": 0.0})


def test_timer_that_was_not_started_reports_nothing():
    meter = Meter("actor")
    meter.phases.enter("env")
    assert meter.flush() == {}
    meter.begin()
    assert sum(meter.flush().values()) == pytest.approx(1.0)


def test_extra_threads_have_their_own_names():
    meter = Meter("learner", rest="wait_turn")
    meter.begin()
    thread = meter.thread("prefetch")
    thread.begin()
    thread.enter("transport")
    meter.phases.enter("update")
    meter.phases.rest()
    report = meter.flush()
    assert report.keys() >= {"learner/update_share", "learner/wait_turn_share", "learner/prefetch_transport_share"}
    first = [share for name, share in report.items() if "prefetch" not in name]
    assert sum(first) == pytest.approx(1.0)
    assert sum(report.values()) - sum(first) == pytest.approx(1.0, abs=1e-3)


def test_phases_of_a_worker_add_up_without_its_second_thread():
    shares = {
        "update": 0.5,
        "publish": 0.1,
        "snapshot": 0.1,
        "wait_batch": 0.2,
        "other": 0.1,
        "prefetch_wait_batch": 1.0,
    }
    phases = by_phase(find_kind("learner").all_activities, shares)
    assert tuple(phases) == PHASES
    assert phases == pytest.approx(
        {"simulate": 0, "infer": 0, "train": 0.5, "transport": 0, "wait": 0.2, "publish": 0.2, "other": 0.1}
    )


def test_switching_activities_is_cheap():
    """An actor switches five times a step; a step of 8 CartPoles takes more than 100 microseconds."""
    phases = Phases()
    seconds = min(timeit.repeat(lambda: phases.enter("env"), number=1000, repeat=50)) / 1000
    assert 5 * seconds < 0.1 * 100e-6  # a tenth even on a machine ten times as busy as it should be


def test_trace_keeps_the_newest_spans_and_counts_dropped_ones():
    phases = TracedPhases("main", 10)
    for index in range(25):
        phases.enter(("env", "transport")[index % 2])
        phases.enter("transport")  # again: no new span
    facts = phases.facts()
    assert facts["starts_ns"] == sorted(facts["starts_ns"])
    assert len(facts["starts_ns"]) == len(facts["kinds"]) == 10
    assert facts["forgotten"] == facts_entered(25) - 10
    assert [facts["activities"][kind] for kind in facts["kinds"]][-1] == "transport"


def facts_entered(switches: int) -> int:
    """Spans of the loop above: setup, then env and transport for even indices, nothing new for odd ones."""
    return 1 + 2 * (switches // 2 + 1)


def test_traces_of_several_workers_share_one_axis(tmp_path: Path):
    for name in ("actor-0", "learner"):
        tracer = Tracer(tmp_path, name, 0, 1000)
        main, second = tracer.thread("main"), tracer.thread("second")
        main.begin()
        main.enter("env" if name == "actor-0" else "update")
        second.enter("wait_batch")
        main.mark("updates", 3)
        main.rest()
        tracer.save()
    (tmp_path / TRACES / "actor-1.0.json").write_text('{"worker": "actor-1", "thr')  # killed while writing
    path = merge_traces(tmp_path, phase_of())
    assert path == tmp_path / FILE
    assert not (tmp_path / TRACES).exists()
    events = json.loads(path.read_text())["traceEvents"]
    assert {e["args"]["name"] for e in events if e["name"] == "process_name"} == {"actor-0", "learner"}
    spans = [e for e in events if e["ph"] == "X"]
    assert {e["name"] for e in spans} == {"setup", "other", "env", "update", "wait_batch"}
    assert all(e["cat"] == phase_of()[e["name"]] and e["ts"] >= 0 and e["dur"] >= 0 for e in spans)
    assert min(e["ts"] for e in spans) == 0
    for pid, tid in {(e["pid"], e["tid"]) for e in spans}:
        own = [e for e in spans if (e["pid"], e["tid"]) == (pid, tid)]
        for before, after in itertools.pairwise(own):
            assert before["ts"] + before["dur"] == pytest.approx(after["ts"])
    assert [e["args"] for e in events if e["ph"] == "C"] == [{"updates": 3.0}] * 2


def test_merging_without_traces_writes_nothing(tmp_path: Path):
    assert merge_traces(tmp_path, phase_of()) is None
    assert list(tmp_path.iterdir()) == []


def test_unwritable_trace_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    tracer = Tracer(tmp_path / "gone", "actor-0", 0, 1000)
    tracer.thread("main")
    tracer.save()
    assert "the trace of actor-0 could not be written" in caplog.text
