from __future__ import annotations

import functools
import itertools

import pytest

from jsrl.errors import ConfigError
from jsrl.transport.base import ProducerId
from jsrl.transport.inference import bind_inference, connect_inference
from jsrl.transport.keys import make_keys
from tests.contracts import inference_contract
from tests.contracts.inference_contract import *  # noqa: F403
from tests.contracts.inference_contract import SPEC, Road

_numbers = itertools.count()


@pytest.fixture(params=["local", "shm", "tcp", "ipc", pytest.param("curve", marks=pytest.mark.slow)])
def road(request: pytest.FixtureRequest, tmp_path, monkeypatch: pytest.MonkeyPatch) -> Road:
    scheme = request.param
    folder = tmp_path / "run"
    if scheme == "curve":
        scheme, keys = "tcp", make_keys(tmp_path / "keys")
        monkeypatch.setattr(inference_contract, "bind_inference", functools.partial(bind_inference, keys=keys))
        monkeypatch.setattr(inference_contract, "connect_inference", functools.partial(connect_inference, keys=keys))

    def new_address() -> str:
        name = f"inference-{next(_numbers)}"
        return {
            "local": f"local:{name}",
            "shm": f"shm:{folder}/{name}",
            "tcp": "tcp://127.0.0.1:0",
            "ipc": f"ipc://{tmp_path}/{name}",
        }[scheme]

    return Road(new_address)


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
