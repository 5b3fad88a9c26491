"""Blocks between hosts: the newest frame of each stack, LZ4, and what is refused."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from jsrl.control.run import fitting
from jsrl.errors import CodecError, MissingExtra, UnknownPolicy
from jsrl.experiment import Experiment
from jsrl.transport.base import InferenceSpec, ProducerId, Request
from jsrl.transport.door.keys import make_keys
from jsrl.transport.ends.area import question_schema
from jsrl.transport.ends.packing import PLAIN, Packed, Packer, Packing, RequestPacker
from jsrl.transport.network.reliable import Credit
from jsrl.transport.table import bind_inference, bind_samples, connect_inference, connect_samples
from jsrl.transport.wire.schema import flatten_schema, make_layout
from jsrl.types import ArraySpec, Discrete, EnvSpec, Trajectory, leaves, make_trajectory_spec

ROWS, ENVS = 9, 3


def schema_of(frames: int, dtype: str = "uint8") -> Trajectory:
    env = EnvSpec(ArraySpec((6, 5, frames), dtype), Discrete(3), frames=frames)
    return make_trajectory_spec(env, {"value": ArraySpec((), "float32")}, (), num_rows=ROWS, num_envs=ENVS)


def filled(schema: Trajectory, seed: int = 0) -> np.ndarray:
    """Return a block whose observations are stacks, in episodes of a few rows; half of their starts clear the stack."""
    rng, layout = np.random.default_rng(seed), make_layout(flatten_schema(schema))
    raw = np.zeros(layout.size_bytes, np.uint8)
    trajectory = layout.tree(schema, raw)
    for leaf in leaves(trajectory):
        leaf[...] = rng.integers(0, 2, leaf.shape).astype(leaf.dtype)
    trajectory.is_first[...] = rng.random((ROWS + 1, ENVS)) < 0.3
    seen = rng.integers(0, 4, trajectory.observation[0].shape).astype(trajectory.observation.dtype)
    for t in range(ROWS + 1):
        seen = np.roll(seen, -1, axis=-1)
        seen[trajectory.is_first[t] & (rng.random(ENVS) < 0.5)] = 0
        seen[..., -1] = rng.integers(0, 4, seen[..., -1].shape)
        trajectory.observation[t] = seen
    return raw


@pytest.mark.parametrize(("frames", "dtype"), [(2, "uint8"), (4, "uint8"), (8, "uint8"), (3, "uint8"), (4, "float32")])
@pytest.mark.parametrize("compress", [False, True])
def test_block_arrives_unchanged(frames: int, dtype: str, compress: bool) -> None:
    if compress:
        pytest.importorskip("lz4.block")
    schema = schema_of(frames, dtype)
    packer = Packer(schema, Packing(frames, compress))
    for seed in range(5):
        raw = filled(schema, seed)
        packed = packer.pack(raw)
        assert packed.thin and packed.compressed == compress
        assert packed.data.nbytes < raw.nbytes / (2 if frames > 3 else 1)
        assert packer.unpack(packed).tobytes() == raw.tobytes()


def test_unpackable_blocks_are_sent_unchanged() -> None:
    schema = schema_of(1)
    packer = Packer(schema, Packing(4))
    raw = filled(schema)
    assert packer.pack(raw) == Packed(raw) and packer.unpack(Packed(raw)) is raw
    pytest.importorskip("lz4.block")
    noise = np.random.default_rng(0).integers(0, 256, raw.shape).astype(np.uint8)
    assert not Packer(schema, Packing(None, True)).pack(noise).compressed


def test_mismatched_inputs_are_refused() -> None:
    schema = schema_of(4)
    packer, raw = Packer(schema, Packing(4)), filled(schema)
    packed = packer.pack(raw)
    for found in (packed._replace(thin=False), Packed(raw, thin=True), Packed(raw[:-1]), Packed(raw[:0])):
        with pytest.raises(CodecError):
            packer.unpack(found)
    with pytest.raises(CodecError):
        Packer(schema, PLAIN).unpack(packed)  # it did not request that


def test_compressed_garbage_is_refused() -> None:
    pytest.importorskip("lz4.block")
    schema = schema_of(4)
    packer = Packer(schema, Packing(4, True))
    packed = packer.pack(filled(schema))
    rng = np.random.default_rng(0)
    for _ in range(200):
        wrong = packed.data.copy()
        wrong[rng.integers(0, len(wrong), 8)] = rng.integers(0, 256, 8)
        with contextlib.suppress(CodecError):
            packer.unpack(packed._replace(data=wrong[: rng.integers(1, len(wrong))]))
    with pytest.raises(CodecError):
        packer.unpack(packed._replace(data=packed.data[:5]))


def test_block_in_transit_is_not_sent_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = bind_samples(f"ipc://{tmp_path}/samples", schema_of(4))
    producer: Any = connect_samples(consumer.address, schema_of(4), ProducerId("actor-0", 0), 1, 10.0)
    again: list[int] = []
    monkeypatch.setattr(producer, "_send_block", lambda block: again.append(block.index))
    credit = Credit(0, 0, True)
    with producer._lock:
        for number in range(2):
            producer._blocks[number].index = number
            producer._on_the_way.append(number)
        producer._blocks[0].trackers.append(SimpleNamespace(done=False))
        producer._handle(credit)
        assert again == [1]
        producer._blocks[0].trackers.clear()
        producer._resent_s = 0.0
        producer._handle(credit)
        assert again == [1, 0, 1]
        producer._on_the_way.clear()
    producer.close()
    consumer.close()


@pytest.mark.parametrize("transport", ["tcp", "ipc"])
def test_a_stream_between_hosts_is_packed(transport: str, tmp_path: Path) -> None:
    schema = schema_of(4)
    address = "tcp://127.0.0.1:0" if transport == "tcp" else f"ipc://{tmp_path}/samples"
    keys = make_keys(tmp_path / "keys") if transport == "tcp" else None
    consumer = bind_samples(address, schema, keys=keys, packing=Packing(4))
    producer = connect_samples(consumer.address, schema, ProducerId("actor-0", 0), 1, 10.0, keys=keys)
    assert producer._packer._has_stacks == (transport == "tcp")  # type: ignore[attr-defined]
    for seed in range(6):
        raw = filled(schema, seed)
        block = producer.reserve(10.0)
        for target, leaf in zip(
            leaves(block.trajectory), leaves(make_layout(flatten_schema(schema)).tree(schema, raw)), strict=True
        ):
            target[...] = leaf
        block.commit(0)
        lease = consumer.get(10.0)
        assert lease.trajectory.observation.tobytes() == block.trajectory.observation.tobytes()
        assert np.array_equal(lease.trajectory.reward, block.trajectory.reward)
        consumer.release(lease)
    producer.close()
    consumer.close()


def requests(frames: int, dtype: str, count: int = 40) -> list[tuple[int, np.ndarray, np.ndarray]]:
    """Return (step, observation, is_first) of requests whose steps have a gap and whose stacks once do not continue."""
    rng, found = np.random.default_rng(frames), []
    seen = np.zeros((ENVS, 6, 5, frames), dtype)
    for step in range(count):
        is_first = rng.random(ENVS) < 0.3
        seen = np.roll(seen, -1, axis=-1)
        seen[is_first & (rng.random(ENVS) < 0.5)] = 0
        seen[..., -1] = rng.integers(0, 4, seen[..., -1].shape)
        if step == 25:
            seen = rng.integers(0, 4, seen.shape).astype(dtype)
        found.append((step + (step > 10), seen.copy(), is_first))
    return found


def spec_of(frames: int, dtype: str) -> InferenceSpec:
    number = ArraySpec((), "float32")
    return InferenceSpec(ArraySpec((6, 5, frames), dtype), ArraySpec((), "int32"), number, {}, ())


def whole_bytes(spec: InferenceSpec, found: tuple[int, np.ndarray, np.ndarray], into: np.ndarray) -> None:
    layout = make_layout(flatten_schema(question_schema(spec, ENVS)))
    observation, is_first, *_ = layout.views(into)
    observation[...], is_first[...] = found[1:]


@pytest.mark.parametrize(("frames", "dtype"), [(2, "uint8"), (4, "uint8"), (8, "uint8"), (3, "uint8"), (4, "float32")])
@pytest.mark.parametrize("compress", [False, True])
def test_requests_arrive_unchanged(frames: int, dtype: str, compress: bool) -> None:
    if compress:
        pytest.importorskip("lz4.block")
    spec, packing = spec_of(frames, dtype), Packing(frames, compress)
    size = make_layout(flatten_schema(question_schema(spec, ENVS))).size_bytes
    sender, receiver = RequestPacker(spec, ENVS, packing), RequestPacker(spec, ENVS, packing)
    raw, area, whole = np.zeros(size, np.uint8), np.zeros(size, np.uint8), []
    for one in requests(frames, dtype):
        whole_bytes(spec, one, raw)
        packed = sender.pack(raw, one[0])
        receiver.unpack(packed, one[0], area)
        assert area.tobytes() == raw.tobytes()
        if not packed.thin:
            whole.append(one[0])
        assert packed.data.nbytes < size or not packed.thin or frames == 2  # alignment takes what it saves
    assert whole == [0, 12, 26]  # the first one, the one after the gap, and the one that does not continue


def test_request_that_follows_nothing_is_refused() -> None:
    spec = spec_of(4, "uint8")
    size = make_layout(flatten_schema(question_schema(spec, ENVS))).size_bytes
    sender, raw, area = RequestPacker(spec, ENVS, Packing(4)), np.zeros(size, np.uint8), np.zeros(size, np.uint8)
    sender.pack(raw, 0)
    packed = sender.pack(raw, 1)
    assert packed.thin
    fresh = RequestPacker(spec, ENVS, Packing(4))
    with pytest.raises(CodecError, match="request 1 needs the stacks of request 0"):
        fresh.unpack(packed, 1, area)
    fresh.unpack(Packed(raw), 5, area)
    for found, step in [
        (packed, 7),
        (Packed(raw, thin=True), 6),
        (packed._replace(thin=False), 6),
        (Packed(raw[:0]), 6),
    ]:
        with pytest.raises(CodecError):
            fresh.unpack(found, step, area)
    with pytest.raises(CodecError):
        RequestPacker(spec, ENVS, PLAIN).unpack(packed, 1, area)


@pytest.mark.parametrize("transport", ["tcp", "ipc"])
def test_requests_between_hosts_are_packed(transport: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = "tcp://127.0.0.1:0" if transport == "tcp" else f"ipc://{tmp_path}/inference"
    keys = make_keys(tmp_path / "keys") if transport == "tcp" else None
    spec, sent, pack = spec_of(4, "uint8"), list[bool](), RequestPacker.pack

    def counted(packer: RequestPacker, raw: np.ndarray, step: int) -> Packed:
        packed = pack(packer, raw, step)
        sent.append(packed.thin)
        return packed

    monkeypatch.setattr(RequestPacker, "pack", counted)
    server = bind_inference(address, spec, keys=keys, packing=Packing(4))
    with ThreadPoolExecutor(1) as pool:
        who = ProducerId("actor-0", 0)
        joining = pool.submit(connect_inference, server.address, spec, who, {3: ENVS}, 20.0, keys=keys)
        while not joining.done():
            server.collect(8, 0.05)
        client = joining.result()
    for step, observation, is_first in requests(4, "uint8"):
        client.send(3, Request(observation, is_first, step=step))
        (asked,) = server.collect(8, 20.0)
        assert asked.request.observation.tobytes() == observation.tobytes()
        assert np.array_equal(asked.request.is_first, is_first)
        server.refuse(asked, {})
        with pytest.raises(UnknownPolicy):
            client.receive(20.0)
    assert sum(sent) == (37 if transport == "tcp" else 0)
    client.close()
    server.close()


def test_compression_without_lz4_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lz4.block", None)
    experiment = Experiment(agent=None, placement="inline", transport="zeromq")
    assert fitting(None, experiment) is not None
    with pytest.raises(MissingExtra, match=r"--compress needs the package lz4, .*\[lz4\]"):
        fitting(None, dataclasses.replace(experiment, compress=True))
    with pytest.raises(MissingExtra):
        Packer(schema_of(1), Packing(None, True)).pack(filled(schema_of(1)))
