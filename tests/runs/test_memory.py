"""The limit on a worker's memory, and its cause: endless messages."""

from __future__ import annotations

import json
import mmap
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from benchmarks.endless import Flood
from jsrl.linux import resident_bytes
from jsrl.runs import memory
from jsrl.runs.control import ControlClient, ControlServer, Crash, Event
from jsrl.runs.memory import MIB, MemoryWatch

_WATCHED = """
import sys, time
from jsrl.runs.control import ControlClient
from jsrl.runs.memory import MIB, MemoryWatch
from jsrl.transport.params.transports import bind_params
address, stream = sys.argv[1:]
publisher = bind_params(stream)
control = ControlClient(address, "parameter-server", 0)
control.memory = MemoryWatch(0, 64 * MIB)
control.memory.begin(settled=True)
control.stage("ready")
time.sleep(60)
"""


def test_memory_bound_is_baseline_declared_and_margin(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100 * MIB]
    monkeypatch.setattr(memory, "resident_bytes", lambda: now[0])
    monkeypatch.setattr(memory, "free_memory_bytes", lambda: 1000 * MIB)
    watch = MemoryWatch(30 * MIB, 20 * MIB)
    assert watch.look() is None, "not started"
    watch.begin(settled=False)
    assert watch.bound_bytes == 650 * MIB
    now[0] = 600 * MIB
    assert watch.look() is None and watch.hurries
    watch.begin(settled=True)
    assert watch.bound_bytes == 650 * MIB
    now[0] = 650 * MIB
    assert watch.look() is None
    assert watch.look() is None and not watch.hurries
    now[0] += 1 * MIB
    text = watch.look()
    assert (
        text is not None and "651 MiB are resident, above the bound of 650 MiB (600 once it was ready, 30 for" in text
    )
    assert "unfinished multiparts" in text and "supervision.memory_margin_mb" in text


def test_system_memory_is_measured() -> None:
    before = resident_bytes()
    with mmap.mmap(-1, 64 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as held:  # no freed memory
        for at in range(0, len(held), 4096):
            held[at] = 1
        assert 32 * MIB < resident_bytes() - before < 128 * MIB


def test_flooded_worker_reports_and_exits(tmp_path: Path) -> None:
    server = ControlServer(f"ipc://{tmp_path}/control")
    command = [sys.executable, "-c", _WATCHED, server.address, f"ipc://{tmp_path}/params"]
    worker = subprocess.Popen(command)
    try:
        while not server.poll(1.0):
            assert worker.poll() is None
        flood = Flood(f"{tmp_path}/params")
        crashes: list[Crash] = []
        until_s = time.monotonic() + 60
        while not crashes and time.monotonic() < until_s:
            crashes += [message for message in server.poll(1.0) if isinstance(message, Crash)]
        assert worker.wait(20) == 72 and flood.ended.wait(20)
        flood.close()
        assert crashes[0].error == "MemoryExceeded" and "unfinished multiparts" in crashes[0].text
    finally:
        worker.kill()
        worker.wait()
        server.close()


_CONTROLLER = """
import json, sys, time
from jsrl.runs.control import ControlServer, Event
from jsrl.linux import resident_bytes
from jsrl.runs.memory import MIB
server = ControlServer(sys.argv[1], margin_bytes=64 * MIB)
print(json.dumps(resident_bytes()), flush=True)
most = 0
while True:
    messages = server.poll(0.05)
    most = max(most, resident_bytes())
    if any(isinstance(message, Event) for message in messages):
        print(json.dumps([most, resident_bytes()]), flush=True)
"""


def test_control_connection_drops_endless_messages_and_keeps_workers(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/control"
    controller = subprocess.Popen([sys.executable, "-c", _CONTROLLER, address], stdout=subprocess.PIPE, text=True)
    assert controller.stdout is not None
    try:
        baseline = json.loads(controller.stdout.readline())
        client = ControlClient(address, "actor-0", 0)
        flood = Flood(f"{tmp_path}/control")
        assert flood.ended.wait(60), "its connection was ended"
        flood.close()
        told: list[str] = []
        reader = threading.Thread(target=lambda: told.append(controller.stdout.readline()), daemon=True)
        reader.start()
        while reader.is_alive():  # messages during the reconnection may be lost
            client.send(Event, name="note", text="still here")
            reader.join(0.1)
            assert controller.poll() is None
        most, now = json.loads(told[0])
        assert now < baseline + 64 * MIB, "the memory of its messages was freed"
        assert most >= baseline + 64 * MIB
        client.close()
    finally:
        controller.kill()
        controller.wait()
        controller.stdout.close()
