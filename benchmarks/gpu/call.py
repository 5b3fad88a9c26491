"""One update call on this machine's device, in variants: `python benchmarks/gpu/call.py sac 256 32 --json FILE`.

Prints milliseconds: wall clock, CPU of all threads, CPU of the calling thread. 256 is the batch, 32 the updates of a call.

  now       as the learner calls it: metrics and params come back as one vector for each type
  block     the same, but only waits: nothing is fetched
  leaves    the params alone, fetched one after the other
  together  the params alone, fetched by one jax.device_get
  ahead     the next call starts before the last one's vectors are fetched
  placed    the batch lies on the device already
  pmap      pmap, the key derived before the call, leaves fetched one after the other
  no-cond   the program without the condition that the ring is filled
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

import jax
import numpy as np

from benchmarks.paired_updates import random_trajectory
from jsrl.experiment.building import build_agent, resolved_agent
from jsrl.graph.schemas import make_schemas
from jsrl.parallel import AXIS_NAME, split_devices
from jsrl.replay.device.agent import on_device
from jsrl.replay.device.ring import add
from jsrl.workers.learner.updaters import OwnUpdate

WORKS = {"sac": "sac_halfcheetah", "dqn": "dqn_pong", "dqn_cartpole": "dqn_cartpole", "ppo": "ppo_cartpole"}
BLOCK = 10  # calls


class Work:
    """An agent with a filled ring (none for PPO), and a batch of the actors."""

    def __init__(self, name: str, batch: int, updates: int, rows: int) -> None:
        e = importlib.import_module(f"jsrl.experiment.configs.{WORKS[name]}").config()
        schemas = make_schemas(e)
        self.agent, spec, columns = build_agent(resolved_agent(e), schemas.env), schemas.trajectory, e.batch_columns
        self._filled: Callable[[Any], Any] = lambda state: state
        if e.buffer is not None:
            made = (spec.reward.shape[0] - 1) * spec.reward.shape[1]
            rows = rows // made * made
            replay = e.buffer.__class__(capacity=rows, min_size=rows // 2, batch_size=batch, updates_per_call=updates)
            ring = on_device(self.agent, replay, spec, frames=schemas.env.frames)
            self.agent, columns = ring.agent, spec.reward.shape[1]
            one = random_trajectory(spec, columns, jax.random.key(3))

            def filled(state: Any) -> Any:
                of_rows = jax.lax.fori_loop(0, rows // made, lambda _, of: add(ring.shape, of, one), state.extra.ring)
                return state._replace(extra=state.extra._replace(ring=of_rows))

            self._filled = jax.jit(filled)
        trajectory = random_trajectory(spec, columns, jax.random.key(1))
        self.batch = jax.tree.map(np.array, split_devices(trajectory, 1))
        self.device, self.key = jax.local_devices()[:1], jax.random.key(2)

    def updater(self) -> tuple[OwnUpdate, list[Any]]:
        """Return a compiled updater, and its state in a list."""
        updater = OwnUpdate(self.agent, self.device, self.key)
        state = updater.place(self._filled(jax.jit(self.agent.init)(jax.random.key(0))))
        updater.compile(state, self.batch)
        return updater, [state]


def variants(work: Work, wanted: list[str]) -> dict[str, Callable[[], None]]:
    """Return the calls by name; those of one program share its state."""
    made: dict[str, Callable[[], None]] = {}
    numbers = iter(range(1 << 31))
    updater, held = work.updater()
    kept: list[Any] = []

    def call(batch: Any = work.batch) -> Any:
        held[0], told, _ = updater(held[0], batch, next(numbers))
        return told

    def ahead() -> None:
        kept.append(call())
        if len(kept) > 1:
            updater.fetch(kept.pop(0))

    def params(fetch: Callable[[Any], Any]) -> None:
        call()
        fetch(held[0].params)

    placed = jax.device_put(work.batch, work.device[0])
    made["now"] = lambda: updater.fetch(call())
    made["block"] = lambda: jax.block_until_ready(call())
    made["leaves"] = lambda: params(lambda tree: jax.tree.map(np.array, tree))
    made["together"] = lambda: params(jax.device_get)
    made["ahead"] = ahead
    made["placed"] = lambda: updater.fetch(call(placed))
    if "pmap" in wanted:
        made["pmap"] = by_pmap(work, numbers)
    if "no-cond" in wanted:
        with mock.patch("jax.lax.cond", lambda condition, yes, no, *operands: yes(*operands)):
            other, state = work.updater()

        def without() -> None:
            state[0], told, _ = other(state[0], work.batch, next(numbers))
            other.fetch(told)

        made["no-cond"] = without
    return {name: made[name] for name in wanted}


def by_pmap(work: Work, numbers: Any) -> Callable[[], None]:
    def on_each(state: Any, batch: Any, key: Any) -> Any:
        state, output = work.agent.update(state, batch, key, axis_name=AXIS_NAME)
        return state, output.metrics

    update = jax.pmap(on_each, AXIS_NAME, in_axes=(None, 0, None), out_axes=None, donate_argnums=0, devices=work.device)
    held = [work.updater()[1][0]]

    def call() -> None:
        held[0], metrics = update(held[0], work.batch, jax.random.fold_in(work.key, next(numbers)))
        jax.tree.map(lambda x: np.array(x.addressable_shards[0].data), (metrics, held[0].params))

    return call


def measure(calls: dict[str, Callable[[], None]], seconds: float) -> dict[str, dict[str, float]]:
    """Return medians of blocks of calls; the variants alternate."""
    for call in calls.values():
        for _ in range(3):
            call()
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in calls}
    until_s = time.perf_counter() + seconds * len(calls)
    while time.perf_counter() < until_s or not all(map(len, found.values())):
        for name, call in calls.items():
            begun = time.perf_counter(), time.process_time(), time.thread_time()
            for _ in range(BLOCK):
                call()
            ended = time.perf_counter(), time.process_time(), time.thread_time()
            found[name].append(tuple(1e3 * (b - a) / BLOCK for a, b in zip(begun, ended, strict=True)))  # type: ignore[arg-type]
    middles = {
        name: [round(statistics.median(each), 4) for each in zip(*rows, strict=True)] for name, rows in found.items()
    }
    return {name: {"wall_ms": w, "cpu_ms": c, "thread_ms": t} for name, (w, c, t) in middles.items()}


def main() -> None:
    names = [line.split()[0] for line in (__doc__ or "").splitlines() if line.startswith("  ")]
    line = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    line.add_argument("work", choices=WORKS)
    line.add_argument("batch", type=int)
    line.add_argument("updates", type=int, help="in one call")
    line.add_argument("--variants", default=",".join(names), help="(default: %(default)s)")
    line.add_argument("--rows", type=int, default=100_000, help="of the ring (default: %(default)s)")
    line.add_argument("--seconds", type=float, default=1.0, help="for each variant (default: %(default)s)")
    line.add_argument("--json", type=Path, help="where to write the figures")
    given = line.parse_args()
    wanted = [name for name in given.variants.split(",") if given.work != "ppo" or name != "no-cond"]
    calls = variants(Work(given.work, given.batch, given.updates, given.rows), wanted)
    found = measure(calls, given.seconds)
    device, load = jax.local_devices()[0].device_kind, os.getloadavg()[0]
    print(f"{given.work}, {given.updates} updates of {given.batch} in a call, {device}, load {load:.1f}")
    for name, figures in found.items():
        wall, cpu, thread = (figures[column] for column in ("wall_ms", "cpu_ms", "thread_ms"))
        print(
            f"  {name:<9} {wall:9.3f} ms  CPU {cpu:8.3f}  thread {thread:8.3f}  {1e3 * given.updates / wall:10,.0f} updates/s"
        )
    if given.json:
        facts = {"work": given.work, "batch": given.batch, "updates": given.updates, "device": device, "load": load}
        flags = {name: os.environ[name] for name in ("XLA_FLAGS", "JAX_DEFAULT_PRNG_IMPL") if name in os.environ}
        given.json.write_text(json.dumps(facts | flags | {"variants": found}) + "\n")


if __name__ == "__main__":
    main()
