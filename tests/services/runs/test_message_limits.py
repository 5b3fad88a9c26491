"""What a sender may say: its text, its dropped messages, and texts as they are sent and shown."""

from __future__ import annotations

import io

from jsrl.services.metrics.display import make_display
from jsrl.services.runs.control import encoded
from jsrl.services.runs.control_bodies import Crash, Event, Report, Stage
from jsrl.services.runs.message_limits import (
    DROPS_S,
    MAX_CHARS,
    MAX_DROPS,
    NAME_BYTES,
    TEXT_BYTES,
    TEXT_BYTES_PER_S,
    Drops,
    TextBudget,
    objection,
    printable,
    shortened,
)
from jsrl.workers.kinds import find_kind


def test_text_is_paid_each_time_and_a_name_once() -> None:
    budget = TextBudget()
    names = [f"actor/{number:04}" for number in range(TEXT_BYTES // 2 // (NAME_BYTES + 10))]
    assert all(budget.pay([], names, 0.0) for _ in range(100))
    assert budget.pay(["x" * (TEXT_BYTES // 2)], names, 0.0) and not budget.pay(["x" * 200], names, 0.0)
    now_s = 200.0 / TEXT_BYTES_PER_S
    assert budget.pay(["x" * 200], [], now_s) and not budget.pay([], ["another name"], now_s)
    assert budget.pay([], names, now_s)
    assert budget.pay(["x" * TEXT_BYTES], [], 1e9) and not budget.pay(["x"], [], 1e9)


def test_numbers_in_stages_are_free_and_those_in_metric_names_are_not() -> None:
    speech, budget = find_kind("actor").speech, TextBudget()
    for number in range(20_000):
        stage = Stage("actor-0", 0, f"replaying trajectory {number:,} of 20,000", 42)
        assert not (objection(stage, speech) or budget.objection(stage, 0.0))
    reports = (Report("actor-0", 0, {f"actor/{n}": 1.0}, {"n": n}) for n in range(20_000))
    fit = sum(not (objection(report, speech) or budget.objection(report, 0.0)) for report in reports)
    assert TEXT_BYTES / (NAME_BYTES + 12) - 10 < fit < TEXT_BYTES / (NAME_BYTES + 7)


def test_ten_drops_within_a_minute_cut_off() -> None:
    now_s, drops, lines, ends = 0.0, Drops(), list[str](), dict[int, str]()
    for number in range(1, 30):
        now_s += DROPS_S / (MAX_DROPS - 2) if number <= 20 else 1.0  # at first not often enough
        line, ends[number] = drops.add("actor-0", f"reason {number}", now_s)
        lines += [line] if line else []
    assert lines[:2] == [
        "a message of actor-0 was dropped: reason 1",
        "a message of actor-0 was dropped (2 so far): reason 2",
    ]
    assert len(lines) == 5 and drops.count == 29  # 1, 2, 4, 8, 16
    first = min(number for number, end in ends.items() if end)
    assert first == 22 and ends[22] == "10 of its messages were dropped within 60 s, the last because reason 22"


def test_an_exception_text_of_any_size_arrives_cut_in_its_middle() -> None:
    text = "ValueError: begins" + "x" * (20 << 20) + "and ends"
    sent = encoded(Crash("actor-0", 0, "ValueError", text, text))
    assert len(sent) < 3 * MAX_CHARS and b"begins" in sent and b"and ends" in sent and b"20,9" in sent
    assert len(encoded(Event("actor-0", 0, "stop", "", {"why": text}))) < 2 * MAX_CHARS
    assert shortened("short") == "short"


def test_control_characters_are_shown_as_escapes() -> None:
    assert printable("a\x1b[2J\x07\r\u202e b\tc\nd é\u2603") == "a\\x1b[2J\\x07\\r\\u202e b\tc\nd é\u2603"
    stream, log = io.StringIO(), list[str]()
    make_display("plain", stream=stream, log=log.append).message("actor-0: \x1b]0;title\x07", "warning")
    assert stream.getvalue() == "warning: actor-0: \\x1b]0;title\\x07\n" and log == [stream.getvalue().strip()]
