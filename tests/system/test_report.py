"""Reports, traces and verdicts of real runs: served, serial, interrupted, and two with a forced bottleneck."""

from __future__ import annotations

import json
import signal
from itertools import combinations, pairwise

import numpy as np
import pytest

from jsrl.services.metrics.phases import of_main_thread
from jsrl.services.runs.runs import RunFolder, read_metrics
from jsrl.tools.report.report import write_report
from jsrl.workers.kinds import MIN_SPANS, TRACE_SPANS, find_kind
from tests.system.launched import FOREVER, Launched

slow = pytest.mark.slow
ZEROMQ = ("--transport", "zeromq")  # which has one worker more
PATIENCE_S = 180.0  # on a busy machine


def spans(run: Launched) -> dict[str, list[dict]]:
    """Return worker -> the spans of its trace."""
    events = json.loads((run.folder / "trace.json").read_text())["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    found: dict[str, list[dict]] = {name: [] for name in names.values()}
    for event in events:
        if event["ph"] == "X":
            found[names[event["pid"]]].append(event)
    return found


def reports(run: Launched) -> int:
    """Return the number of lines of metrics with a learner's report."""
    return sum("learner/update_share" in line for line in run.lines())


def assert_shares_add_up(run: Launched, kinds: tuple[str, ...]) -> None:
    columns = read_metrics(run.folder / "metrics.jsonl")
    for kind in kinds:
        found = find_kind(kind)
        shares = [columns.get(f"{found.prefix}/{a.name}_share") for a in of_main_thread(found.all_activities)]
        total = np.nansum([share for share in shares if share is not None], axis=0)
        reported = total[total > 0]
        # a phase in progress at a report counts in the next one
        assert reported.size and np.allclose(reported, 1.0, atol=0.08), f"{kind}: {total}"
        assert np.isclose(np.median(reported), 1.0, atol=0.02), f"{kind}: {total}"


def bottleneck(run: Launched) -> str:
    """Stop a run, and return its verdict as one line."""
    run.popen.send_signal(signal.SIGINT)
    text = run.expect(130, 30.0)
    return " ".join(text[text.index("bottleneck: ") : text.index("run folder:")].split())


@slow
def test_serial_run_reports_where_its_time_went(launch) -> None:
    run = launch("--placement", "serial", "--evaluator.enabled", "--trace")
    text = run.expect(0, 40.0)
    assert "where time went:" in text and "bottleneck: " in text
    assert_shares_add_up(run, ("actor", "learner", "evaluator"))
    assert "This run is serial" in (run.folder / "report.txt").read_text()
    assert "<svg" in (run.folder / "report.html").read_text()
    traced = spans(run)
    assert traced.keys() == {"learner", "actor-0", "evaluator"}
    work = [s for own in traced.values() for s in own if s["name"] in ("env", "act", "update")]
    work.sort(key=lambda span: span["ts"])
    assert all(a["ts"] + a["dur"] <= b["ts"] + 1e-3 for a, b in pairwise(work)), "two at once"


@slow
def test_served_run_over_zeromq_writes_one_trace_of_all_workers(launch) -> None:
    run = launch(*FOREVER, "--evaluator.enabled", "--trace", "--num-actors", "2", *ZEROMQ)
    run.await_updates(20, PATIENCE_S)
    run.until(lambda: reports(run) >= 2, "lines of a learner", PATIENCE_S)
    run.until(lambda: any("evaluator/return_mean" in line for line in run.lines()), "a score", PATIENCE_S)
    run.until(lambda: any("evaluator/act_share" in line for line in run.lines()), "its shares of time", PATIENCE_S)
    run.popen.send_signal(signal.SIGINT)
    text = run.expect(130, 40.0)
    assert not (run.folder / "trace").exists()
    traced = spans(run)
    assert traced.keys() == {"learner", "inference-0", "actor-0", "actor-1", "evaluator", "parameter-server"}
    assert {"env", "transport", "wait_inference"} <= {span["name"] for span in traced["actor-0"]}
    assert {"act", "wait"} <= {span["name"] for span in traced["inference-0"]}
    assert {"update", "publish", "wait_batch", "snapshot"} <= {span["name"] for span in traced["learner"]}
    assert {span["tid"] for span in traced["learner"]} == {1, 2}
    times = {name: (own[0]["ts"], max(span["ts"] + span["dur"] for span in own)) for name, own in traced.items()}
    for (one, (begin, end)), (other, (begin_2, end_2)) in combinations(times.items(), 2):
        assert max(begin, begin_2) < min(end, end_2), f"{one} and {other} never ran at once: {times}"
    assert sum(map(len, traced.values())) <= TRACE_SPANS + len(traced) * MIN_SPANS
    assert_shares_add_up(run, ("actor", "inference", "learner", "evaluator", "parameter-server"))
    assert all(f"\n  {kind}" in text for kind in ("actors (2)", "inference", "learner", "evaluator"))


@pytest.mark.nightly  # the run above accounts for its time daily
@pytest.mark.parametrize("transport", ["shared-memory", "zeromq"])
def test_every_worker_on_every_transport_accounts_for_its_time(launch, transport: str) -> None:
    run = launch(*FOREVER, "--evaluator.enabled", "--transport", transport)
    run.until(lambda: reports(run) >= 3, "lines of a learner", PATIENCE_S)
    run.popen.send_signal(signal.SIGINT)
    run.expect(130, 40.0)
    kinds = ("actor", "inference", "learner", "evaluator") + (("parameter-server",) if transport == "zeromq" else ())
    assert_shares_add_up(run, kinds)
    assert not (run.folder / "trace.json").exists() and not (run.folder / "trace").exists()


@slow
def test_a_failed_run_has_a_report_of_its_error_and_a_trace(launch) -> None:
    run = launch("--agent.nan-at-update", "12", "--trace", "--placement", "inline")
    run.expect(1, 60.0)
    text = (run.folder / "report.txt").read_text()
    assert "ended: failed: WorkerDied: learner: NonFiniteUpdate" in text
    assert "NonFiniteUpdate" in (run.folder / "report.html").read_text()
    assert "update" in {span["name"] for span in spans(run)["learner"]}


@pytest.mark.nightly
def test_a_killed_run_can_be_reported_on(launch) -> None:
    run = launch(*FOREVER, "--placement", "serial")
    run.until(lambda: reports(run) >= 3, "lines of a learner", PATIENCE_S)
    run.popen.kill()
    run.popen.wait()
    assert not (run.folder / "report.txt").exists()
    assert not (run.folder / "trace.json").exists() and not (run.folder / "trace").exists()

    write_report(RunFolder(run.folder))
    text = (run.folder / "report.txt").read_text()
    assert "ended: killed" in text and "This run is serial" in text, text


@pytest.mark.nightly
def test_slow_environments_are_named(launch) -> None:
    """Each step sleeps for 20 ms, which is longer than everything else together."""
    world = ("--env.id", "worlds:World", "--env.kwargs.step-s", "0.02", "--env.kwargs.count", "1000000000")
    run = launch(*FOREVER, *world)
    run.until(lambda: reports(run) >= 5, "lines of a learner", PATIENCE_S)
    text = bottleneck(run)
    assert "Environments limit this run" in text, text
    assert "--num-actors" in text or "other programs" in text, text  # advice, if this machine has room for it


@pytest.mark.nightly  # its verdict from numbers: tests/tools/report/test_bottleneck.py
def test_a_huge_network_is_named(launch) -> None:
    """Thirty passes over each batch through half a million weights; rows may be old, so that actors are never behind."""
    network = ("--agent.network.hidden", "512,512", "--agent.num-epochs", "30", "--agent.num-minibatches", "1")
    limits = ("--max-policy-lag", "none", "--stop-at-return", "none", "--evaluator.enabled", "false")
    run = launch(*FOREVER, *network, *limits, "--num-envs", "8", "--rollout-length", "32", experiment="ppo_cartpole")
    run.until(lambda: reports(run) >= 5, "lines of a learner", PATIENCE_S)
    text = bottleneck(run)
    assert "Updates limit this run" in text, text
