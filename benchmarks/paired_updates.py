"""One arm of paired.py: the compiled updates of some experiments, kept warm: `python paired_updates.py CHECKOUT`.

Reads a line per block from standard input, `EXPERIMENT UPDATES EXTRA`, makes that many updates on one math thread, and
answers with a line of JSON: CPU microseconds per trained row. EXTRA plants a slowdown: that share of CPU time is burnt.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

RING_ROWS = 50_000


def make_update(name: str) -> tuple[Callable[[], None], int]:
    """Return a call of an experiment's compiled update, and the rows that one call trains on."""
    import importlib

    import jax

    from jsrl.experiment.building import build_agent, resolved_agent
    from jsrl.graph.schemas import make_schemas
    from jsrl.parallel import split_devices
    from jsrl.replay.device.agent import on_device
    from jsrl.workers.learner.updaters import OwnUpdate

    experiment = importlib.import_module(f"jsrl.experiment.configs.{name}").config()
    schemas = make_schemas(experiment)
    agent, spec, rows = build_agent(resolved_agent(experiment), schemas.env), schemas.trajectory, 0
    batch = random_trajectory(spec, experiment.batch_columns, jax.random.key(1))
    if experiment.buffer is not None:
        replay = experiment.buffer.__class__(
            capacity=RING_ROWS, min_size=RING_ROWS // 100, batch_size=experiment.buffer.batch_size, updates_per_call=16
        )
        agent = on_device(agent, replay, spec, frames=schemas.env.frames).agent
        batch = random_trajectory(spec, spec.reward.shape[1], jax.random.key(1))
        rows = 16 * replay.batch_size
    update = OwnUpdate(agent, jax.local_devices()[:1], jax.random.key(2))
    held, given = [update.make(jax.random.key(0))], split_devices(batch, 1)

    def call() -> None:
        held[0], told, _ = update(held[0], given, 0)
        update.fetch(told)  # as the learner does

    fills = RING_ROWS // 100 // batch.reward[1:].size + 2 if rows else 2  # until updates are made and compiled
    for _ in range(fills):
        call()
    return call, rows or batch.reward[1:].size


def random_trajectory(spec: Any, columns: int, key: Any) -> Any:
    """Return a trajectory [T+1, columns, ...] with random numbers; its type allows every action."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    def fill(leaf: Any, axis: int) -> Any:
        shape = (*leaf.shape[:axis], columns, *leaf.shape[axis + 1 :])
        kind = np.dtype(leaf.dtype).kind
        if kind == "f":
            return jax.random.normal(key, shape, leaf.dtype)
        if leaf.dtype == "uint8" and len(shape) > 2:
            return jax.random.randint(key, shape, 0, 256, jnp.int32).astype(jnp.uint8)
        return jnp.zeros(shape, jax.dtypes.canonicalize_dtype(leaf.dtype))

    def rows(tree: Any) -> Any:
        return jax.tree.map(lambda leaf: fill(leaf, 1), tree)

    per_column = {"core": jax.tree.map(lambda leaf: fill(leaf, 0), spec.core), "sampling": spec.sampling}
    made = spec._replace(**{name: rows(getattr(spec, name)) for name in spec._fields if name not in per_column})
    made = made._replace(**per_column)
    ones = jnp.ones_like(made.reward)
    return made._replace(discount=ones, acts=ones.astype(jnp.uint8), log_prob=-ones)


def burn(cpu_s: float) -> None:
    """Use CPU time."""
    end = time.process_time() + cpu_s
    while time.process_time() < end:
        pass


def main() -> None:
    """Answer every line until the input ends."""
    checkout = sys.argv[1]
    sys.path.insert(0, checkout)
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false".strip()
    calls: dict[str, tuple[Callable[[], None], int]] = {}
    for line in sys.stdin:
        name, updates, extra = line.split()
        if name not in calls:
            calls[name] = make_update(name)
        call, rows = calls[name]
        begin = time.process_time()
        for _ in range(int(updates)):
            call()
        used = time.process_time() - begin
        if float(extra):
            burn(used * float(extra))
        us = 1e6 * (time.process_time() - begin) / (int(updates) * rows)
        sys.stdout.write(json.dumps({"us_per_row": us, "cpu_s": used}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
