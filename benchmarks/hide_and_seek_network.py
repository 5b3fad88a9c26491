"""Rows per CPU-second of the network of `hide_and_seek_srl`, in the main game padded to 6 agents.

    python benchmarks/hide_and_seek_network.py [--seconds 3] [--rounds 3] [--out FILE]

acting: forward pass of one row for each of a batch of agents. training: forward and backward pass of 64 sequences of 10 rows.
A row is one agent in one step. One math thread; the CPU time of the whole process counts. The arms alternate, and the best of
the rounds is printed, because other load only slows a run down.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

import jax
import jax.numpy as jnp
import numpy as np

from jsrl.agents.distributions import distribution
from jsrl.experiment.configs.hide_and_seek_srl import NETWORK
from jsrl.games.hide_and_seek.game import ACTIONS
from jsrl.games.hide_and_seek.observations import observation_spec
from jsrl.games.hide_and_seek.settings import settings_of
from jsrl.networks.kernels.products import Precision
from jsrl.networks.model import actor_critic
from jsrl.types import EnvSpec

SPEC = EnvSpec(observation_spec(settings_of("randomwalls", {"max_others": 5})), ACTIONS)
BATCHES, SEQUENCES, LENGTH = (1, 64, 256), 64, 10
PRECISIONS: tuple[Precision, ...] = ("float32", "bfloat16")


def rows(time_steps: int, batch: int) -> tuple[dict[str, jax.Array], jax.Array]:
    """Return random observations [T, B, ...] and is_first [T, B], all false."""
    rng = np.random.default_rng(0)
    made = {}
    for name, leaf in SPEC.observation.items():
        shape = (time_steps, batch, *leaf.shape)
        made[name] = rng.integers(0, 2, shape, "uint8") if leaf.dtype == "uint8" else rng.normal(size=shape)
    return {name: jnp.asarray(x, SPEC.observation[name].dtype) for name, x in made.items()}, jnp.zeros(
        (time_steps, batch), bool
    )


def make_arm(precision: Precision, batch: int, time_steps: int) -> Callable[[], None]:
    """Return a function that acts once (one row each), or computes a gradient once (sequences)."""
    network = actor_critic(dataclasses.replace(NETWORK, precision=precision), SPEC)
    weights, chosen = network.init(jax.random.key(0)), distribution(ACTIONS)
    observation, first = rows(time_steps, batch)
    core = network.initial_core(batch)
    action = jnp.asarray(np.random.default_rng(1).integers(0, ACTIONS.nums, (time_steps, batch, len(ACTIONS.nums))))

    @jax.jit
    def act(weights, core, key):
        outputs, features, core = network.policy(weights[0], observation, first, core)
        return chosen.sample(key, outputs), network.value(weights[1], observation, features), core

    @jax.jit
    def train(weights, core, key):
        def loss(weights):
            outputs, features, _ = network.policy(weights[0], observation, first, core)
            value = network.value(weights[1], observation, features)
            return jnp.mean(jnp.square(value)) - jnp.mean(chosen.log_prob(outputs, action))

        return jax.value_and_grad(loss)(weights)

    call = act if time_steps == 1 else train
    key = jax.random.key(1)
    return lambda: jax.block_until_ready(call(weights, core, key))


def rate(arm: Callable[[], None], count: int, seconds: float) -> float:
    """Return rows per CPU-second of some CPU seconds; `count`: rows of one call."""
    begun, calls = time.process_time(), 0
    while time.process_time() - begun < seconds:
        arm()
        calls += 1
    return count * calls / (time.process_time() - begun)


def main() -> None:
    """Measure every arm, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="CPU seconds of an arm in a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    shapes = {f"acting, batch {batch}": (batch, 1) for batch in BATCHES}
    shapes[f"training, {SEQUENCES} sequences of {LENGTH}"] = (SEQUENCES, LENGTH)
    arms = {
        f"{name}, {precision}": (make_arm(precision, *shape), shape[0] * shape[1])
        for name, shape in shapes.items()
        for precision in PRECISIONS
    }
    for arm, _ in arms.values():
        arm()  # compiles
    found: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(args.rounds):
        for name, (arm, count) in arms.items():
            found[name].append(round(rate(arm, count, args.seconds), 1))
    for name, rates in found.items():
        print(f"{name}: {max(rates):,.0f} rows per CPU-second (rounds: {', '.join(f'{r:,.0f}' for r in rates)})")
    if args.out:
        args.out.write_text(json.dumps({"load": os.getloadavg()[0], "rows_per_cpu_s": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
