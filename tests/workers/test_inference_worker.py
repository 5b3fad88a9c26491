"""The inference server as a worker: requests of dead clients use no slot, and returning clients are answered."""

from __future__ import annotations

import contextlib
import threading
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
from jsrl.transport.table import bind_inference, connect_inference
from jsrl.types import ArraySpec, Discrete, EnvSpec, make_version
from jsrl.workers.acting import Engine
from jsrl.workers.inference.worker import InferenceSettings
from tests.workers.serving import make_server

ENV = EnvSpec(ArraySpec((3,), "float32"), Discrete(5))
SIZE, CORE = 2, 6
KEY = jax.random.key(0)
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
    """An inference worker on its own transport, stepped by hand."""

    def __init__(self, address: str, num_slots: int, poll_s: float = 0.0) -> None:
        self.server = bind_inference(address, ACT)
        settings = InferenceSettings(max_rows=8, merge=False, poll_s=poll_s)
        self.worker = make_server(settings, [(engine(num_slots), lambda: (self.server, Params()))])
        self.worker.setup()

    def connect(self, incarnation: int, name: str = "actor-0") -> InferenceClient:
        """Connect an actor, or another client; the worker is stepped meanwhile."""
        who = ProducerId(name, incarnation)
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


def test_a_server_with_requests_to_answer_does_not_count_as_waiting(tmp_path: Path, monkeypatch) -> None:
    serving = Serving(f"shm:{tmp_path}/run/i", SIZE, poll_s=0.01)
    client = serving.connect(0)
    entered = list[str]()
    monkeypatch.setattr(serving.worker.meter.phases, "enter", entered.append)
    client.send(0, asked(0))
    serving.worker.step()
    assert "act" in entered and "wait" not in entered
    serving.worker.step()
    assert entered.count("wait") == 1
    client.close()
    serving.server.close()


def test_clients_that_die_waiting_do_not_use_up_slots(serving: Serving) -> None:
    """Each leaves a request behind; with two slots, the next clients still get one."""
    for life in range(6):
        client = serving.connect(life)
        client.send(0, asked(0))
        serving.receive(client)
        client.send(0, asked(1))
        client.close()
        for _ in range(5):
            serving.worker.step()


def test_all_slots_of_a_group_are_free_again_once_its_clients_have_left(serving: Serving) -> None:
    """Two workers ask for one group, such as an actor and a relabeler, and reconnect when one of them is replaced."""
    for life in range(3):
        clients = [serving.connect(life, name) for name in ("actor-0", "relabel")]
        for client in clients:
            client.send(0, asked(0))
            serving.receive(client)
        for client in clients:
            client.close()
        for _ in range(5):
            serving.worker.step()


def test_returning_client_is_answered(serving: Serving) -> None:
    """The same incarnation leaves with an open request and reconnects, as an actor does after losing another stream."""
    client = serving.connect(0)
    for step in range(6):
        client.send(0, asked(10 * step))
        client.close()
        client = serving.connect(0)
        client.send(0, asked(10 * step + 1))
        assert serving.receive(client).action.shape == (SIZE,)
    client.close()


def test_messages_before_a_second_hello_are_read_first(serving: Serving) -> None:
    """It connected, sent a request, left and reconnected while the server did something else."""
    who = ProducerId("actor-0", 0)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(connect_inference, serving.server.address, ACT, who, {0: SIZE}, 20.0)
        while not serving.server._peers:  # the server stops checking once it is welcome
            serving.worker.step()
        client = first.result()
        client.send(0, asked(0))
        client.close()
        again = pool.submit(connect_inference, serving.server.address, ACT, who, {0: SIZE}, 20.0)
        time.sleep(0.3)
        while not again.done():
            serving.worker.step()
        again.result().close()


@pytest.mark.parametrize("transport", ["local", "shm", "ipc"])
def test_only_served_policies_are_answered(transport: str, tmp_path: Path) -> None:
    address = {"local": f"local:{tmp_path.name}", "shm": f"shm:{tmp_path}/run/i", "ipc": f"ipc://{tmp_path}/i"}[
        transport
    ]
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


class NeverAwaited(Params):
    """Params for which a server of several policies may not wait, because the other requests would wait too."""

    def wait(self, *_: object) -> None:
        raise AssertionError("the requests of the other policy wait meanwhile")

    def close(self) -> None: ...


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["shm", "ipc"])
def test_server_of_several_policies_answers_each_request_at_once(transport: str, tmp_path: Path) -> None:
    """Two policies of different environments; a request for missing params does not delay the other."""
    other = EnvSpec(ArraySpec((7,), "float32"), Discrete(2))
    agents = ppo(PPOConfig(network=NetworkConfig(hidden=(8,))), ENV), ppo(PPOConfig(), other)
    settings = InferenceSettings(max_rows=8, merge=True, poll_s=20.0)
    servers, policies, acts = [], [], []
    for number, (agent, spec) in enumerate(zip(agents, (ENV, other), strict=True)):
        acts.append(InferenceSpec(spec.observation, spec.action.array, ArraySpec((), "float32"), {}, ()))
        path = f"shm:{tmp_path}/run/{number}" if transport == "shm" else f"ipc://{tmp_path}/{number}"
        servers.append(bind_inference(path, acts[-1]))
        made = Engine(agent, spec, num_slots=4, sizes=[SIZE, 4], seed=0, policy=number, policy_name=f"p{number}")
        made.set_params(make_version(0, number), [np.array(x) for x in jax.tree.leaves(agent.init(KEY).params)])
        policies.append((made, lambda number=number: (servers[number], NeverAwaited())))
    worker = make_server(settings, policies)
    worker.setup()
    ended = threading.Event()

    def serve() -> None:
        while not ended.is_set():
            worker.step()

    with ThreadPoolExecutor(1) as pool:
        serving = pool.submit(serve)
        who = ProducerId("actor-0", 0)
        clients = [
            connect_inference(server.address, act, who, {0: SIZE, 1: SIZE}, 10.0)
            for server, act in zip(servers, acts, strict=True)
        ]
        waits = Request(np.zeros((SIZE, 7), np.float32), np.ones(SIZE, bool), step=0, policy=1, min_updates=2)
        clients[1].send(1, waits)
        since_s = time.monotonic()
        for step in range(3):
            clients[0].send(0, asked(step))
            assert clients[0].receive(10.0)[1].policy.tolist() == [0, 0]
            clients[1].send(0, waits._replace(step=step, min_updates=1))
            group, reply = clients[1].receive(10.0)
            assert group == 0 and reply.policy.tolist() == [1, 1] and set(reply.action.tolist()) <= {0, 1}
        assert time.monotonic() - since_s < settings.poll_s, "a request ends the wait for those of the other policy"
        clients[0].send(0, asked(9)._replace(policy=1))
        with pytest.raises(UnknownPolicy, match=r"for policy 1; it serves 0 \(p0\)"):
            clients[0].receive(10.0)
        ended.set()
        for client in clients:
            client.close()
        serving.result(30.0)
    figures, _ = worker.report()
    assert (figures["inference/params_updates"], figures["inference/refused"]) == (0, 1)
    assert figures["inference/compilations_after_warmup"] == 0
    worker.close()
