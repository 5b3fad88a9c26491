"""Speed of the off-policy updates: batch x updates per CPU-second, and the share of the matrix-product rate.

    python benchmarks/off_policy.py --agents sac td3 ddpg --batch 256 8192

Observations of 17 and actions of 6 numbers (HalfCheetah), networks of 256 x 256, K updates in one compiled call with batches
gathered from 100,000 rows. One thread; CPU time, so that other load matters less; arms alternate and the best round counts.
The matrix-product rate is measured in the same process, [batch, 256] x [256, 256]. Operations counted are only the products
of the networks' layers, forward and backward.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any, NamedTuple

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")


import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.updates.operations import operations_per_row
from jsrl.agents.base import Agent
from jsrl.agents.ddpg import DDPGConfig, ddpg
from jsrl.agents.sac import SACConfig, sac
from jsrl.agents.td3 import TD3Config, td3
from jsrl.types import ArraySpec, Continuous, EnvSpec, Trajectory

OBSERVATION, ACTION, WIDTH, ROWS = 17, 6, 256, 100_000
SPEC = EnvSpec(ArraySpec((OBSERVATION,), "float32"), Continuous((-1.0,) * ACTION, (1.0,) * ACTION, "rescale"))


class Arm(NamedTuple):
    """One agent at one batch size, compiled: call(state, key) -> state after `updates` updates."""

    name: str
    batch: int
    updates: int
    call: Any
    state: Any
    operations: float
    compile_s: float


def make_agent(name: str) -> Agent:
    """Return the agent with its default options."""
    return {
        "sac": lambda: sac(SACConfig(), SPEC),
        "td3": lambda: td3(TD3Config(), SPEC),
        "ddpg": lambda: ddpg(DDPGConfig(), SPEC),
    }[name]()


def make_rows(rng: np.random.Generator) -> Trajectory:
    """Return `ROWS` windows of one row and its bootstrap row."""

    def draw(*shape: int) -> jax.Array:
        return jnp.asarray(rng.normal(size=(2, ROWS, *shape)).astype(np.float32))

    ones = jnp.ones((2, ROWS))
    return Trajectory(
        observation=draw(OBSERVATION),
        is_first=jnp.zeros((2, ROWS), bool),
        action=jnp.tanh(draw(ACTION)),
        reward=draw(),
        discount=ones,
        acts=ones.astype(jnp.uint8),
        log_prob=ones,
        extras=(),
        version=(),
        core=(),
    )


def make_arm(name: str, batch: int, rows: Trajectory, rows_per_call: int) -> Arm:
    """Compile an agent's updates at a batch size."""
    agent, updates = make_agent(name), max(2, rows_per_call // batch)

    def call(state: Any, key: jax.Array, rows: Trajectory) -> Any:
        def one(state: Any, key: jax.Array) -> tuple[Any, None]:
            drawn = jax.random.randint(key, (batch,), 0, ROWS)
            return agent.update(state, jax.tree.map(lambda x: x[:, drawn], rows), key)[0], None

        return jax.lax.scan(one, state, jax.random.split(key, updates))[0]

    state, begin = jax.tree.map(jnp.copy, agent.init(jax.random.key(0))), time.process_time()
    compiled = jax.jit(call, donate_argnums=0).lower(state, jax.random.key(0), rows).compile()
    compile_s = time.process_time() - begin
    operations = operations_per_row(name, observation=OBSERVATION, action=ACTION, width=WIDTH)
    return Arm(name, batch, updates, compiled, state, operations, compile_s)


def matrix_rate(batch: int, repeats: int = 40) -> float:
    """Return operations per CPU-second of [batch, 256] x [256, 256] products, one after another."""
    x, w = jnp.full((batch, WIDTH), 0.01), jnp.eye(WIDTH)
    call = jax.jit(lambda x, w: jax.lax.scan(lambda x, _: (x @ w, None), x, None, length=repeats)[0])
    jax.block_until_ready(call(x, w))
    best = min(_timed(lambda: call(x, w)) for _ in range(5))
    return 2.0 * repeats * batch * WIDTH**2 / best


def _timed(call: Any) -> float:
    begin = time.process_time()
    jax.block_until_ready(call())
    return time.process_time() - begin


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", nargs="+", default=["sac", "td3", "ddpg"], choices=["sac", "td3", "ddpg"])
    parser.add_argument("--batch", nargs="+", type=int, default=[256, 8192])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows-per-call", type=int, default=25_600, help="batch x updates of one call")
    options = parser.parse_args()

    rows = make_rows(np.random.default_rng(0))
    arms = [make_arm(name, batch, rows, options.rows_per_call) for name in options.agents for batch in options.batch]
    best, key = [float("inf")] * len(arms), jax.random.key(1)
    rates = {batch: 0.0 for batch in options.batch}
    for _ in range(options.rounds):
        rates = {batch: max(rate, matrix_rate(batch)) for batch, rate in rates.items()}
        for i, arm in enumerate(arms):
            begin = time.process_time()
            state = jax.block_until_ready(arm.call(arm.state, key, rows))
            best[i] = min(best[i], time.process_time() - begin)
            arms[i] = arm._replace(state=state)
    peak = max(rates.values())
    print(
        "| agent | batch | batch x updates per CPU-s | ms per update | GFLOP/s | share of matrix-product rate | compile s |"
    )
    print("|---|---|---|---|---|---|---|")
    for arm, seconds in zip(arms, best, strict=True):
        speed = arm.batch * arm.updates / seconds
        print(
            f"| {arm.name} | {arm.batch:,} | {speed:,.0f} | {1e3 * seconds / arm.updates:.2f} | "
            f"{speed * arm.operations / 1e9:.0f} | {speed * arm.operations / peak:.0%} | {arm.compile_s:.1f} |"
        )
    print("matrix products: " + ", ".join(f"batch {b:,} {rate / 1e9:.0f} GFLOP/s" for b, rate in rates.items()))


if __name__ == "__main__":
    main()
