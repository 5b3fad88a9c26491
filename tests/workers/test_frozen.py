"""Frozen players: each row is acted on by its requested version, in any batch; loading is bounded and fair."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from jsrl.agents.ppo import PPOConfig, ppo
from jsrl.errors import SnapshotError, StreamTimeout, UnknownPolicy
from jsrl.networks.model import NetworkConfig
from jsrl.services.metrics.metrics import Meter
from jsrl.services.snapshots.players import PlayerStore
from jsrl.transport.base import (
    LATEST_VERSION,
    NOT_PLAYED,
    ClientRequest,
    InferenceSpec,
    ProducerId,
    Reply,
    Request,
)
from jsrl.transport.table import bind_inference, connect_inference
from jsrl.types import ArraySpec, Discrete, EnvSpec, leaves, make_version, version_updates
from jsrl.workers.acting import Engine
from jsrl.workers.base import NullReporter, Refusals
from jsrl.workers.frozen import FrozenParams
from jsrl.workers.inference.worker import InferenceSettings, InferenceWorker, ServedPolicy
from tests.marks import marked
from tests.workers.serving import make_server

SIZE, GROUPS, CORE = 4, 3, 6
NEWEST, VERSIONS = make_version(0, 99), tuple(make_version(0, n) for n in range(3))
AGENTS = {
    (core, seats): (
        ppo(PPOConfig(network=NetworkConfig(hidden=(8,), core=core, core_size=CORE)), env),
        env,
    )
    for core in ("none", "gru")
    for seats in (None, 2)
    for env in [EnvSpec(ArraySpec((3,) if seats is None else (seats, 3), "float32"), Discrete(5), num_agents=seats)]
}


def params_of(agent, version: int) -> list[np.ndarray]:
    shapes = jax.eval_shape(agent.init, jax.random.key(0)).params
    rng = np.random.default_rng(version % 1000)
    return [rng.normal(size=leaf.shape).astype(leaf.dtype) for leaf in jax.tree.leaves(shapes)]


def make_engine(kind, newest: int = NEWEST, frozen: bool = True, greedy: bool = False, warm: bool = True) -> Engine:
    agent, env = AGENTS[kind]
    players = (
        (lambda make: FrozenParams(lambda v: params_of(agent, v), make, max_bytes=1 << 20, background=False))
        if (frozen)
        else None
    )
    slots = GROUPS * SIZE
    sizes = [SIZE, 8, slots] if warm else [SIZE]
    engine = Engine(agent, env, num_slots=slots, sizes=sizes, seed=3, greedy=greedy, frozen=players)
    engine.set_params(newest, params_of(agent, newest))
    if warm:
        engine.warm_up()
    return engine


def make_request(kind, group: int, step: int, version) -> Request:
    rng = np.random.default_rng((group, step))
    observation = rng.normal(size=(SIZE, *AGENTS[kind][1].observation.shape)).astype(np.float32) * 3
    return Request(observation, rng.random(SIZE) < 0.3, step=step, wants_core=step % 3 == 0, version=version)


def loaded(engine: Engine, request: Request) -> Request:
    assert engine.frozen is not None and engine.frozen.take("test", engine.frozen_versions(request))
    return request


def draw_versions(kind, rng: np.random.Generator) -> np.ndarray:
    shape = (SIZE,) if kind[1] is None else (SIZE, kind[1])
    return rng.choice([LATEST_VERSION, NOT_PLAYED, *VERSIONS], shape).astype(np.int64)


def oracle(kind, group: int, versions: list[np.ndarray], greedy: bool) -> list[list[np.ndarray]]:
    """Act step by step with one engine per version, whose cores are set to those of the rows."""
    engines = {v: make_engine(kind, NEWEST if v == LATEST_VERSION else v, False, greedy) for v in (-1, *VERSIONS)}
    places = {v: engine.serve(group, SIZE) for v, engine in engines.items()}
    found = []
    for step, wanted in enumerate(versions):
        request = make_request(kind, group, step, LATEST_VERSION)._replace(wants_core=True)
        replies = {v: engine.act(places[v], request) for v, engine in engines.items()}
        rows = {v: leaves(reply[:3]) for v, reply in replies.items()}
        result = [np.zeros_like(leaf) for leaf in rows[-1]]
        for v in engines:
            for whole, leaf in zip(result, rows[v], strict=True):
                whole[wanted == v] = leaf[wanted == v]
        found.append([*result, *leaves(replies[-1].core)])
        share_cores(engines, wanted)
    return found


def share_cores(engines: dict[int, Engine], wanted: np.ndarray) -> None:
    """Give all engines the cores of the one that played; if none did, those of before."""
    if not engines[-1].has_core:
        return
    tables = {v: jax.device_get(engine._table) for v, engine in engines.items()}
    saved = share_cores.saved.get(id(engines))  # type: ignore[attr-defined]
    before = saved if saved is not None else jax.tree.map(np.zeros_like, tables[-1])
    after = jax.tree.map(np.array, before)
    for v in engines:
        for whole, leaf in zip(jax.tree.leaves(after), jax.tree.leaves(tables[v]), strict=True):
            whole[:SIZE][wanted == v] = leaf[:SIZE][wanted == v]
    share_cores.saved[id(engines)] = after  # type: ignore[attr-defined]
    for engine in engines.values():
        engine._table = jax.tree.map(jax.numpy.asarray, after)


share_cores.saved = {}  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.parametrize("kind", marked(AGENTS, nightly={("none", 2), ("gru", None)}), ids=str)
def test_each_row_is_acted_on_by_its_version_with_its_core(kind) -> None:
    """One group at its full shape: the bits equal those of an engine with that version only."""
    share_cores.saved.clear()  # type: ignore[attr-defined]
    rng = np.random.default_rng(0)
    versions = [draw_versions(kind, rng) for _ in range(7)]
    expected = oracle(kind, 1, versions, greedy=False)
    engine = make_engine(kind)
    compiled = engine.compilations
    place = engine.serve(1, SIZE)
    for step, wanted in enumerate(versions):
        reply = engine.act(place, loaded(engine, make_request(kind, 1, step, wanted)))
        got = [*leaves(reply[:3]), *leaves(reply.core)]
        for mine, right in zip(got, expected[step], strict=False):
            np.testing.assert_array_equal(mine, right)
        assert (len(got) == len(expected[step])) == (step % 3 == 0 or not engine.has_core)
        assert reply.version == NEWEST
    assert engine.compilations == compiled


@pytest.mark.parametrize("kind", marked(AGENTS, slow={("none", None), ("gru", None)}, nightly={("gru", 2)}), ids=str)
def test_merged_batch_acts_like_separate_groups(kind) -> None:
    """Greedy actions do not depend on the key: several groups at once, against each with its own engine."""
    rng = np.random.default_rng(1)
    merged, alone = make_engine(kind, greedy=True), [make_engine(kind, greedy=True) for _ in range(GROUPS)]
    places, own = [merged.serve(g, SIZE) for g in range(GROUPS)], [e.serve(g, SIZE) for g, e in enumerate(alone)]
    compiled = merged.compilations
    for step in range(6):
        asked = [make_request(kind, g, step, draw_versions(kind, rng)) for g in range(GROUPS)]
        replies = merged.act_merged(
            [(place, loaded(merged, request)) for place, request in zip(places, asked, strict=True)]
        )
        for g, reply in enumerate(replies):
            right = alone[g].act(own[g], loaded(alone[g], asked[g]))
            np.testing.assert_array_equal(reply.action, right.action)
            np.testing.assert_allclose(reply.log_prob, right.log_prob, atol=1e-5)
            for mine, theirs in zip(leaves(reply.core), leaves(right.core), strict=True):
                np.testing.assert_allclose(mine, theirs, atol=1e-5)
    assert merged.compilations == compiled


class ManualLoads:
    """Players of 100 bytes that load when permitted."""

    def __init__(self) -> None:
        self.gate, self.asked = threading.Semaphore(0), []

    def __call__(self, version: int) -> list[np.ndarray]:
        self.gate.acquire()
        self.asked.append(version)
        if version == 13:
            raise SnapshotError("player 13 is gone")
        return [np.full(100, version % 100, np.uint8)]


def take_until(frozen: FrozenParams, owner: str, versions: tuple[int, ...]) -> None:
    deadline = time.monotonic() + 20
    while not frozen.take(owner, versions):
        assert time.monotonic() < deadline, "never loaded"
        frozen.receive()
        time.sleep(0.001)


def test_memory_is_bounded_by_evicting_the_least_recently_used() -> None:
    loads = ManualLoads()
    for _ in range(9):
        loads.gate.release()
    frozen = FrozenParams(loads, lambda values: values[0], max_bytes=300, background=False)
    for versions in ((1,), (2,), (3,), (1,), (4,), (1, 4), (2,)):
        assert frozen.take("a", versions)
        assert frozen.size_bytes <= 300
        assert [int(frozen.get(v)[0]) for v in versions] == list(versions)
    assert loads.asked == [1, 2, 3, 4, 2] and frozen.misses == 5
    assert frozen.take("a", (5, 6, 7, 8))  # the players of one request are kept, under any bound
    assert frozen.size_bytes == 400


class ScriptedServer:
    """The server end of a stream with clients that a test scripts."""

    def __init__(self) -> None:
        self.arrived: list[ClientRequest] = []
        self.gone: list[ProducerId] = []

    def collect(self, max_rows: int, max_wait_s: float) -> list[ClientRequest]:
        found, self.arrived = self.arrived, []
        return found

    def departed(self, poll: bool = True) -> list[ProducerId]:
        found, self.gone = self.gone, []
        return found

    def reply(self, request: ClientRequest, reply: Reply) -> None: ...


def scripted(kind: tuple[str, int | None], stream: ScriptedServer) -> ServedPolicy:
    """Return a server with slots for one group."""
    agent, env = AGENTS[kind]
    engine = Engine(agent, env, num_slots=SIZE, sizes=[SIZE], seed=3)
    engine.set_params(NEWEST, params_of(agent, NEWEST))
    settings, refusals = InferenceSettings(2 * SIZE, False, 0.0), Refusals("inference-0", NullReporter())
    ends = (stream, NoParams())
    server = ServedPolicy("inference-0", engine, settings, lambda: ends, refusals, Meter("inference"))  # type: ignore[arg-type,return-value]
    server.connect()
    return server


def test_a_client_that_leaves_while_its_request_waits_for_params_is_forgotten() -> None:
    kind, stream = ("none", None), ScriptedServer()
    server = scripted(kind, stream)
    newer = make_request(kind, 0, 0, np.full(SIZE, LATEST_VERSION))._replace(min_updates=version_updates(NEWEST) + 1)
    stream.arrived.append(ClientRequest(ProducerId("actor", 0), 0, newer))
    assert server.serve(0.0) == 0 and server.holds
    stream.gone.append(ProducerId("actor", 0))
    assert server.serve(0.1) == 0 and not server.holds


def test_others_are_served_while_one_waits_longest_wait_first() -> None:
    """Three owners that each need all the memory for every request: each gets its players."""
    loads = ManualLoads()
    frozen = FrozenParams(loads, lambda values: values[0], max_bytes=200, background=True)
    for _ in range(2):
        loads.gate.release()
    take_until(frozen, "a", (1, 2))
    assert not frozen.take("b", (3, 4))
    assert frozen.take("a", (1, 2)), "loaded players do not wait for others"
    for _ in range(1000):
        loads.gate.release()
    needs = {"b": (3, 4), "c": (5, 6), "d": (7, 8)}
    served = dict.fromkeys(needs, 0)
    deadline = time.monotonic() + 20
    while min(served.values()) < 5:
        assert time.monotonic() < deadline, served
        frozen.receive()
        for owner, versions in needs.items():
            served[owner] += frozen.take(owner, versions)
        time.sleep(0.0005)
    assert frozen.size_bytes <= 200
    frozen.close()


def test_load_failure_is_reported_only_to_its_requester() -> None:
    loads = ManualLoads()
    for _ in range(9):
        loads.gate.release()
    frozen = FrozenParams(loads, lambda values: values[0], max_bytes=200, background=True)
    assert not frozen.take("a", (13,))
    deadline = time.monotonic() + 20
    while frozen.take("b", (4,)) is False and not frozen._failed:
        frozen.receive()
        assert time.monotonic() < deadline
    with pytest.raises(SnapshotError, match="13"):
        take_until(frozen, "a", (13,))
    take_until(frozen, "b", (4,))
    frozen.close()


@pytest.mark.parametrize(("transport", "merge"), [("local", True), ("shm", False), ("ipc", True)])
def test_server_plays_frozen_players_and_refuses_missing_ones(transport: str, merge: bool, tmp_path: Path) -> None:
    kind = ("none", 2)
    agent, env = AGENTS[kind]
    store = PlayerStore(tmp_path / "players")
    for version in VERSIONS:
        store.freeze(f"frozen-{version}", version, params_of(agent, version))
    address = {"local": f"local:{tmp_path.name}", "shm": f"shm:{tmp_path}/run/i", "ipc": f"ipc://{tmp_path}/i"}[
        transport
    ]
    act = InferenceSpec(env.observation, ArraySpec((2,), "int32"), ArraySpec((2,), "float32"), {}, ())
    server = bind_inference(address, act)
    engine = Engine(
        agent,
        env,
        num_slots=SIZE,
        sizes=[SIZE],
        seed=3,
        frozen=lambda make: FrozenParams(store.load, make, max_bytes=1 << 20, background=True),
    )
    engine.set_params(NEWEST, params_of(agent, NEWEST))
    worker = make_server(InferenceSettings(8, merge, 0.0), [(engine, lambda: (server, NoParams()))])
    worker.setup()
    made: list = []
    thread = threading.Thread(
        target=lambda: made.append(connect_inference(address, act, ProducerId("actor-0", 0), {1: SIZE}, 20.0))
    )
    thread.start()
    while thread.is_alive():
        worker.step()
    client = made[0]
    direct = make_engine(kind)
    place = direct.serve(1, SIZE)
    rng = np.random.default_rng(5)
    for step in range(5):
        wanted = draw_versions(kind, rng)
        client.send(1, make_request(kind, 1, step, wanted))
        reply = receive(client, worker)
        if not merge:
            np.testing.assert_array_equal(
                reply.action, direct.act(place, loaded(direct, make_request(kind, 1, step, wanted))).action
            )
        assert (reply.action[wanted == NOT_PLAYED] == 0).all()
    client.send(1, make_request(kind, 1, 5, np.full((SIZE, 2), 77, np.int64)))
    with pytest.raises(UnknownPolicy, match="no player of version 77"):
        receive(client, worker)
    client.send(1, make_request(kind, 1, 6, LATEST_VERSION))
    receive(client, worker)
    figures = worker.report()[0]
    assert 1 <= figures["inference/frozen_players"] <= 3 and figures["inference/refused"] == 1
    client.close()
    worker.close()


def test_engine_without_frozen_players_refuses_them() -> None:
    engine = make_engine(("none", None), frozen=False)
    for version in (5, -5):
        request = make_request(("none", None), 0, 0, version)
        with pytest.raises(SnapshotError, match=f"{version}"):
            engine.take_frozen("test", engine.frozen_versions(request))


class NoParams:
    def poll(self, policy: int) -> None:
        return None

    def close(self) -> None: ...


def receive(client, worker: InferenceWorker):
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        worker.step()
        try:
            return client.receive(0.01)[1]
        except StreamTimeout:
            continue
    raise AssertionError("no reply")
