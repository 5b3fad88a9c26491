from __future__ import annotations

import errno
import json
import math
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from jsrl.agents.ppo import PPOConfig
from jsrl.control.progress import Progress
from jsrl.control.status_writer import other_policy
from jsrl.errors import ConfigError
from jsrl.experiment import Experiment
from jsrl.intervals import return_facts, score_text
from jsrl.services.metrics import catalogue as metric_names
from jsrl.services.metrics.metrics import Meter, MetricsHub
from jsrl.services.metrics.sinks import JsonLinesSink, TensorBoardSink
from jsrl.workers.kinds import catalogue


class Clock:
    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        return self.now_s


class ListSink:
    def __init__(self):
        self.lines, self.ended = [], None

    def write(self, metrics):
        self.lines.append(dict(metrics))

    def end(self, summary):
        self.ended = summary


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def open_hub():
    hubs = []

    def open_one(*args, **kwargs):
        hubs.append(MetricsHub(*args, catalogue=catalogue(), **kwargs))
        return hubs[-1]

    yield open_one
    for hub in hubs:
        hub.close()
        hub.end({}, 10.0)


def read(path):
    def refuse(constant):
        raise ValueError(constant)

    return [json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines()]


def test_metric_that_is_no_number_is_named():
    meter = Meter("actor")
    meter.last("counted", np.arange(3))
    with pytest.raises(ConfigError, match="the metric counted is array"):
        meter.flush()


def test_unchanged_counter_has_rate_zero(clock):
    meter = Meter("learner", clock=clock)
    meter.rate("rows", 300)
    clock.now_s += 1
    assert meter.flush() == {"learner/rows_per_s": 300}
    clock.now_s += 1
    assert meter.flush() == {"learner/rows_per_s": 0}


def test_rates_and_shares_in_a_line_are_means_of_all_reports_since_the_last(tmp_path, open_hub):
    hub = open_hub(tmp_path / "metrics.jsonl")
    for share, rate in ((0.1, 100), (0.3, 200)):
        hub.receive("actor-0", "actor", {"actor/env_share": share, "actor/env_steps_per_s": rate})
    hub.receive("actor-1", "actor", {"actor/env_share": 0.6, "actor/env_steps_per_s": 50})
    line = hub.tick(1, 1)
    assert line["actor/env_share"] == pytest.approx(0.4)
    assert line["actor/env_steps_per_s"] == pytest.approx(150 + 50)
    hub.receive("actor-0", "actor", {"actor/env_share": 0.5})
    hub.receive("actor-1", "actor", {"actor/env_share": 0.7})
    assert hub.tick(2, 2)["actor/env_share"] == pytest.approx(0.6)


def test_means_and_maxima_in_a_line_are_those_of_all_reports_since_the_last(tmp_path, open_hub):
    hub = open_hub(tmp_path / "metrics.jsonl")
    for loss, lag in ((3.0, 5.0), (1.0, 2.0)):
        hub.receive(
            "learner", "learner", {"learner/loss": loss, "learner/policy_lag_max": lag, "learner/queue_depth": lag}
        )
    line = hub.tick(1, 1)
    assert (line["learner/loss"], line["learner/policy_lag_max"], line["learner/queue_depth"]) == (2.0, 5.0, 2.0)
    hub.receive("learner", "learner", {"learner/loss": 4.0, "learner/policy_lag_max": 1.0})
    line = hub.tick(2, 2)
    assert (line["learner/loss"], line["learner/policy_lag_max"]) == (4.0, 1.0)
    for number in (1.0, 3.0):
        hub.receive("learner-b", "b/learner", {"b/learner/loss": number})
        hub.receive("director", "director", {"director/open": number})  # a number at a moment, not a mean
    line = hub.tick(3, 3)
    assert (line["b/learner/loss"], line["director/open"]) == (2.0, 3.0)


