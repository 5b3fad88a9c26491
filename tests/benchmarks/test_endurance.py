"""Soaks and overheads: slopes, levels, resources of processes, verdicts; and the parts that are left out are the real ones."""

from __future__ import annotations

import math
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.endurance.holdings import Holdings, folder_usage, parse_rollup, parse_segments
from benchmarks.endurance.slopes import level, theil_sen
from benchmarks.endurance.verdicts import Watched, judge, run_faults, table

ROOT = Path(__file__).parents[2]
WITHOUT = ROOT / "benchmarks" / "without"
HELD = Holdings(200.0, 150.0, 100.0, 20, 6, 2)


def test_a_slope_is_found_under_noise_and_outliers_and_lies_in_its_interval() -> None:
    chance = random.Random(1)
    times = [i / 12 for i in range(240)]
    values = [300 + 0.7 * t + chance.gauss(0, 0.5) + (80 if i % 40 == 0 else 0) for i, t in enumerate(times)]
    found = theil_sen(times, values)
    assert found.low <= 0.7 <= found.high and found.slope == pytest.approx(0.7, abs=0.05)
    level_found = theil_sen(times, [5.0] * 240)
    assert (level_found.slope, level_found.low, level_found.high) == (0.0, 0.0, 0.0)
    assert math.isnan(theil_sen([1.0, 2.0], [1.0, 2.0]).slope)


def test_levels_compare_the_first_third_with_the_last() -> None:
    assert level([5, 5, 9, 5, 5, 5]).constant and level([5, 5, 9, 5, 5, 5]).highest == 9
    assert level([5, 5, 5, 5, 9, 9, 9, 9, 5]).constant  # held for a moment
    assert not level([5, 5, 5, 6, 6, 6]).constant


def test_proc_files_are_parsed() -> None:
    text = "5-7 ---p 0 00:00 0 [rollup]\nRss: 2000 kB\nPss: 1000 kB\nPss_Dirty: 1 kB\n"
    text += "Private_Clean: 300 kB\nPrivate_Dirty: 200 kB\n"
    assert parse_rollup(text) == (pytest.approx(2.048), pytest.approx(1.024), pytest.approx(0.512))
    maps = "7f-80 rw-s 0 00:1a 77 /dev/shm/jsrl-0/a\n80-81 rw-s 0 00:1a 77 /dev/shm/jsrl-0/a\n"
    maps += (
        "82-83 rw-s 0 00:1a 78 /dev/shm/jsrl-0/b (deleted)\n84-85 r-xp 0 08:01 9 /usr/lib/x.so\n86-87 rw-p 0 00:00 0\n"
    )
    assert parse_segments(maps) == 2


TAKES_MORE_OF_EACH = """
import mmap, os, sys, threading
from benchmarks.endurance.holdings import holdings

before, stop = holdings(os.getpid()), threading.Event()
threading.Thread(target=stop.wait, daemon=True).start()
with open(sys.argv[1], "wb+") as file:
    file.write(bytes(4096))
    file.flush()
    mapped, memory = mmap.mmap(file.fileno(), 4096), b"x" * 100_000_000
    after = holdings(os.getpid())
os.unlink(sys.argv[1])
assert after.threads == before.threads + 1 and after.segments == before.segments + 1, (before, after)
assert after.descriptors >= before.descriptors + 1 and after.rss_mb > before.rss_mb + 90, (before, after)
assert holdings(2**22 + 1) is None
"""


def test_resources_of_a_process_are_measured(tmp_path: Path) -> None:
    """In a separate process, because threads and memory of earlier tests may be released at any time in this one."""
    words = [sys.executable, "-c", TAKES_MORE_OF_EACH, f"/dev/shm/jsrl-test-{os.getpid()}"]
    subprocess.run(words, check=True, timeout=240, cwd=ROOT)
    (tmp_path / "a").write_bytes(bytes(8192))
    files, megabytes = folder_usage(tmp_path)
    assert files == 1 and megabytes >= 0.008


def watched(change, compiled=lambda i: 3) -> Watched:
    each = Watched("learner", 1)
    for i in range(120):
        each.add(5.0 * i, change(i), compiled(i))
    return each


@pytest.mark.parametrize(
    ("change", "compiled", "fault"),
    [
        (lambda i: HELD, lambda i: 3, ""),
        (lambda i: HELD._replace(rss_mb=200 + (30.0 * i if i < 20 else 600)), lambda i: i if i < 10 else 10, ""),
        (lambda i: HELD._replace(rss_mb=200 + 0.2 * i), lambda i: 3, "RSS grows by 2.40 MB/min"),
        (lambda i: HELD._replace(descriptors=20 + i // 50), lambda i: 3, "descriptors: 20 -> 21"),
        (lambda i: HELD._replace(threads=6 + (i > 80)), lambda i: 3, "threads: 6 -> 7"),
        (lambda i: HELD._replace(segments=2 + (i > 80)), lambda i: 3, "segments: 2 -> 3"),
        (lambda i: HELD, lambda i: 3 + (i > 60), "1 programs compiled"),
    ],
)
def test_verdicts_ignore_only_the_warm_up(change, compiled, fault: str) -> None:
    verdict = judge(watched(change, compiled), 120.0)
    assert bool(verdict.faults) == bool(fault)
    assert not fault or verdict.faults[0].startswith(fault)
    assert ("passed" in table([verdict], [])) == (not fault) and "FAILED" in table([verdict], ["left behind"])


def test_faults_of_the_run_as_a_whole() -> None:
    ledger = {"produced": 5, "consumed": 4, "dropped": {"closed": 1}, "in_flight": 0}
    good = {
        "memory_folder": [[float(i), 14, 0.2] for i in range(60)], "warm_up_s": 10.0, "compilations_after_warmup": 0.0,
        "result": {"ledger": ledger}, "left": [], "ended_early": "",
    }  # fmt: skip
    assert run_faults(good) == []
    for bad in (
        {"memory_folder": [[float(i), 14 + i // 30, 0.2] for i in range(60)]},
        {"compilations_after_warmup": 1.0},
        {"result": {"ledger": ledger | {"consumed": 3}}},
        {"result": None},
        {"left": ["process 7"]},
        {"ended_early": "the run ended"},
    ):
        assert len(run_faults(good | bad)) == 1


CALLS = """
from jsrl.services.runs import control
from jsrl.services.metrics.metrics import Meter
from jsrl.services.metrics.phases import Phases
from jsrl.transport.base import Ledger
from jsrl.transport.ledger.page import PersistedLedger
meter = Meter("actor")
meter.rate("env_steps", 16)
meter.phases.begin()
meter.phases.enter("env")
print(control.HEARTBEAT_S > 1e6, not meter.flush(), PersistedLedger.arrive is Ledger.arrive,
      meter.phases.shares() == {}, control.ControlClient.entering.__name__ == "nothing")
"""


@pytest.mark.parametrize("without", ["heartbeats,deadlines,phases,metrics,ledger", ""])
def test_parts_can_be_left_out(without: str) -> None:
    environment = {**os.environ, "PYTHONPATH": f"{WITHOUT}:{WITHOUT.parents[1]}", "JSRL_WITHOUT": without}
    said = subprocess.run([sys.executable, "-c", CALLS], capture_output=True, text=True, env=environment, check=True)
    assert said.stdout.split() == [str(bool(without))] * 5, said.stdout
