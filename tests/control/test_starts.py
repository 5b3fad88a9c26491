"""Runs started and stopped repeatedly in one process leak nothing (100 of them: benchmarks/starts.py)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import starts
from benchmarks.starts import Resources
from tests.marks import nightly

ROOT = Path(__file__).parents[2]
ONE = Resources(10, 20, 0, 1, 0, 200.0, ("pipe", "socket"))


def test_growing_resources_are_found() -> None:
    assert starts.faults([ONE] * 8) == []
    for grown in ({"threads": 15}, {"descriptors": 21}, {"children": 1}, {"contexts": 2}, {"shared_files": 1}):
        found = starts.faults([*[ONE] * 7, ONE._replace(**grown, open=("pipe", "socket", "socket"))])
        assert found and found[0].startswith(next(iter(grown)))
    assert (
        "['socket']" in starts.faults([*[ONE] * 7, ONE._replace(descriptors=21, open=("pipe", "socket", "socket"))])[1]
    )
    assert starts.faults([ONE._replace(rss_mb=200.0 + i) for i in range(8)])[0].startswith("memory grows by 1.00 MB")
    assert starts.faults([*[ONE._replace(rss_mb=100.0, threads=2)], *[ONE] * 7]) == []  # resources of the first start


HAS_ONE_MORE_OF_EACH = """
import os, subprocess, threading, zmq
from benchmarks import starts

before, stop = starts.resources(), threading.Event()
thread = threading.Thread(target=stop.wait)
thread.start()
context, child, pipe = zmq.Context(), subprocess.Popen(["sleep", "60"]), os.pipe()
after = starts.resources()
stop.set()
context.term()
child.kill()
child.wait()
assert after.threads >= before.threads + 1 and after.children == before.children + 1, (before, after)
assert after.contexts == before.contexts + 1 and after.descriptors >= before.descriptors + 2, (before, after)
assert starts.resources().children == before.children
"""


def test_process_resources_are_listed() -> None:
    """In a separate process, because threads of earlier tests may end at any time in this one."""
    subprocess.run([sys.executable, "-c", HAS_ONE_MORE_OF_EACH], check=True, timeout=240, cwd=ROOT)


@pytest.mark.slow
@pytest.mark.parametrize(("placement", "number"), [("serial", 6), nightly("inline", 3), nightly("served", 3)])
def test_repeated_starts_in_one_process_leak_nothing(placement: str, number: int) -> None:
    words = [sys.executable, starts.__file__, "--only", placement, "--starts", str(number), "--limit-mb", "3"]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout.splitlines()[-1])
    assert len(found["seen"]) == number and found["faults"] == [], f"{found}\n{ended.stderr}"
