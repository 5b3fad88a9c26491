"""Worlds of hide-and-seek set up by hand and played with scripted actions."""

from __future__ import annotations

import math

import numpy as np

from jsrl.envs.config import EnvConfig
from jsrl.games.hide_and_seek.game import HideAndSeek
from jsrl.games.hide_and_seek.layouts import AGENT, CUBE, RAMP, Layout
from jsrl.games.hide_and_seek.settings import settings_of
from jsrl.games.hide_and_seek.walls import outer_walls
from jsrl.games.hide_and_seek.worlds import world_of

STILL = (5, 5, 5, 0, 0)
EAST, NORTH, WEST, SOUTH = math.pi / 2, math.pi, -math.pi / 2, 0.0  # angles of agents that look that way


def scene(
    agents, *, boxes=(), ramps=(), walls=None, hiders=1, sizes=None, sites=(), scenario="empty", **options
) -> HideAndSeek:
    """Return a game of one slot without preparation: agents (x, y[, angle]), boxes and ramps (x, y) by their centres.

    `sites`: of a task: x, y, size.
    """
    options = {"prep_fraction": 0.0, "n_hiders": hiders, "n_seekers": len(agents) - hiders, **options}
    options |= {"n_boxes": len(boxes), "n_ramps": len(ramps), "n_sites": len(sites)}
    settings = settings_of(scenario, options)
    game = HideAndSeek(EnvConfig(f"hide_and_seek:{scenario}"), settings, 1, 0)
    game.reset()
    full = np.array([AGENT] * len(agents) + [RAMP] * len(ramps) + list(sizes or [CUBE] * len(boxes)))
    corners = np.array([at[:2] for at in (*agents, *ramps, *boxes)], float) - full[:, :2] / 2
    stand = outer_walls(settings.grid_size) if walls is None else walls
    layout = Layout(
        tuple(stand), full, corners, np.zeros((len(full), 2), int), len(boxes), 1, np.array(sites).reshape(-1, 3)
    )
    world = world_of(settings, layout, np.random.default_rng(0))
    for i, at in enumerate((*agents, *ramps, *boxes)):
        world.simulation.qpos[4 * i + 3] = at[2] if len(at) > 2 else 0.0
    game.put(0, world)
    game.refresh()
    return game


def act(game: HideAndSeek, *actions):
    """Step a scene once; seats without an action stay still."""
    given = [*actions, *[STILL] * (len(game.spec.seats) - len(actions))]
    return game.step({name: np.array([[a]]) for name, a in zip(game.spec.names, given, strict=True)})


def lift(game: HideAndSeek, body: int, z: float) -> None:
    """Raise a body: z of its corner."""
    game.worlds.worlds[0].simulation.qpos[4 * body + 2] = z
    game.refresh()


def centre(game: HideAndSeek, body: int) -> np.ndarray:
    return game.worlds.centres()[0, body]


def sees(game: HideAndSeek, one: int, other: int) -> bool:
    return bool(game.sight.seen[0, one, other])
