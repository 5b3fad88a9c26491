"""Env steps per second of the particle world and of mpe2, of foraging and of lbforaging, on one core, random discrete actions.

    python benchmarks/particle.py [--num-envs 64] [--rounds 5] [--seconds 1] [--out FILE]

The arms alternate; CPU time is counted, not wall time, so that other processes on the machine matter little. A step is one
of all agents together. mpe2's parallel environments are stepped one after another, through its public API, resets included;
`mpe2, core` is their AEC form without PettingZoo's wrappers. lbforaging's environments are stepped one after another too.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import gymnasium
import numpy as np

from jsrl.envs.config import EnvConfig
from jsrl.envs.make import make_game
from jsrl.games.particle.tasks import TASKS
from jsrl.types import Discrete

DRAWN = 100  # vectors of actions, drawn beforehand


def own_arm(name: str, num_envs: int) -> Callable[[], int]:
    """Return a function that steps jsrl's game once and returns the env steps."""
    game = make_game(EnvConfig(f"particle:{name}" if name in TASKS else f"foraging:{name}"), num_envs, 0)
    rng, count = np.random.default_rng(0), 0
    actions = {}
    for seat in game.spec.seats:
        assert isinstance(seat.action, Discrete)
        actions[seat.name] = rng.integers(0, seat.action.num_actions, (DRAWN, num_envs, 1))
    game.reset()

    def step() -> int:
        nonlocal count
        count += 1
        game.step({seat: drawn[count % DRAWN] for seat, drawn in actions.items()})
        return num_envs

    return step


def mpe2_arm(name: str, num_envs: int) -> Callable[[], int]:
    """Return a function that steps `num_envs` of mpe2's parallel environments once."""
    module = importlib.import_module(f"mpe2.{name}")
    envs = [module.parallel_env() for _ in range(num_envs)]
    rng, count = np.random.default_rng(0), 0
    for seed, env in enumerate(envs):
        env.reset(seed=seed)
    names = envs[0].possible_agents
    actions = rng.integers(0, [envs[0].action_space(n).n for n in names], (DRAWN, num_envs, len(names))).tolist()

    def step() -> int:
        nonlocal count
        count += 1
        for env, given in zip(envs, actions[count % DRAWN], strict=True):
            if env.agents:
                env.step(dict(zip(names, given, strict=True)))
            else:
                env.reset()
        return num_envs

    return step


def core_arm(name: str, num_envs: int) -> Callable[[], int]:
    """Return a function that steps `num_envs` of mpe2's raw AEC environments once and computes all observations."""
    module = importlib.import_module(f"mpe2.{name}")
    envs = [module.raw_env() for _ in range(num_envs)]
    rng, count = np.random.default_rng(0), 0
    for env in envs:
        env.reset(seed=0)
    names = envs[0].possible_agents
    actions = rng.integers(0, [envs[0].action_space(n).n for n in names], (DRAWN, num_envs, len(names))).tolist()

    def step() -> int:
        nonlocal count
        count += 1
        for env, given in zip(envs, actions[count % DRAWN], strict=True):
            if env.truncations[names[0]]:
                env.reset()
                continue
            for action in given:
                env.step(action)
            for agent in names:
                env.observe(agent)
        return num_envs

    return step


def lbforaging_arm(name: str, num_envs: int) -> Callable[[], int]:
    """Return a function that steps `num_envs` of lbforaging's environments once."""
    importlib.import_module("lbforaging")
    envs: list[Any] = [
        gymnasium.make(f"Foraging-{name}-v3", disable_env_checker=True).unwrapped for _ in range(num_envs)
    ]
    rng, count = np.random.default_rng(0), 0
    for seed, env in enumerate(envs):
        env.reset(seed=seed)
    actions = rng.integers(0, 6, (DRAWN, num_envs, len(envs[0].action_space))).tolist()
    over = [False] * num_envs

    def step() -> int:
        nonlocal count
        count += 1
        for i, (env, given) in enumerate(zip(envs, actions[count % DRAWN], strict=True)):
            if over[i]:
                env.reset()
            over[i] = not over[i] and env.step(given)[2]
        return num_envs

    return step


PARTICLE = {"jsrl": own_arm, "mpe2": mpe2_arm, "mpe2, core": core_arm}
FORAGING = {"jsrl": own_arm, "lbforaging": lbforaging_arm}
GAMES = {**dict.fromkeys(TASKS, PARTICLE), **dict.fromkeys(("8x8-2p-2f-coop", "10x10-3p-3f"), FORAGING)}


def measure(step: Callable[[], int], seconds: float) -> float:
    """Return env steps per second of CPU time."""
    begun, steps = time.process_time(), 0
    while (spent := time.process_time() - begun) < seconds:
        steps += step()
    return steps / spent


def main() -> None:
    """Measure every task and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-envs", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="CPU seconds of each arm in each round")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    found: dict[str, dict[str, list[float]]] = {}
    for name, makers in GAMES.items():
        arms = {arm: make(name, args.num_envs) for arm, make in makers.items()}
        rates: dict[str, list[float]] = {arm: [] for arm in arms}
        for _ in range(args.rounds):
            for arm, step in arms.items():
                rates[arm].append(round(measure(step, args.seconds), 1))
        found[name] = rates
        medians = {arm: float(np.median(rate)) for arm, rate in rates.items()}
        text = ", ".join(
            f"{arm} {median:,.0f} (jsrl: {medians['jsrl'] / median:.1f} times)" for arm, median in medians.items()
        )
        print(f"{name}: {text} env steps/s (medians)")
    if args.out:
        args.out.write_text(json.dumps({"num_envs": args.num_envs, "rates": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
