"""Decisions per second of hide-and-seek against bare MuJoCo physics of the same worlds, random actions.

    python benchmarks/hide_and_seek.py [--num-envs 16] [--rounds 5] [--decisions 400] [--out FILE]

A decision is an env step of one world: 15 steps of physics. The arms alternate in one process; CPU time is counted, not wall
time, so that other processes matter less. `game` is all of an env step, including resets and the thread that builds worlds;
`inside` is the part of it that MuJoCo takes for the 15 steps of physics, with grabbed and locked objects, and the rest is the
game's own cost outside physics; `bare` only steps the physics of worlds that were built beforehand, restarted after every
horizon.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import mujoco
import numpy as np

from jsrl.envs.config import EnvConfig
from jsrl.envs.make import make_game
from jsrl.games.hide_and_seek.game import HideAndSeek
from jsrl.games.hide_and_seek.settings import SUBSTEPS, settings_of
from jsrl.games.hide_and_seek.worlds import build_world

ALONE = {"n_hiders": 1, "n_seekers": 1}
CASES = {  # name -> scenario, options, the budget of a decision in microseconds
    "empty 1v1": ("empty", ALONE, 300),
    "quadrant 1v1, no objects": ("quadrant", {**ALONE, "n_boxes": 0, "n_ramps": 0}, 300),
    "quadrant 2v2": ("quadrant", {}, 800),
    "main 2v2": ("randomwalls", {}, 1200),
    "main 3v3, 9 boxes": ("randomwalls", {"n_hiders": 3, "n_seekers": 3, "n_boxes": 9}, 1600),
}
NUMS, DRAWN = (11, 11, 11, 2, 2), 100  # choices, and vectors of actions, drawn beforehand


def bare_arm(scenario: str, options: dict, num_envs: int) -> Callable[[], None]:
    """Return a function that steps the physics of some worlds once."""
    settings, rng = settings_of(scenario, options), np.random.default_rng(0)
    worlds = [build_world(settings, seed, 0) for seed in range(num_envs)]
    control = (rng.integers(0, 11, (DRAWN, num_envs, settings.n_agents * 3)) - 5) * 0.18
    begun = [world.simulation.qpos.copy() for world in worlds]
    count = 0

    def step() -> None:
        nonlocal count
        if count % settings.horizon == 0:  # as a game does; otherwise agents run away and touch less
            for world, start in zip(worlds, begun, strict=True):
                mujoco.mj_resetData(world.model, world.simulation)
                world.simulation.qpos[:] = start
        for world, given in zip(worlds, control[count % DRAWN], strict=True):
            world.simulation.ctrl[:] = given
            mujoco.mj_step(world.model, world.simulation, SUBSTEPS)
        count += 1

    return step


def game_arm(scenario: str, options: dict, num_envs: int) -> tuple[Callable[[], None], Callable[[], float]]:
    """Return a function that steps the game once, and one that returns the CPU seconds of its physics so far."""
    settings, rng = settings_of(scenario, options), np.random.default_rng(0)
    sizes = {"hider": settings.n_hiders, "seeker": settings.n_seekers}
    groups = {name: tuple(f"{name}_{i}" for i in range(size)) for name, size in sizes.items()}
    game = make_game(EnvConfig(f"hide_and_seek:{scenario}", kwargs=options), num_envs, 0, groups=groups)
    assert isinstance(game, HideAndSeek)
    worlds: Any = game.worlds
    drawn = {name: rng.integers(0, NUMS, (DRAWN, num_envs, size, 5)) for name, size in sizes.items()}
    game.reset()
    count, inside, advance = 0, 0.0, worlds._advance

    def timed(*arguments: object) -> None:
        nonlocal inside
        begun = time.thread_time()
        advance(*arguments)
        inside += time.thread_time() - begun

    def step() -> None:
        nonlocal count
        game.step({name: actions[count % DRAWN] for name, actions in drawn.items()})
        count += 1

    worlds._advance = timed
    return step, lambda: inside


def measure(step: Callable[[], None], steps: int) -> float:
    """Return the CPU seconds of a step, of all threads."""
    begun = time.process_time()
    for _ in range(steps):
        step()
    return (time.process_time() - begun) / steps


def main() -> None:
    """Measure every case and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-envs", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--decisions", type=int, default=400, help="of each arm in each round")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    steps, found = max(1, args.decisions // args.num_envs), {}
    for name, (scenario, options, budget) in CASES.items():
        bare_step = bare_arm(scenario, options, args.num_envs)
        game_step, physics = game_arm(scenario, options, args.num_envs)
        costs: dict[str, list[float]] = {"bare": [], "game": [], "inside": []}
        for _ in range(args.rounds):
            before = physics()
            seconds = [measure(bare_step, steps), measure(game_step, steps), (physics() - before) / steps]
            for arm, cost in zip(costs, seconds, strict=True):
                costs[arm].append(round(1e6 * cost / args.num_envs, 1))
        bare, game, inside = (float(np.median(costs[arm])) for arm in costs)
        agents = settings_of(scenario, options).n_agents
        found[name] = {"microseconds": costs, "budget": budget}
        print(
            f"{name}: bare physics {bare:,.0f} us, game {game:,.0f} us a decision (medians; budget {budget:,}), of which "
            f"{inside:,.0f} physics and {game - inside:,.0f} outside: "
            f"{1e6 / game:,.0f} decisions/s, {agents * 1e6 / game:,.0f} agent-steps/s"
        )
    if args.out:
        args.out.write_text(json.dumps({"num_envs": args.num_envs, "found": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
