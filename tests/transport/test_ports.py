"""JSRL_PORTS limits the ports at which sockets of this host listen."""

from __future__ import annotations

import os

import pytest
import zmq

from jsrl.errors import ConfigError
from jsrl.transport.network.sockets import VARIABLE, bind
from jsrl.workers.attached.ranks import held_port


@pytest.fixture
def host() -> str:
    """Return an address of this test process alone, so that its ports are free; another one than tests.loopback gives."""
    return f"127.{254 - os.getpid() % 200}.{(os.getpid() >> 8) % 256}.{(os.getpid() >> 16) % 256}"


def test_sockets_take_the_ports_of_the_range_until_none_is_free(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "47001-47003")
    with zmq.Context() as context, context.socket(zmq.ROUTER) as one, context.socket(zmq.ROUTER) as two:
        found = {int(bind(socket, f"tcp://{host}:0").rpartition(":")[2]) for socket in (one, two)}
        held, place = held_port(f"tcp://{host}:1234")
        found.add(int(place.rpartition(":")[2]))
        assert found == {47001, 47002, 47003}
        with context.socket(zmq.ROUTER) as third:
            for take in (lambda: bind(third, f"tcp://{host}:0"), lambda: held_port(f"tcp://{host}:1234")):
                with pytest.raises(ConfigError, match="all ports of JSRL_PORTS=47001-47003 are in use"):
                    take()
            held.close()
            assert bind(third, f"tcp://{host}:0").rpartition(":")[0] == f"tcp://{host}"


@pytest.mark.parametrize("given", ["40000", "80-90", "40100-40000", "40000-70000", "a-b"])
def test_other_values_are_refused(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, given)
    expected = pytest.raises(ConfigError, match="expected a range of ports from 1024 to 65535, such as 40000-40100")
    with zmq.Context() as context, context.socket(zmq.ROUTER) as socket, expected:
        bind(socket, "tcp://127.0.0.1:0")
