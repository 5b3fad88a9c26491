"""Thirteen relays of params in network namespaces with links of 20 Mbit/s: copies, delays, a dead relay, too many versions.

`python -m pytest -s -m nightly FILE` shows the figures. Tests that do not depend on speed run daily in test_params_relay.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from jsrl.transport.door.keys import make_keys
from jsrl.transport.network.relay import FAN_OUT, ancestors
from tests.cluster.agents import await_that, namespaces

RELAYS, LEVELS = 13, 3
RATE, SIZE = 20e6 / 8, 100_000  # bytes per second of a link; of a version
HOP_S = FAN_OUT * SIZE / RATE  # a version to all children, over the one link of their parent


class Process:
    """A publisher or relay in a namespace."""

    def __init__(self, namespace: str, *words: object) -> None:
        command = [sys.executable, "-m", "tests.transport.relay_process", *map(str, words)]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self.popen = subprocess.Popen(
            ["ip", "netns", "exec", namespace, *command],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True, bufsize=1,
        )  # fmt: skip
        self.said: queue.Queue[list] = queue.Queue()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()
        (self.address,) = self.said.get(timeout=240)
        self.arrived: dict[int, float] = {}
        self.parent = ""

    def _listen(self) -> None:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            words = json.loads(line)
            if len(words) == 3 and isinstance(words[0], int):
                self.arrived[words[0]], self.parent = words[1], words[2]
            else:
                self.said.put(words)

    def close(self) -> None:
        self.popen.kill()
        self.popen.wait(10)
        self._thread.join()
        for end in filter(None, (self.popen.stdin, self.popen.stdout)):
            end.close()

    def tell(self, value: object) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.write(json.dumps(value) + "\n")
        self.popen.stdin.flush()


def publish(root: Process, first: int, count: int, size: int, pause_s: float) -> tuple[list[float], list[int], int]:
    """Publish versions; return their times, the publisher's memory over time, and the bytes that it sent."""
    root.tell([first, count, size, pause_s])
    times, residents, sent = root.said.get(timeout=120)
    return times, residents, sent


def show(line: str) -> None:
    sys.stdout.write(f"{line}\n")


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[tuple[Process, list[Process]]]:
    keys = make_keys(tmp_path / "keys")
    with namespaces(RELAYS + 1) as (address, names), contextlib.ExitStack() as stack:
        if not names:
            pytest.skip("network namespaces are not allowed here (they need root)")
        for i, name in enumerate(names):
            shape = ["tc", "qdisc", "add", "dev", f"ji{os.getpid() % 100_000}{i}", "root", "tbf"]
            words = ["rate", "20mbit", "burst", "64kb", "latency", "200ms"]
            subprocess.run(["ip", "netns", "exec", name, *shape, *words], check=True)
        net = address.rpartition(".")[0]
        ends = [f"tcp://{net}.{i + 2}:0" for i in range(RELAYS + 1)]
        root = Process(names[0], "publish", ends[0], keys)
        stack.callback(root.close)
        relays = []
        for i in range(RELAYS):
            relays.append(Process(names[i + 1], "relay", ends[i + 1], keys, tmp_path / f"memory-{i}"))
            stack.callback(relays[-1].close)
        for i, relay in enumerate(relays):
            relay.tell([*(relays[above].address for above in ancestors(i)), root.address])
        yield root, relays


@pytest.mark.nightly
def test_params_tree_on_slow_links(tree: tuple[Process, list[Process]]) -> None:
    root, relays = tree
    publish(root, 1, 1, SIZE, 0.0)
    await_that(lambda: all(1 in relay.arrived for relay in relays), 60.0)
    times, _, sent = publish(root, 10, 20, SIZE, 2 * LEVELS * HOP_S)
    await_that(lambda: all(29 in relay.arrived for relay in relays), 60.0)
    delays = [relay.arrived[10 + i] - time_s for i, time_s in enumerate(times) for relay in relays]
    late = float(np.percentile(delays, 95))
    show(
        f"copies {sent / SIZE / 20:.2f}; delays: median {np.median(delays):.3f} s, p95 {late:.3f} s; leg {HOP_S:.3f} s"
    )
    assert sent <= 3.2 * 20 * SIZE and late <= (LEVELS + 1) * HOP_S

    relays[0].popen.kill()
    orphans, killed_s = relays[3:6], time.monotonic()
    publish(root, 100, 25, SIZE, 0.15)
    back = [min(at for version, at in orphan.arrived.items() if version > 100 and at > killed_s) for orphan in orphans]
    show(f"orphans are back after {[round(at - killed_s, 2) for at in back]} s")
    assert all(orphan.parent == root.address for orphan in orphans)
    assert max(back) - killed_s <= 3.0

    pause_s = SIZE / (10 * RATE)  # ten times the capacity of the link
    times, residents, sent = publish(root, 1000, round(10 / pause_s), SIZE, pause_s)
    last = 1000 + len(times) - 1
    await_that(lambda: all(last in relay.arrived for relay in relays[1:]), 60.0)
    arrived = max(relay.arrived[last] for relay in relays[1:])
    grown = (max(residents[len(residents) // 2 :]) - max(residents[: len(residents) // 2])) / 1e6
    show(f"{len(times)} versions: memory grew by {grown:.1f} MB, the last arrived after {arrived - times[-1]:.2f} s")
    assert grown < 5.0 and arrived - times[-1] <= 2 * (LEVELS + 1) * HOP_S
