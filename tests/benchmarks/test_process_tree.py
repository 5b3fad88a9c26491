"""CPU seconds and memory of process trees: parsed from known text, and of real processes."""

import os
import subprocess
import sys
import time

import pytest

from benchmarks import process_tree

STAT = "77 (a (b) c) S 5 77 77 0 -1 4194560 1 2 3 4 150 50 30 20 20 0 3 0 123456 1 2 3"
ROLLUP = """55d0c0000000-7ffd00000000 ---p 00000000 00:00 0 [rollup]
Rss:               20000 kB
Pss:               12500 kB
Pss_Dirty:          9000 kB
Shared_Clean:          0 kB
"""


def test_stat_line_with_brackets_in_the_name():
    stat = process_tree.parse_stat(STAT)
    ticks = process_tree.TICKS_PER_S
    assert (stat.parent, stat.state) == (5, "S")
    assert stat.own_cpu_s == pytest.approx(200 / ticks)
    assert stat.waited_cpu_s == pytest.approx(50 / ticks)


def test_pss_is_not_rss_and_not_pss_dirty():
    assert process_tree.parse_pss_mb(ROLLUP) == pytest.approx(12.8)
    assert process_tree.parse_pss_mb("Rss: 5 kB\n") == 0.0


def write(proc, pid, parent, own, waited):
    (proc / str(pid)).mkdir()
    (proc / str(pid) / "stat").write_text(
        f"{pid} (x) S {parent} 1 1 0 -1 0 0 0 0 0 {own} 0 {waited} 0 20 0 1 0 9 1 2 3"
    )
    (proc / str(pid) / "smaps_rollup").write_text(ROLLUP)


def test_tree_counts_descendants_and_ended_processes_only(tmp_path):
    write(tmp_path, 10, 1, 100, 40)
    write(tmp_path, 11, 10, 50, 0)
    write(tmp_path, 12, 11, 7, 3)
    write(tmp_path, 20, 1, 9999, 0)
    (tmp_path / "uptime").write_text("1.0 2.0")
    assert sorted(process_tree.tree(10, process_tree.all_stats(tmp_path))) == [10, 11, 12]
    assert process_tree.cpu_seconds(10, tmp_path) == pytest.approx(200 / process_tree.TICKS_PER_S)
    used = process_tree.usage(10, tmp_path)
    assert (used.processes, used.pss_mb) == (3, pytest.approx(3 * 12.8))
    assert process_tree.tree(999, process_tree.all_stats(tmp_path)) == []


PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "x = bytearray(40_000_000); print(len(x), flush=True); input()"],
                         stdin=subprocess.PIPE)
input()
"""


def test_real_tree_counts_child_memory_and_can_be_ended():
    popen = subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert popen.stdout.readline() == "40000000\n"
        used = process_tree.usage(popen.pid)
        assert used.processes == 2
        assert used.pss_mb > 40
        assert used.cpu_s > 0
        assert abs(time.time() - process_tree.start_time_s(popen.pid)) < 30
        pids = process_tree.tree(popen.pid, process_tree.all_stats())
    finally:
        process_tree.end_tree(popen.pid)
        popen.communicate()
    deadline = time.monotonic() + 5
    while any(os.path.exists(f"/proc/{pid}/smaps") and process_tree.pss_mb([pid]) for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.01)
