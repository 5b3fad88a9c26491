"""Policy and critics on two devices, against one device and against each batch split over both; arms alternate.

    python benchmarks/split.py --batch 256 8192 --repeats 5

On CPU it makes two fake devices, which share the cores: the ratios then show the cost of the exchange, not the gain of a
second device. Times are wall clock of `calls` calls, each of `--updates` updates; the ratio is of medians.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time

if "--here" not in sys.argv and os.environ.get("JAX_PLATFORMS", "cpu") == "cpu":
    flags = os.environ.get("XLA_FLAGS", "")
    if "device_count" not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count=2"
    os.environ.setdefault("PJRT_NPROC", "8")

import jax
import numpy as np

from jsrl.agents.minibatches import several_updates
from jsrl.agents.random_rows import random_trajectory
from jsrl.agents.sac import SACConfig, sac
from jsrl.experiment.building import compute_in_caller
from jsrl.networks.model import NetworkConfig
from jsrl.parallel import split_devices
from jsrl.types import ArraySpec, Continuous, EnvSpec
from jsrl.workers.learner.split_update import SplitUpdate
from jsrl.workers.learner.updaters import OwnUpdate

SPEC = EnvSpec(ArraySpec((17,), "float32"), Continuous((-1.0,) * 6, (1.0,) * 6), "HalfCheetah's shapes")


class Arm:
    """One way to make the updates: a state, and a call that updates it."""

    def __init__(self, update, batch, *, drain) -> None:
        self.update, self.batch, self._drain = update, batch, drain
        self.state = update.make(jax.random.key(0))
        update.compile(self.state, batch)

    def run(self, calls: int) -> float:
        """Return the seconds of the given number of calls."""
        begin_s = time.perf_counter()
        for number in range(calls):
            self.state, told, _ = self.update(self.state, self.batch, number)
            if not self._drain:  # as a learner does after each call
                self.update.fetch(told)
        if self._drain:
            self.update.saved(self.state)
        return time.perf_counter() - begin_s


def arms(batch_size: int, updates: int, hidden: tuple[int, ...], lead: int) -> dict[str, Arm]:
    """Return the arms, compiled."""
    agent = sac(SACConfig(network=NetworkConfig(hidden=hidden, activation="relu")), SPEC)
    several, key = several_updates(agent, updates), jax.random.key(0)
    rng = np.random.default_rng(0)
    one = random_trajectory(SPEC, rng, num_rows=1, num_envs=batch_size * updates, extras=(), core=(), weighted=False)
    devices = jax.local_devices()
    assert agent.split is not None
    policy, critic = (
        several_updates(agent._replace(update=u), updates).update for u in (agent.split.policy, agent.split.critic)
    )
    split = SplitUpdate(agent, (policy, critic), devices[:2], key, max_lead=lead, updates_per_call=updates)
    made = {
        "single": Arm(OwnUpdate(several, devices[:1], key), split_devices(one, 1), drain=False),
        "split": Arm(split, split_devices(one, 1), drain=True),
    }
    if batch_size % 2 == 0:
        made["data-parallel"] = Arm(OwnUpdate(several, devices[:2], key), split_devices(one, 2), drain=False)
    return made


def main() -> None:
    """Measure and print a line of JSON for each batch size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, nargs="+", default=[256, 8192])
    parser.add_argument("--hidden", type=int, nargs="+", default=[256, 256])
    parser.add_argument("--updates", type=int, default=4, help="updates of one call")
    parser.add_argument("--calls", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--lead", type=int, default=2, help="calls by which either side may be ahead")
    parser.add_argument("--here", action="store_true", help="make no fake devices")
    options = parser.parse_args()
    compute_in_caller()
    if len(jax.local_devices()) < 2:
        sys.exit(f"two devices are needed; found {jax.local_devices()}.")
    for batch_size in options.batch:
        made = arms(batch_size, options.updates, tuple(options.hidden), options.lead)
        taken: dict[str, list[float]] = {name: [] for name in made}
        for arm in made.values():
            arm.run(2)
        for _ in range(options.repeats):
            for name, arm in made.items():
                taken[name].append(arm.run(options.calls))
        rate = {n: options.calls * options.updates / statistics.median(s) for n, s in taken.items()}
        line = {
            "batch": batch_size,
            "device": jax.local_devices()[0].device_kind,
            "updates_per_s": {n: round(r, 2) for n, r in rate.items()},
            "to_single": {n: round(r / rate["single"], 3) for n, r in rate.items()},
            "seconds": {n: [round(x, 4) for x in s] for n, s in taken.items()},
        }
        print(json.dumps(line), flush=True)
        made["split"].update.close()


if __name__ == "__main__":
    main()