def test_shares_of_time_of_workers_with_different_activities_add_up_to_1(tmp_path, open_hub):
    hub = open_hub(tmp_path / "metrics.jsonl")
    hub.receive("actor-0", "actor", {"actor/wait_inference_share": 0.9, "actor/env_share": 0.1})
    hub.receive("actor-1", "actor", {"actor/wait_params_share": 0.7, "actor/env_share": 0.3})
    hub.receive("actor-2", "actor", {"actor/episodes": 0})  # it has just started
    line = hub.tick(1, 1)
    shares = {name: value for name, value in line.items() if name.endswith("_share")}
    assert shares == pytest.approx(
        {"actor/wait_inference_share": 0.45, "actor/wait_params_share": 0.35, "actor/env_share": 0.2}
    )


def test_shares_in_a_line_add_up_to_1_where_an_activity_begins_in_its_second_report(tmp_path, open_hub):
    hub = open_hub(tmp_path / "metrics.jsonl")
    hub.receive("learner", "learner", {"learner/wait_batch_share": 1.0})
    hub.receive("learner", "learner", {"learner/wait_batch_share": 0.1, "learner/update_share": 0.9})
    line = hub.tick(1, 1)
    assert (line["learner/wait_batch_share"], line["learner/update_share"]) == pytest.approx((0.55, 0.45))
    hub.receive("learner", "learner", {"learner/wait_batch_share": 0.3, "learner/update_share": 0.7})
    assert hub.tick(2, 2)["learner/update_share"] == pytest.approx(0.7)


def test_metrics_report_has_rates_shares_means_and_spreads(clock):
    meter = Meter("learner", clock=clock)
    meter.rate("rows", 300)
    meter.rate("rows", 100)
    with meter.timed("update"):
        clock.now_s += 3
    clock.now_s += 1
    meter.mean("loss", 1.0)
    meter.mean("loss", 4.0, weight=2)
    meter.last("queue_depth", 5)
    meter.maximum("wait_max", 2)
    meter.maximum("wait_max", 1)
    meter.count("compilations", 2)
    meter.spread("policy_lag", np.arange(101))
    report = meter.flush()
    assert report == pytest.approx(
        {
            "learner/rows_per_s": 100,
            "learner/update_share": 0.75,
            "learner/loss": 3.0,
            "learner/queue_depth": 5,
            "learner/wait_max": 2,
            "learner/compilations": 2,
            "learner/policy_lag_mean": 50,
            "learner/policy_lag_p50": 50,
            "learner/policy_lag_p95": 95,
            "learner/policy_lag_max": 100,
        }
    )
    assert all(type(value) is float for value in report.values())
    clock.now_s += 1
    meter.count("compilations")
    assert meter.flush() == {"learner/compilations": 3, "learner/rows_per_s": 0}


def test_spread_of_very_many_values_stays_bounded_and_close(clock):
    meter = Meter("learner", clock=clock)
    rng = np.random.default_rng(1)
    for _ in range(200):
        meter.spread("policy_lag", rng.exponential(10, size=500))
    meter.spread("policy_lag", 1234.5)
    report = meter.flush()
    assert report["learner/policy_lag_max"] == 1234.5
    assert report["learner/policy_lag_mean"] == pytest.approx(10, rel=0.03)
    assert report["learner/policy_lag_p50"] == pytest.approx(10 * math.log(2), rel=0.15)
    assert report["learner/policy_lag_p95"] == pytest.approx(10 * math.log(20), rel=0.15)


def test_the_sample_does_not_favour_early_or_late_values(clock):
    meter = Meter("x", clock=clock)
    for value in range(10):
        meter.spread("v", np.full(2000, value))
    assert meter.flush()["x/v_p50"] == pytest.approx(4.5, abs=1.01)
    meter.spread("v", np.arange(100_000))  # in one call
    assert meter.flush()["x/v_p50"] == pytest.approx(50_000, rel=0.2)


