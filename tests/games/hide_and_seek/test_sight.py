"""Visibility: the view cone, obstacles, heights, lidar."""

from __future__ import annotations

import math

import numpy as np
import pytest

from jsrl.envs.check import random_actions
from jsrl.envs.config import EnvConfig
from jsrl.envs.make import make_game
from jsrl.games.hide_and_seek.layouts import LONG_X
from jsrl.games.hide_and_seek.walls import Segment
from tests.games.hide_and_seek.scenes import EAST, NORTH, SOUTH, WEST, lift, scene, sees

mujoco = pytest.importorskip("mujoco")

OPEN = {"walls": [], "restrict_rect": None}
ALL_AROUND = -2.0  # no angle has such a cosine: the cone is a full circle


@pytest.mark.parametrize("far", [0.7, 3.0, 8.0])
def test_cone_reaches_67_degrees_to_both_sides_at_any_distance(far: float) -> None:
    for degrees, seen in ((0, True), (67, True), (-67, True), (68, False), (-68, False), (180, False)):
        bearing = math.radians(degrees)
        other = (3 + far * math.cos(bearing), 3 + far * math.sin(bearing))
        game = scene([(3, 3, EAST), other], **OPEN)
        assert sees(game, 0, 1) == seen, degrees


FACING = [(2, 3, EAST), (5, 3, WEST)]
BETWEEN = {
    "wall": {"walls": [Segment(1, 17, 10, 20)]},
    "cube": {"boxes": [(3.5, 3)]},
    "ramp": {"ramps": [(3.5, 3, WEST)]},  # its tall side faces west
    "agent": {"more": [(3.5, 3, SOUTH)]},
}


@pytest.mark.parametrize("what", BETWEEN)
def test_obstacles_hide_objects_behind_them(what: str) -> None:
    options = {**OPEN, **BETWEEN[what]}
    more = options.pop("more", [])
    game = scene(FACING + more, **options)
    assert not sees(game, 0, 1) and not sees(game, 1, 0)
    game = scene(FACING, **OPEN)
    assert sees(game, 0, 1) and sees(game, 1, 0)


def test_elevated_agents_see_over_walls_and_are_seen() -> None:
    game = scene([(3, 3, EAST), (6.5, 3, WEST)], boxes=[(3, 3)], walls=[Segment(1, 18, 10, 20)], restrict_rect=None)
    assert not sees(game, 0, 1) and not sees(game, 1, 0)
    lift(game, 0, 0.5)
    assert sees(game, 0, 1) and sees(game, 1, 0)


def test_objects_are_seen_and_hide_each_other() -> None:
    game = scene([(2, 3, EAST), (9, 9)], boxes=[(3, 3), (4, 3)], ramps=[(2, 1)], **OPEN)
    ramp, near, far = 2, 3, 4
    assert sees(game, 0, near) and not sees(game, 0, far) and not sees(game, 0, ramp)
    game.sight.cosine = ALL_AROUND
    game.refresh()
    assert sees(game, 0, ramp), "the ramp is outside the cone and does not block anything"


def test_rays_aim_at_the_centres_of_geoms() -> None:
    """The centre of a ramp's geom is the centroid of its mesh, also when it is turned."""
    game = scene([(2, 3, EAST), (9, 9)], boxes=[(3, 3, 1.0)], ramps=[(2, 1, 2.0)], **OPEN)
    world = game.worlds.worlds[0]
    for body, name in enumerate(("agent0", "agent1", "ramp0", "box0")):
        np.testing.assert_allclose(game.sight.aims[0, body], world.simulation.geom(name).xpos, atol=1e-6)


