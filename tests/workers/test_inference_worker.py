"""The inference server as a worker: what a client that has died still asked is not answered, and takes no seat."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from jsrl.agents.ppo import PPOConfig, ppo
from jsrl.errors import StreamError
from jsrl.networks.model import NetworkConfig
from jsrl.transport.base import ClientRequest, ProducerId, Reply, Request
from jsrl.types import ArraySpec, Discrete, EnvSpec, make_version
from jsrl.workers.acting import Engine
from jsrl.workers.base import Silent
from jsrl.workers.inference import InferenceSettings, InferenceWorker

ENV = EnvSpec(ArraySpec((3,), "float32"), Discrete(5))
SIZE = 2


class Server:
    """An inference stream whose clients are the test's."""

    def __init__(self) -> None:
        self.arrived: list[ClientRequest] = []
        self.gone: list[ProducerId] = []
        self.answered: list[tuple[ProducerId, Reply]] = []

    def collect(self, max_rows: int, max_wait_s: float) -> list[ClientRequest]:
        arrived, self.arrived = self.arrived, []
        return arrived

    def departed(self) -> list[ProducerId]:
        gone, self.gone = self.gone, []
        return gone

    def reply(self, request: ClientRequest, reply: Reply) -> None:
        self.answered.append((request.client, reply))


class Params:
    def poll(self, policy: int) -> None:
        return None


def engine(num_slots: int) -> Engine:
    agent = ppo(PPOConfig(network=NetworkConfig(hidden=(8,), core="gru", core_size=6)), ENV)
    made = Engine(agent, ENV, num_slots=num_slots, sizes=[SIZE], seed=0)
    made.set_params(make_version(0, 1), [np.array(x) for x in jax.tree.leaves(agent.init(jax.random.key(0)).params)])
    return made


def asks(name: str, incarnation: int, step: int) -> ClientRequest:
    request = Request(np.zeros((SIZE, 3), np.float32), np.ones(SIZE, bool), step=step)
    return ClientRequest(ProducerId(name, incarnation), 0, request)


def test_many_lives_that_die_asking_take_no_seats() -> None:
    """Each life's last request is found together with its death, as where the server was busy meanwhile."""
    server = Server()
    settings = InferenceSettings(max_rows=8, max_wait_s=0.0, merge=False, poll_s=0.0)
    worker = InferenceWorker("inference-0", engine(2 * SIZE), settings, lambda: (server, Params()), Silent())
    worker.setup()
    for life in range(10):
        server.arrived = [asks("actor-0", life, 0)]
        assert worker.step() == SIZE
        server.arrived, server.gone = [asks("actor-0", life, 1)], [ProducerId("actor-0", life)]
        assert worker.step() == 0
    assert [client.incarnation for client, _ in server.answered] == list(range(10))


def test_cores_are_never_shared_by_two_groups() -> None:
    full = engine(2 * SIZE)
    for group in range(2):
        full.serve(group, SIZE)
    with pytest.raises(StreamError, match=r"group 2 of 2 environments finds 0 slots free"):
        full.serve(2, SIZE)