def test_hub_combines_workers_by_the_rule_of_the_metric(tmp_path, clock, open_hub):
    hub = open_hub(tmp_path / "metrics.jsonl", clock=clock)
    reports = {
        "actor-0": {"actor/env_steps_per_s": 100, "actor/env_share": 0.2, "actor/episodes": 1, "actor/return_mean": 10},
        "actor-1": {"actor/env_steps_per_s": 300, "actor/env_share": 0.6, "actor/episodes": 3, "actor/return_mean": 30},
    }
    for worker, report in reports.items():
        hub.receive(worker, "actor", report)
    hub.receive("learner-0", "learner", {"learner/policy_lag_max": 3, "learner/loss": 1.5})
    hub.receive("learner-1", "learner", {"learner/policy_lag_max": 7, "learner/loss": 2.5})
    clock.now_s += 2
    line = hub.tick(4000, 12)
    assert line == {
        "env_steps": 4000,
        "updates": 12,
        "wall_s": 2.0,
        "actor/env_steps_per_s": 400.0,
        "actor/env_share": pytest.approx(0.4),
        "actor/episodes": 4.0,
        "actor/return_mean": 25.0,
        "learner/policy_lag_max": 7.0,
        "learner/loss": 2.0,
    }
    assert read(tmp_path / "metrics.jsonl") == [line]


def test_hub_writes_only_new_reports_and_keeps_silent_workers_for_a_while(tmp_path, clock, open_hub):
    hub = open_hub(tmp_path / "metrics.jsonl", clock=clock, stale_after_s=10)
    hub.receive("actor-0", "actor", {"actor/env_steps_per_s": 100, "actor/return_mean": 1, "actor/episodes": 5})
    hub.receive("actor-1", "actor", {"actor/env_steps_per_s": 200})
    hub.tick(1, 1)
    clock.now_s += 5
    hub.receive("actor-1", "actor", {"actor/env_steps_per_s": 200})
    assert hub.tick(2, 1)["actor/env_steps_per_s"] == 300
    clock.now_s += 7
    hub.receive("actor-1", "actor", {"actor/env_steps_per_s": 200})
    line = hub.tick(3, 1)
    assert line["actor/env_steps_per_s"] == 200
    assert "actor/return_mean" not in line
    assert set(hub.tick(4, 1)) == {"env_steps", "updates", "wall_s"}
    assert hub.latest["actor/return_mean"] == 1


def test_totals_survive_a_restart_and_weigh_by_growth(tmp_path, clock, open_hub):
    hub = open_hub(tmp_path / "metrics.jsonl", clock=clock)
    hub.receive("actor-0", "actor", {"actor/episodes": 100, "actor/return_mean": 1})
    hub.receive("actor-1", "actor", {"actor/episodes": 10, "actor/return_mean": 1})
    assert hub.tick(1, 1)["actor/episodes"] == 110
    hub.receive("actor-0", "actor", {"actor/episodes": 1, "actor/return_mean": 8})
    hub.receive("actor-1", "actor", {"actor/episodes": 13, "actor/return_mean": 4})
    line = hub.tick(2, 1)
    assert line["actor/episodes"] == 114
    assert line["actor/return_mean"] == pytest.approx((8 * 1 + 4 * 3) / 4)
    hub.receive("actor-0", "actor", {"actor/episodes": 0})  # a second restart
    assert hub.tick(3, 1)["actor/episodes"] == 114


def test_restarted_director_that_goes_on_from_an_older_state_is_not_counted_twice(tmp_path, clock, open_hub):
    hub = open_hub(tmp_path / "metrics.jsonl", clock=clock)
    for finished in (50, 45):
        hub.receive("director", "director", {"director/finished": finished, "director/discarded": finished})
        line = hub.tick(1, 1)
        assert line["director/finished"] == line["director/discarded"] == finished


