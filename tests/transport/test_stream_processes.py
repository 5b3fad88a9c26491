"""Inference and params between real processes: deaths, replacements, torn reads, permissions, leftovers."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jsrl.errors import StreamClosed
from jsrl.transport.base import ProducerId
from jsrl.transport.table import bind_inference, bind_params, connect_inference, connect_params
from tests.contracts.inference_contract import SPEC, TIMEOUT_S, Serving, check_answer, make_request
from tests.contracts.params_contract import check_values, make_values, poll_until
from tests.marks import slow
from tests.transport.stream_process import STRESS_VERSIONS

ROOT = Path(__file__).parents[2]


class Children:
    def __init__(self) -> None:
        self.started: list[subprocess.Popen[str]] = []

    def start(self, *words: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.transport.stream_process", *map(str, words)]
        child = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.started.append(child)
        return child

    def close(self) -> None:
        for child in self.started:
            if child.poll() is None:
                child.kill()
            child.wait(TIMEOUT_S)
            for pipe in (child.stdin, child.stdout):
                if pipe is not None:
                    try:
                        pipe.close()
                    except BrokenPipeError:
                        pass


def read_line(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


def send_line(child: subprocess.Popen[str]) -> None:
    assert child.stdin is not None
    child.stdin.write("\n")
    child.stdin.flush()


@pytest.fixture
def children() -> Iterator[Children]:
    children = Children()
    yield children
    children.close()


@pytest.fixture(params=["shm", slow("ipc")])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    return {"shm": f"shm:{folder}/stream", "ipc": f"ipc://{folder}/stream"}[request.param]


@pytest.mark.slow
def test_killed_clients_are_removed_and_their_replacements_served(
    address: str, children: Children, tmp_path: Path
) -> None:
    serving = Serving(bind_inference(address, SPEC))
    first = children.start("ask", serving.address, 0)
    assert read_line(first) == "checked"
    first.kill()
    serving.wait_gone(ProducerId("actor-0", 0))
    second = children.start("ask", serving.address, 1)
    assert read_line(second) == "checked"
    send_line(second)
    assert read_line(second) == "left"
    serving.wait_gone(ProducerId("actor-0", 1))
    assert serving.gone == [ProducerId("actor-0", 0), ProducerId("actor-0", 1)]
    serving.close()
    assert list((tmp_path / "run").iterdir()) == []


def test_killed_server_is_detected_and_its_replacement_found(address: str, children: Children) -> None:
    server = children.start("serve", address)
    bound = read_line(server)
    client = connect_inference(bound, SPEC, ProducerId("actor-0", 3), {0: 5}, TIMEOUT_S)
    client.send(0, make_request(5, 0))
    check_answer(make_request(5, 0), client.receive(TIMEOUT_S)[1])
    killer = threading.Timer(0.2, server.kill)
    killer.start()
    started = time.monotonic()
    with pytest.raises(StreamClosed):
        client.receive(TIMEOUT_S)
    assert time.monotonic() - started < 5
    client.close()
    again = children.start("serve", bound)
    assert read_line(again) == bound
    client = connect_inference(bound, SPEC, ProducerId("actor-0", 3), {0: 5}, TIMEOUT_S)
    client.send(0, make_request(5, 1))
    check_answer(make_request(5, 1), client.receive(TIMEOUT_S)[1])
    client.close()


@pytest.mark.slow
def test_readers_never_see_torn_params(address: str, children: Children) -> None:
    publisher = children.start("publish", address)
    bound = read_line(publisher)
    readers = [children.start("read", bound) for _ in range(3)]
    assert [read_line(reader) for reader in readers] == ["reading"] * 3
    send_line(publisher)
    assert read_line(publisher) == "published"
    for reader in readers:
        word, seen = read_line(reader).split()
        assert word == "saw" and 1 <= int(seen) <= STRESS_VERSIONS
        assert reader.wait(TIMEOUT_S) == 0
    send_line(publisher)
    assert publisher.wait(TIMEOUT_S) == 0


def test_killed_publisher_is_replaced(address: str, children: Children) -> None:
    publisher = children.start("publish", address)
    bound = read_line(publisher)
    subscriber = connect_params(bound)
    send_line(publisher)
    subscriber.wait(0, STRESS_VERSIONS // 2, TIMEOUT_S)
    publisher.kill()
    publisher.wait(TIMEOUT_S)
    subscriber.poll()
    newer = bind_params(bound)
    newer.publish(0, (2 << 40) | 1, make_values(1))
    check_values(poll_until(subscriber, (2 << 40) | 1), 1)
    subscriber.close()
    newer.close()


def modes(folder: Path) -> set[int]:
    return {stat.S_IMODE(path.lstat().st_mode) for path in folder.rglob("*") if not path.is_dir()}


def test_shared_memory_is_private_and_removed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    mask = os.umask(0)
    try:
        serving = Serving(bind_inference(f"shm:{folder}/inference", SPEC))
        publisher = bind_params(f"shm:{folder}/params")
        subscriber = connect_params(publisher.address)
        client = connect_inference(serving.address, SPEC, ProducerId("actor-0", 0), {0: 5}, TIMEOUT_S)
        publisher.publish(0, 1, make_values(1))
        subscriber.wait(0, 1, TIMEOUT_S)
        waiter = threading.Thread(target=lambda: subscriber.wait(0, 2, TIMEOUT_S))
        waiter.start()
        found = modes(folder)
    finally:
        os.umask(mask)
    assert found == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    publisher.publish(0, 2, make_values(2))
    waiter.join(TIMEOUT_S)
    for end in (subscriber, client, publisher):
        end.close()
    late = connect_params(publisher.address)
    check_values(poll_until(late, 2), 2)  # the last params stay readable
    late.close()
    serving.close()
    assert [path.name for path in folder.iterdir()] == ["params.policy-0"]
