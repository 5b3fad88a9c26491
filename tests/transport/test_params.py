from __future__ import annotations

import functools
import select
import time

import pytest
import zmq

from jsrl.errors import ConfigError, StreamTimeout
from jsrl.transport.door.keys import make_keys
from jsrl.transport.network.latest import Want
from jsrl.transport.table import bind_params, connect_params
from jsrl.transport.wire.message import pack
from tests.contracts import params_contract
from tests.contracts.params_contract import *  # noqa: F403
from tests.contracts.params_contract import Transport
from tests.contracts.sample_contract import wait_for
from tests.marks import slow
from tests.transport.addresses import new_addresses


@pytest.fixture(params=["local", "shm", "ipc", slow("tcp")])
def transport(request: pytest.FixtureRequest, tmp_path, monkeypatch: pytest.MonkeyPatch) -> Transport:
    scheme = request.param
    if scheme == "tcp":
        keys = make_keys(tmp_path / "keys")
        monkeypatch.setattr(params_contract, "bind_params", functools.partial(bind_params, keys=keys))
        monkeypatch.setattr(params_contract, "connect_params", functools.partial(connect_params, keys=keys))
    return Transport(new_addresses(scheme, tmp_path))


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
        subscriber.wait(0, 2, 0.0)  # this connects it
    publisher.publish(0, 2, params_contract.make_values(2))
    assert select.select([subscriber._writer], [], [], 0.0)[0]
    subscriber.close()
    publisher.close()


def test_publisher_goes_on_after_a_reader_of_two_policies_is_gone(tmp_path) -> None:
    publisher = bind_params(f"ipc://{tmp_path}/p")
    with zmq.Context() as context, context.socket(zmq.DEALER) as reader:
        reader.connect(publisher.address)
        for policy in range(2):
            reader.send_multipart(pack(Want(policy, -1)))
        wait_for(lambda: len(publisher._wanted) == 2)
    time.sleep(0.2)  # until the publisher's socket has noticed it
    wake, publisher._thread.wake = publisher._thread.wake, lambda: None
    publisher.publish(0, 1, params_contract.make_values(1))
    publisher._thread.wake = wake
    publisher.publish(1, 1, params_contract.make_values(1))  # both policies are new when the thread wakes
    wait_for(lambda: not publisher._wanted)
    subscriber = connect_params(publisher.address)
    subscriber.wait(0, 0, 10.0)
    assert subscriber.poll() is not None
    subscriber.close()
    publisher.close()