def test_the_cone_is_tested_between_corners() -> None:
    """As in the original: the corner of a long box is 0.675 m further to one side than that of an agent."""
    box = (3, 3 + 1.0)
    for bias in (True, False):
        game = scene([(3, 3, 0.0), (9, 9)], boxes=[box], sizes=[LONG_X], corner_bias=bias, **OPEN)
        edges = []
        for degrees in range(60, 180):
            game.worlds.worlds[0].simulation.qpos[3] = math.radians(degrees)
            game.refresh()
            edges.append(sees(game, 0, 2))
        shift = np.array([-0.675, 0.075]) if bias else np.zeros(2)
        bearing = math.degrees(math.atan2(1.0 + shift[1], shift[0]))
        assert 60 + edges.index(True) == max(60, math.ceil(bearing - 67.5 + 90))
        last = 179 - edges[::-1].index(True)
        assert last == min(179, math.floor(bearing + 67.5 + 90))


def test_lidar_in_an_empty_room() -> None:
    turned = [scene([(3, 3, angle), (1, 1)]).sight.lidar[0, 0] for angle in (SOUTH, EAST, NORTH)]
    for rays in turned:
        assert rays.shape == (30,) and rays[[0, 15]] == pytest.approx(2.85, abs=0.01)
        np.testing.assert_allclose(rays, turned[0], atol=1e-9)
    outside = scene([(3, 3), (30, 30)], **OPEN)
    np.testing.assert_array_equal(outside.sight.lidar, 6.0)
    assert scene([(3, 3), (5, 3)], **OPEN).sight.lidar[0, 0, 0] == pytest.approx(1.85, abs=0.02)


def symmetric(steps: int):
    """Play 3 against 3 at random; return the game. At most one in 1,000 pairs of agents sees in one direction only."""
    game = make_game(EnvConfig("hide_and_seek:randomwalls", kwargs={"n_hiders": 3, "n_seekers": 3}), 4, 0)
    game.sight.cosine = ALL_AROUND
    rng, step = np.random.default_rng(0), game.reset()
    differs, pairs = 0, 0
    for _ in range(steps):
        step = game.step(random_actions(game, step.observation, rng))
        line = game.sight.seen[:, :, :6]
        differs, pairs = differs + int((line != line.transpose(0, 2, 1)).sum()), pairs + line.size
    assert differs <= pairs // 1000
    return game


@pytest.mark.nightly
@pytest.mark.nightly
def test_rays_of_pairs_are_symmetric_in_many_states() -> None:
    symmetric(1_000).close()


def test_rays_of_pairs_are_symmetric_and_equal_to_single_rays() -> None:
    game = symmetric(15)
    wrong = 0
    for slot, world in enumerate(game.worlds.worlds):
        aims = game.sight.aims[slot]
        for agent in range(6):
            for body in range(len(world.layout.sizes)):
                if body == agent:
                    continue
                geom = np.array([-1], np.int32)
                begin = game.worlds.centres()[slot, agent]
                mujoco.mj_ray(world.model, world.simulation, begin, aims[body] - begin, None, 1, agent + 2, geom)
                hit = world.model.geom_bodyid[geom[0]] - 2 == body
                wrong += bool(hit) != bool(game.sight.seen[slot, agent, body])
    assert wrong == 0


def test_rays_are_cast_only_to_bodies_within_the_cone() -> None:
    game = make_game(EnvConfig("hide_and_seek:randomwalls", kwargs={"n_hiders": 3, "n_seekers": 3}), 4, 0)
    rng, step, sight, cast = np.random.default_rng(0), game.reset(), game.sight, []

    def counted(*arguments) -> None:
        cast.append(arguments[-2] - game.settings.n_lidar)
        mujoco.mj_multiRay(*arguments)

    for _ in range(10):
        step = game.step(random_actions(game, step.observation, rng))
        seen, lidar, cone = sight.seen, sight.lidar, sight._cone()
        cast.clear()
        sight._cast = counted
        sight.look()
        inside = cone & game.worlds.present[:, None] & ~np.eye(6, 17, dtype=bool)
        assert cast == inside.sum(axis=2).ravel().tolist()
        sight._cast, limit, sight.cosine = mujoco.mj_multiRay, sight.cosine, ALL_AROUND
        sight.look()
        np.testing.assert_array_equal(seen, sight.seen & (cone | np.eye(6, 17, dtype=bool)))
        np.testing.assert_array_equal(lidar, sight.lidar)
        sight.cosine = limit
    game.close()
