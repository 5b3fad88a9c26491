from __future__ import annotations

import functools
import itertools

import pytest

from jsrl.errors import ConfigError, StreamTimeout
from jsrl.transport.meeting.keys import make_keys
from jsrl.transport.params.transports import bind_params, connect_params
from tests.contracts import params_contract
from tests.contracts.params_contract import *  # noqa: F403
from tests.contracts.params_contract import Transport

_numbers = itertools.count()


@pytest.fixture(params=["local", "shm", "ipc", pytest.param("tcp", marks=pytest.mark.slow)])
def transport(request: pytest.FixtureRequest, tmp_path, monkeypatch: pytest.MonkeyPatch) -> Transport:
    scheme = request.param
    if scheme == "tcp":
        keys = make_keys(tmp_path / "keys")
        monkeypatch.setattr(params_contract, "bind_params", functools.partial(bind_params, keys=keys))
        monkeypatch.setattr(params_contract, "connect_params", functools.partial(connect_params, keys=keys))

    def new_address() -> str:
        name = f"params-{next(_numbers)}"
        return {
            "local": f"local:{name}",
            "shm": f"shm:{tmp_path}/run/{name}",
            "tcp": "tcp://127.0.0.1:0",
            "ipc": f"ipc://{tmp_path}/{name}",
        }[scheme]

    return Transport(new_address)


def test_unknown_scheme() -> None:
    with pytest.raises(ConfigError, match="carrier"):
        bind_params("carrier:pigeon")
    with pytest.raises(ConfigError, match="carrier"):
        connect_params("carrier:pigeon")


def test_publish_wakes_a_waiting_reader(tmp_path) -> None:
    publisher = bind_params(f"shm:{tmp_path}/run/p")
    publisher.publish(0, 1, params_contract.make_values(1))
    subscriber = connect_params(publisher.address)
    with pytest.raises(StreamTimeout):
        subscriber.wait(0, 2, 0.0)  # this removes its bell
    subscriber._bell.drain()
    publisher.publish(0, 2, params_contract.make_values(2))
    assert subscriber._bell.wait(0.0)
    subscriber.close()
    publisher.close()