def test_nan_and_infinity_stay_valid_json(tmp_path, open_hub):
    hub = open_hub(tmp_path / "metrics.jsonl")
    values = {
        "learner/loss": math.nan,
        "learner/grad_norm": math.inf,
        "a": -math.inf,
        "b": np.float32(2),
        "c": np.int64(3),
    }
    hub.write(values, np.int64(10), 1)
    line = read(tmp_path / "metrics.jsonl")[0]
    assert (line["learner/loss"], line["learner/grad_norm"], line["a"]) == (None, "inf", "-inf")
    assert (line["b"], line["c"], line["env_steps"]) == (2.0, 3, 10)


def test_resumed_file_continues_after_its_last_complete_line(tmp_path, clock, open_hub):
    path = tmp_path / "metrics.jsonl"
    hub = open_hub(path, clock=clock)
    clock.now_s += 50
    hub.write({"evaluator/return_mean": 9.0}, 500, 5)
    hub.close()
    with path.open("a") as file:
        file.write('{"env_steps": 600, "upda')
    clock.now_s += 1000
    hub = open_hub(path, clock=clock)
    assert hub.latest["evaluator/return_mean"] == 9.0
    clock.now_s += 1
    for _ in range(2):
        hub.write({}, 501, 6)
    hub.close()
    assert [(line["wall_s"], line.get("system/resumed")) for line in read(path)] == [(50, None), (51, 1), (51, None)]


def test_every_line_is_flushed_at_once(tmp_path, open_hub):
    hub = open_hub(tmp_path / "metrics.jsonl")
    for step in range(3):
        hub.write({}, step, 0)
        assert len(read(tmp_path / "metrics.jsonl")) == step + 1


def test_full_disk_warns_once_and_other_sinks_continue(tmp_path, open_hub):
    warnings, sink = [], ListSink()
    hub = open_hub("/dev/full", sinks=[sink], on_warning=warnings.append)
    for step in range(3):
        hub.write({"a": 1.0}, step, 0)
    assert len(warnings) == 1
    assert "/dev/full" in warnings[0]
    assert "No space left" in warnings[0]
    hub.end({"ended": "total_env_steps"}, 10.0)
    assert len(sink.lines) == 3
    assert sink.ended == {"ended": "total_env_steps"}


@pytest.mark.parametrize("kind", [JsonLinesSink, TensorBoardSink])
def test_a_deleted_file_begins_anew_and_the_loss_is_said(tmp_path, kind):
    folder = tmp_path / "run"
    folder.mkdir()
    sink = JsonLinesSink(folder / "metrics.jsonl") if kind is JsonLinesSink else TensorBoardSink(folder / "tensorboard")
    row = {"env_steps": 1, "updates": 1, "wall_s": 0.5}
    assert sink.write(row) is None
    sink.path.unlink()
    told = sink.write(row)
    assert told == f"{sink.path} was deleted during the run: the values so far are lost, and a new file begins"
    assert sink.path.stat().st_size > 0 and sink.write(row) is None
    shutil.rmtree(folder)
    with pytest.raises(FileNotFoundError):
        sink.write(row)
    assert not folder.exists(), "a deleted run is written again"


