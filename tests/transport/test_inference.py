from __future__ import annotations

import functools
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import zmq

from jsrl.errors import ConfigError
from jsrl.transport.base import ProducerId
from jsrl.transport.door.hello import Hello, hello_frames
from jsrl.transport.door.keys import make_keys
from jsrl.transport.ends.area import AreaLayout
from jsrl.transport.network import call
from jsrl.transport.shared.connections import connect_socket
from jsrl.transport.table import bind_inference, connect_inference
from jsrl.transport.wire.message import pack
from jsrl.transport.wire.schema import flatten_schema
from tests.contracts import inference_contract
from tests.contracts.inference_contract import *  # noqa: F403
from tests.contracts.inference_contract import (
    SPEC,
    Transport,
    collect_some,
    connect,
    make_request,
    wait_until,
)
from tests.marks import slow
from tests.transport.addresses import new_addresses, tag_of


@pytest.fixture(params=["local", "shm", "ipc", slow("tcp")])
def transport(request: pytest.FixtureRequest, tmp_path, monkeypatch: pytest.MonkeyPatch) -> Transport:
    scheme = request.param
    if scheme == "tcp":
        keys = make_keys(tmp_path / "keys")
        monkeypatch.setattr(inference_contract, "bind_inference", functools.partial(bind_inference, keys=keys))
        monkeypatch.setattr(inference_contract, "connect_inference", functools.partial(connect_inference, keys=keys))
    return Transport(new_addresses(scheme, tmp_path))


def test_unknown_scheme() -> None:
    with pytest.raises(ConfigError, match="carrier"):
        bind_inference("carrier:pigeon", SPEC)
    with pytest.raises(ConfigError, match="carrier"):
        connect_inference("carrier:pigeon", SPEC, ProducerId("a", 0), {0: 1}, 1.0)


@pytest.mark.parametrize("groups", [{}, {0: 0}, {-1: 4}, {0: 1 << 40}])
def test_impossible_groups(groups: dict[int, int]) -> None:
    server = bind_inference("local:impossible-groups", SPEC)
    with pytest.raises(ConfigError, match="group"):
        connect_inference(server.address, SPEC, ProducerId("a", 0), groups, 1.0)
    server.close()


def test_pings_are_rarer_with_many_clients(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand clients get at most as many pings per second as a hundred."""
    server = bind_inference(f"ipc://{tmp_path}/many", SPEC)
    now_s, pinged = [time.monotonic()], [0]
    clients = {
        bytes([n // 256, n % 256]): SimpleNamespace(heard_s=0.0, ping=lambda: pinged.append(1) or True)
        for n in range(1000)
    }
    monkeypatch.setattr(call, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    with monkeypatch.context() as patch:
        patch.setattr(server, "_clients", clients)
        for _ in range(200):
            now_s[0] += 0.1
            server._find_broken()
    assert 3_000 <= sum(pinged) <= 4_000  # 20 s, 200 per second
    server.close()


def test_many_clients_at_once_are_all_welcome(tmp_path) -> None:
    """As when a server of many actors was replaced."""
    server = bind_inference(f"shm:{tmp_path}/run/inference", SPEC)
    clients = []
    for number in range(80):
        clients.append(connect_socket(tmp_path / "run" / "inference", 1.0, lambda: None))
        hello = Hello(ProducerId(f"actor-{number}", 0), {0: 1}, flatten_schema(SPEC))
        clients[-1].send(hello_frames(hello)[0])
    for _ in range(3):
        server.collect(1, 0.0)
    assert {tag_of([client.recv(1 << 16)]) for client in clients} == {"welcome"}
    server.close()
    for client in clients:
        client.close()


def test_hundreds_of_late_requests_of_a_replaced_client_are_refused(tmp_path: Path) -> None:
    """As a host sends them that was stopped, or cut off, while its workers were replaced."""
    server = bind_inference(f"ipc://{tmp_path}/i", SPEC)
    raw = np.zeros(AreaLayout(SPEC, {0: 5}).question_bytes(0), np.uint8)
    with zmq.Context() as context, context.socket(zmq.DEALER) as old:
        old.setsockopt(zmq.LINGER, 0)
        old.connect(server.address)
        old.send_multipart(hello_frames(Hello(ProducerId("actor-0", 0), {0: 5}, flatten_schema(SPEC))))
        wait_until(lambda: server.collect(5, 0.05) == [] and bool(server._peers), "the hello")
        with ThreadPoolExecutor(1) as pool:
            joining = pool.submit(connect, server.address, incarnation=1)
            wait_until(lambda: server.collect(5, 0.05) == [] and joining.done(), "the next incarnation")
        for step in range(900):  # fewer than may wait in a connection
            old.send_multipart(pack(call.Request(0, -1, step, False, False, False), raw))
        kinds = list[str]()
        while kinds.count("refused") < 901:  # one when it was replaced; pings come too
            assert server.collect(5, 0.0) == []
            while old.poll(0):
                kinds.append(tag_of(old.recv_multipart()))
        assert set(kinds) - {"ping"} == {"welcome", "refused"}
    client = joining.result()
    client.send(0, make_request(5, 0))
    (asked,) = collect_some(server, 1)
    assert asked.client.incarnation == 1
    client.close()
    server.close()
