"""The inference server as a worker: what a dead client had asked takes no seat, and who comes again is answered."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import numpy as np
import pytest

from jsrl.agents.ppo import PPOConfig, ppo
from jsrl.errors import StreamError, StreamTimeout, UnknownPolicy
from jsrl.networks.model import NetworkConfig
from jsrl.transport.base import InferenceClient, InferenceSpec, ProducerId, Reply, Request
from jsrl.transport.inference.roads import bind_inference, connect_inference
from jsrl.types import ArraySpec, Discrete, EnvSpec, make_version
from jsrl.workers.acting import Engine
from jsrl.workers.base import NullReporter
from jsrl.workers.inference.worker import InferenceSettings, InferenceWorker

ENV = EnvSpec(ArraySpec((3,), "float32"), Discrete(5))
SIZE, CORE = 2, 6
AGENT = ppo(PPOConfig(network=NetworkConfig(hidden=(8,), core="gru", core_size=CORE)), ENV)
ACT = InferenceSpec(ENV.observation, ENV.action.array, ArraySpec((), "float32"), {}, ArraySpec((CORE,), "float32"))


class Params:
    def poll(self, policy: int) -> None:
        return None


def engine(num_slots: int) -> Engine:
    made = Engine(AGENT, ENV, num_slots=num_slots, sizes=[SIZE], seed=0)
    made.set_params(make_version(0, 1), [np.array(x) for x in jax.tree.leaves(AGENT.init(jax.random.key(0)).params)])
    return made


class Serving:
    """An inference worker on a road of its own, stepped by hand."""

    def __init__(self, address: str, num_slots: int) -> None:
        self.server = bind_inference(address, ACT)
        settings = InferenceSettings(max_rows=8, max_wait_s=0.0, merge=False, poll_s=0.0)
        self.worker = InferenceWorker(
            "inference-0", engine(num_slots), settings, lambda: (self.server, Params()), NullReporter()
        )
        self.worker.setup()

    def connect(self, incarnation: int) -> InferenceClient:
        """Connect an actor; the worker is stepped meanwhile."""
        who = ProducerId("actor-0", incarnation)
        with ThreadPoolExecutor(1) as pool:
            client = pool.submit(connect_inference, self.server.address, ACT, who, {0: SIZE}, 20.0)
            while not client.done():
                self.worker.step()
            return client.result()

    def receive(self, client: InferenceClient) -> Reply:
        """Return the next reply; the worker is stepped meanwhile."""
        until_s = time.monotonic() + 20.0
        while time.monotonic() < until_s:
            self.worker.step()
            with contextlib.suppress(StreamTimeout):
                return client.receive(0.01)[1]
        raise AssertionError("no reply")


@pytest.fixture(params=["shm", "ipc"])
def serving(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Serving]:
    address = f"shm:{tmp_path}/run/i" if request.param == "shm" else f"ipc://{tmp_path}/i"
    made = Serving(address, 2 * SIZE)
    yield made
    made.server.close()


def asked(step: int) -> Request:
    return Request(np.zeros((SIZE, 3), np.float32), np.ones(SIZE, bool), step=step)


def test_many_lives_that_die_asking_take_no_seats(serving: Serving) -> None:
    """Each leaves a request behind; with two seats, none of the next ones finds them taken."""
    for life in range(6):
        client = serving.connect(life)
        client.send(0, asked(0))
        serving.receive(client)
        client.send(0, asked(1))
        client.close()
        for _ in range(5):
            serving.worker.step()


def test_who_comes_again_is_answered(serving: Serving) -> None:
    """The same life leaves with a question open and connects anew, as an actor does that has lost another stream."""
    client = serving.connect(0)
    for step in range(6):
        client.send(0, asked(10 * step))
        client.close()
        client = serving.connect(0)
        client.send(0, asked(10 * step + 1))
        assert serving.receive(client).action.shape == (SIZE,)
    client.close()


def test_all_that_a_client_said_is_heard_before_it_says_hello_again(serving: Serving) -> None:
    """It came, asked, left and knocked again while the server did something else."""
    who = ProducerId("actor-0", 0)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(connect_inference, serving.server.address, ACT, who, {0: SIZE}, 20.0)
        while not serving.server._askers:  # from its welcome on the server looks no more
            serving.worker.step()
        client = first.result()
        client.send(0, asked(0))
        client.close()
        again = pool.submit(connect_inference, serving.server.address, ACT, who, {0: SIZE}, 20.0)
        time.sleep(0.3)
        while not again.done():
            serving.worker.step()
        again.result().close()


@pytest.mark.parametrize("road", ["local", "shm", "ipc"])
def test_only_the_policy_that_is_served_is_answered(road: str, tmp_path: Path) -> None:
    address = {"local": f"local:{tmp_path.name}", "shm": f"shm:{tmp_path}/run/i", "ipc": f"ipc://{tmp_path}/i"}[road]
    serving = Serving(address, 2 * SIZE)
    client = serving.connect(0)
    one_row = np.zeros(SIZE, np.int32)
    one_row[-1] = 3
    for policy in (3, one_row):
        client.send(0, asked(0)._replace(policy=policy))
        with pytest.raises(UnknownPolicy, match=r"for policy 3; it serves 0 \(policy\)"):
            serving.receive(client)
    client.send(0, asked(1))
    assert serving.receive(client).policy.tolist() == [0] * SIZE
    assert serving.worker.report()[0]["inference/refused"] == 2
    client.close()
    serving.server.close()


def test_cores_are_never_shared_by_two_groups() -> None:
    full = engine(2 * SIZE)
    for group in range(2):
        full.serve(group, SIZE)
    with pytest.raises(StreamError, match=r"group 2 of 2 environments finds 0 slots free"):
        full.serve(2, SIZE)