def test_the_run_says_that_its_metrics_were_deleted(tmp_path, open_hub):
    warnings = []
    hub = open_hub(tmp_path / "metrics.jsonl", on_warning=warnings.append)
    for env_steps in (10, 20):
        hub.write({}, env_steps, 1)
        (tmp_path / "metrics.jsonl").unlink()
    hub.write({}, 30, 1)
    assert len(warnings) == 2 and "was deleted during the run" in warnings[0]
    assert [json.loads(line)["env_steps"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()] == [30]


def test_tensorboard_events_hold_the_scalars(tmp_path, open_hub):
    pytest.importorskip("tensorboardX")
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.record_writer import RecordWriter

    assert RecordWriter  # the writer's own record format is read back below
    hub = open_hub(tmp_path / "metrics.jsonl", tensorboard=tmp_path / "tensorboard")
    hub.write({"learner/loss": 0.5, "learner/grad_norm": math.nan}, 640, 5)
    hub.end({}, 10.0)
    content = next((tmp_path / "tensorboard").glob("events*")).read_bytes()
    found, position = {}, 0
    while position < len(content):
        size = int.from_bytes(content[position : position + 8], "little")
        event = Event.FromString(content[position + 12 : position + 12 + size])
        position += 16 + size
        found.update({value.tag: (event.step, value.simple_value) for value in event.summary.value})
    assert found["learner/loss"] == (640, 0.5)
    assert found["updates"] == (640, 5.0)
    assert "learner/grad_norm" not in found


class FullDisk:
    """A disk for AppendedFile: writes take `room` bytes, then raise ENOSPC."""

    def __init__(self, monkeypatch, room: int) -> None:
        self.room = room
        true_open = Path.open
        disk, lock = self, threading.Lock()  # every sink writes in a thread of its own

        class Raw:
            def __init__(self, file) -> None:
                self._file = file

            def __getattr__(self, name):
                return getattr(self._file, name)

            def write(self, content: bytes) -> int:
                with lock:
                    if not disk.room:
                        raise OSError(errno.ENOSPC, "No space left on device")
                    written = self._file.write(content[: disk.room])
                    disk.room -= written
                    return written

        def opened(path, mode="r", buffering=-1, **options):
            file = true_open(path, mode, buffering, **options)
            return Raw(file) if mode == "ab+" else file

        monkeypatch.setattr(Path, "open", opened)


@pytest.mark.parametrize("room", [0, 10, 300])
def test_after_a_full_disk_every_sink_continues_with_complete_records(tmp_path, open_hub, monkeypatch, room):
    pytest.importorskip("tensorboardX")
    disk, warnings = FullDisk(monkeypatch, room), []
    hub = open_hub(tmp_path / "metrics.jsonl", tensorboard=tmp_path / "tensorboard", on_warning=warnings.append)
    for step in range(40):  # more than the queue of tensorboardX's own writer holds
        hub.write({"a": float(step)}, step, 0)
    done = threading.Event()
    hub.sinks._thread.put(done.set)
    assert done.wait(20.0)
    hub.show_messages()
    first, second = sorted(warnings)
    assert "metrics.jsonl" in first and "events.out.tfevents" in second
    disk.room = 1 << 20
    hub.write({"a": 40.0}, 40, 0)
    hub.close()
    hub.end({}, 10.0)
    assert read(tmp_path / "metrics.jsonl")[-1]["a"] == 40.0
    events = read_events(next((tmp_path / "tensorboard").glob("events*")))
    assert events[0].file_version == "brain.Event:2"
    assert [event.file_version for event in events[1:]] == [""] * (len(events) - 1)
    assert events[-1].step == 40
    assert len(warnings) == 2


def read_events(path: Path) -> list:
    """Return the events of a file, with checksums verified."""
    from tensorboardX.crc32c import crc32c
    from tensorboardX.proto.event_pb2 import Event

    def masked(content: bytes) -> bytes:
        value = crc32c(content)
        return ((((value >> 15) | (value << 17)) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")

    content, events, at = path.read_bytes(), [], 0
    while at < len(content):
        size = int.from_bytes(content[at : at + 8], "little")
        event = content[at + 12 : at + 12 + size]
        assert content[at + 8 : at + 12] == masked(content[at : at + 8])
        assert content[at + 12 + size : at + 16 + size] == masked(event)
        events.append(Event.FromString(event))
        at += 16 + size
    return events


def test_missing_tensorboard_is_one_warning(tmp_path, monkeypatch, open_hub):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    warnings, notes = [], []
    told = {"on_warning": warnings.append, "on_note": notes.append}
    hub = open_hub(tmp_path / "metrics.jsonl", tensorboard=tmp_path / "tb", **told)
    hub.write({"a": 1.0}, 1, 1)
    assert warnings == []  # nothing is wrong
    (note,) = notes
    assert "tensorboardX is not installed (jsrl doctor says how)" in note and "\n" not in note
    assert read(tmp_path / "metrics.jsonl")[0]["a"] == 1.0


def test_json_lines_of_a_huge_unfinished_tail(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"wall_s": 1}\n' + "x" * 1000)
    sink = JsonLinesSink(path)
    sink.close()
    assert sink.last_line == {"wall_s": 1}
    assert path.read_text() == '{"wall_s": 1}\n'


def test_docs_list_exactly_the_catalogue():
    document = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text()
    rows = ["| metric | meaning | unit | healthy | over workers |", "|---|---|---|---|---|"]
    for metric in catalogue().metrics:
        how = catalogue().combination(metric.name) + (f", weighted by {metric.weight}" if metric.weight else "")
        rows.append(f"| `{metric.name}` | {metric.meaning} | {metric.unit} | {metric.healthy} | {how} |")
    table = "\n".join(rows) + "\n"
    assert table in document, f"docs/metrics.md differs from the kinds of workers; paste this table:\n{table}"


def test_the_catalogue_is_well_formed():
    names = [metric.name for metric in catalogue().metrics]
    assert len(names) == len(set(names))
    for metric in catalogue().metrics:
        assert re.fullmatch(r"[a-z_]+/[a-z0-9_]+|env_steps|updates|wall_s", metric.name)
        assert metric.meaning
        assert metric.unit
        assert metric.healthy
        assert "|" not in metric.meaning + metric.unit + metric.healthy
        assert catalogue().combination(metric.name) in metric_names.COMBINATIONS
        if metric.weight:
            assert catalogue().combination(metric.weight) == "total"


def test_worker_metrics_do_not_need_jax():
    program = "import sys, jsrl.services.metrics.metrics, jsrl.services.metrics.display\n"
    program += "import jsrl.services.runs.names, jsrl.services.runs.runs\n"
    program += "assert not {'jax', 'orbax', 'tensorboardX'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=240)


def test_small_returns_keep_their_digits() -> None:
    def text(mean: float, half: float) -> str:
        return score_text({"return_mean": mean, "return_ci95": half})

    assert text(0.9654, 0.0012) == "return 0.965 ± 0.001 (95% CI)"
    assert text(-4.126, 0.5) == "return -4.13 ± 0.50 (95% CI)"
    assert text(476.34, 12.01) == "return 476.3 ± 12.0 (95% CI)"


def test_few_episodes_have_an_interval_of_student_and_one_has_none() -> None:
    from scipy import stats  # takes half a second, which every test process would pay at collection

    returns = [60.0, 64.0, 71.5]
    facts = return_facts(returns)
    assert facts["return_ci95"] == pytest.approx(stats.t.interval(0.95, 2, scale=stats.sem(returns))[1])
    assert score_text(return_facts([64.0]), "1 greedy episode") == "return 64.0 (1 greedy episode)"
    assert score_text(return_facts([1.0] * 20), "20 greedy episodes") == "return 1.00 (20 greedy episodes, all equal)"
    assert score_text(facts, "3 greedy episodes") == "return 65.2 ± 14.5 (95% CI, 3 greedy episodes)"


@pytest.mark.parametrize(
    ("scores", "shown"), [({"return_mean": 2.5}, "return 2.5"), ({"win_rate": 0.25}, "win rate 0.25")]
)
def test_the_display_names_the_score_of_another_policy(scores: dict[str, float], shown: str) -> None:
    progress = Progress(SimpleNamespace(name="seeker", experiment=Experiment(agent=PPOConfig(), total_env_steps=100)))
    assert str(other_policy(progress)) == "seeker: steps 0 updates 0"
    progress.evaluated({"env_steps": 100, **scores})
    assert str(other_policy(progress)) == f"seeker: steps 0 updates 0 {shown}"
