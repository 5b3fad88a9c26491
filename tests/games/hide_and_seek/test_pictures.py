"""Pictures: colours of teams and locked objects, lidar, and films across episodes.

In a separate process: MuJoCo reads MUJOCO_GL when imported, which earlier tests have done already.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("mujoco")

DRAWN = """
import json, sys
import numpy as np
from jsrl.envs.config import EnvConfig
from jsrl.games.hide_and_seek.pictures import Pictures
from jsrl.envs.check import random_actions
from jsrl.envs.rendering import make_rendered
from tests.games.hide_and_seek.scenes import EAST, act, scene

def share(picture, channel):
    rest = np.delete(picture.astype(int), channel, axis=2).max(axis=2)
    return float((picture[..., channel] > rest + 60).mean())

def scenes():
    game = scene([(2.55, 3, EAST), (5, 5)], boxes=[(3, 3)], horizon=100)
    free = game.render()
    act(game, (5, 5, 5, 0, 1))
    locked, rays = game.render(), game.render(lidar=True)
    game.close()
    shown = scene([(2.55, 3, EAST), (5, 5)], boxes=[(3, 3)], horizon=100, show_lidar=True)
    assert (shown.render() != free).any() and (shown.render(lidar=False) == free).all()
    shown.close()
    assert free.shape == (480, 480, 3) and free.dtype == np.uint8
    changed = float((np.abs(rays.astype(int) - locked).max(axis=2) > 20).mean())
    return {"red": share(free, 0), "blue": share(free, 2), "blue, locked": share(locked, 2), "lidar": changed}

def films():
    for scenario in ("empty", "quadrant", "randomwalls"):
        everybody = {"all": ("hider_0", "hider_1", "seeker_0", "seeker_1")}
        env = make_rendered(EnvConfig(f"hide_and_seek:{scenario}", kwargs={"horizon": 2}), 0, everybody)
        rng, step, pictures = np.random.default_rng(0), env.reset(), []
        for _ in range(4):
            pictures.append(env.picture())
            step = env._env.step(random_actions(env._env, step.observation, rng))
        assert step.observation.keys() == {"all"}
        assert all(p.shape == (480, 480, 3) for p in pictures) and (pictures[0] != pictures[3]).any()
        env.close()
    return env.fps

def slope():
    env = make_rendered(EnvConfig("hide_and_seek:quadrant"), 3)
    env.reset()
    edges = env.picture()
    Pictures._add_slopes = lambda *_: None
    without = env.picture()
    env.close()
    return int((edges.astype(int) - without).min(axis=2).clip(0).astype(bool).sum())

try:
    scene([(2, 3), (4, 3)]).render()
except Exception as error:
    print(json.dumps({"missing": str(error)}))
    sys.exit()
print(json.dumps({**scenes(), "fps": films(), "slope": slope()}))
"""


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["egl", "osmesa"])
def test_teams_locks_and_lidar_are_drawn_in_every_scenario(backend: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", DRAWN],
        env={**os.environ, "MUJOCO_GL": backend, "PYOPENGL_PLATFORM": backend},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0 or "Cannot use OSMesa" in ended.stderr or "osmesa" in ended.stderr, ended.stderr
    if ended.returncode:
        pytest.skip(f"no {backend} here")
    seen = json.loads(ended.stdout.splitlines()[-1])
    if "missing" in seen:
        pytest.skip(f"no {backend} here: {seen['missing']}")
    assert seen["red"] > 0.0005 and seen["blue"] > 0.0005
    assert seen["blue, locked"] > seen["blue"] + 0.002, "the box has turned blue"
    assert seen["lidar"] > 0.005 and seen["fps"] == pytest.approx(1 / 0.075)
    assert seen["slope"] > 40, "light edges show which side of a ramp is its slope"
