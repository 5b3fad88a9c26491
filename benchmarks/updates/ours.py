"""jsrl's updates alone on a work of replay, in the format of the other libraries' drivers: `python ours.py JSON`.

The compiled call is the learner's own: it adds a trajectory to the ring on the device, draws windows and makes K updates;
params and metrics are fetched after each, as for publishing. Between windows the rate of matrix products is measured in
the same process, with the same threads: [batch, width] x [width, width], and with the number of rows of an update.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "experiments"), str(ROOT / "benchmarks" / "peers")]

from measuring import Meter, read_request, versions_of
from replay_works import seen

from jsrl.graph.machine import accelerators

SETTINGS = [{"one_thread": True}, {"threads": 2}]
PRODUCTS = 40
NAMES = {"sac": "sac_halfcheetah", "td3": "td3"}


def make_update(request: dict[str, Any]) -> tuple[Callable[[], None], int]:
    """Return a call of the compiled update on a full ring, and the number of trained parameters."""
    import dataclasses

    import jax

    from jsrl.cli.command_line import parse
    from jsrl.cli.experiments import experiments
    from jsrl.envs.config import EnvConfig
    from jsrl.experiment.building import build_agent
    from jsrl.graph.schemas import make_schemas
    from jsrl.parallel import split_devices
    from jsrl.replay.device.agent import on_device
    from jsrl.workers.learner.updaters import OwnUpdate

    experiment = parse(request["options"], experiments()[NAMES[request["algorithm"]]]()).experiment
    assert experiment.buffer is not None
    replay = dataclasses.replace(
        experiment.buffer,
        capacity=request["rows"],
        min_size=request["rows"] // 2,
        batch_size=request["batch"],
        updates_per_call=request["updates_per_call"],
        updates_per_env_step=None,
    )
    agent_config = dataclasses.replace(experiment.agent, learning_rate=request["learning_rate"])
    experiment = dataclasses.replace(
        experiment, env=EnvConfig(request["env"]), replay=replay, agent=agent_config, placement="serial"
    )
    schemas = make_schemas(experiment)
    agent = build_agent(experiment.agent, schemas.env)
    combined = on_device(agent, replay, schemas.trajectory, frames=schemas.env.frames)
    state = jax.jit(combined.agent.init)(jax.random.key(0))
    learned = state.learner_params
    trained = (state.params.weights.network, learned.online if request["algorithm"] == "sac" else learned.critics)
    parameters = sum(leaf.size for leaf in jax.tree.leaves(trained))
    state = fill(combined.shape, state, schemas.trajectory, request["rows"])
    update = OwnUpdate(combined.agent, jax.local_devices()[:1], jax.random.key(1))
    batch = split_devices(random_trajectory(schemas.trajectory, jax.random.key(2)), 1)
    held = [update.place(state)]

    def call() -> None:
        held[0], told, _ = update(held[0], batch, 0)
        update.fetch(told)

    return call, parameters


def random_trajectory(spec: Any, key: Any) -> Any:
    """Return a trajectory of one long episode with random numbers."""
    import jax
    import jax.numpy as jnp

    empty = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jax.dtypes.canonicalize_dtype(leaf.dtype)), spec)
    of_observation, of_action, of_reward = jax.random.split(key, 3)
    return empty._replace(
        observation=jax.random.normal(of_observation, empty.observation.shape),
        action=jnp.tanh(jax.random.normal(of_action, empty.action.shape)),
        reward=jax.random.normal(of_reward, empty.reward.shape),
        discount=jnp.ones_like(empty.discount),
        acts=jnp.ones_like(empty.acts),
    )


def fill(shape: Any, state: Any, spec: Any, rows: int) -> Any:
    """Return the state with random rows in its whole ring."""
    import jax

    from jsrl.replay.device.ring import add

    num_rows, num_envs = spec.reward.shape[0] - 1, spec.reward.shape[1]

    def body(number: Any, ring: Any) -> Any:
        return add(shape, ring, random_trajectory(spec, jax.random.fold_in(jax.random.key(3), number)))

    ring = jax.jit(lambda ring: jax.lax.fori_loop(0, rows // (num_rows * num_envs), body, ring))(state.extra.ring)
    return state._replace(extra=state.extra._replace(ring=ring))


def matrix_rate(rows: int, width: int) -> Callable[[], float]:
    """Return a measurement of operations per CPU-second of [rows, width] x [width, width] products."""
    import jax
    import jax.numpy as jnp

    x, weights = jnp.full((rows, width), 0.01), jnp.eye(width)
    call = jax.jit(lambda x, w: jax.lax.scan(lambda x, _: (x @ w, None), x, None, length=PRODUCTS)[0])
    jax.block_until_ready(call(x, weights))

    def measure() -> float:
        best = float("inf")
        for _ in range(5):
            begin = time.process_time()
            jax.block_until_ready(call(x, weights))
            best = min(best, time.process_time() - begin)
        return 2.0 * PRODUCTS * rows * width**2 / best

    return measure


def main() -> None:
    """Update until the window is full, and report."""
    request = read_request()
    meter = Meter(seconds=request["seconds"], warm_up_s=request["warm_up_s"])
    if request["setting"].get("one_thread"):
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false".strip()
    import jax

    from benchmarks.updates.operations import operations_per_row

    call, parameters = make_update(request)
    measures = [matrix_rate(rows, request["width"]) for rows in sorted({request["batch"], min(request["batch"], 512)})]
    rates, made, full = [measure() for measure in measures], 0, False
    while not full:
        call()
        made += request["updates_per_call"]
        full = meter.update(made)
    rates = [max(rate, measure()) for rate, measure in zip(rates, measures, strict=True)]
    operations = request["batch"] * operations_per_row(
        request["algorithm"], observation=17, action=6, width=request["width"]
    )
    meter.report(
        "jsrl",
        seen(request, parameters=parameters),
        request["setting"],
        versions_of("jax", "numpy"),
        backend=jax.default_backend(),
        operations_per_update=operations,
        matrix_operations_per_cpu_s=max(rates),
    )


if __name__ == "__main__":
    if sys.argv[1] == "--settings":
        print(json.dumps(SETTINGS[:1] if accelerators() else SETTINGS))  # threads do nothing for a GPU
    else:
        main()
