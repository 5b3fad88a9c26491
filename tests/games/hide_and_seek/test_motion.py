"""Motion of agents, boxes and ramps, compared with the original."""

from __future__ import annotations

import numpy as np
import pytest

from jsrl.games.hide_and_seek.layouts import CUBE, LONG_Y
from tests.games.hide_and_seek.scenes import EAST, SOUTH, act, centre, scene

pytest.importorskip("mujoco")

OPEN = {"walls": [], "restrict_rect": None, "horizon": 1000}


def run(game, action, steps: int) -> np.ndarray:
    """Return the positions of body 0 after each of some equal actions, [steps, 4]."""
    seen = []
    for _ in range(steps):
        act(game, action)
        seen.append(game.worlds.position[0, 0].copy())
    return np.array(seen)


def test_full_force_from_rest() -> None:
    game = scene([(3, 3), (20, 20)], **OPEN)
    start = game.worlds.position[0, 0].copy()
    moved = run(game, (10, 5, 5, 0, 0), 5) - start
    np.testing.assert_allclose(moved[:, 0], [0.185, 0.586, 1.088, 1.643, 2.220], rtol=0.05)
    assert np.abs(moved[:, [1, 3]]).max() < 1e-9
    run(game, (10, 5, 5, 0, 0), 10)
    assert game.worlds.velocity[0, 0, 0] == pytest.approx(8.0, abs=0.2)


@pytest.mark.parametrize(("level", "speed"), [(5, 0.0), (6, 0.8), (7, 2.6), (8, 4.4), (9, 6.2), (3, -2.6)])
def test_steady_speeds_of_the_levels(level: int, speed: float) -> None:
    game = scene([(3, 3), (30, 30)], **OPEN)
    run(game, (5, level, 5, 0, 0), 20)
    assert game.worlds.velocity[0, 0, 1] == pytest.approx(speed, abs=0.15)


def test_forces_are_in_the_frame_of_the_world() -> None:
    looking_south, looking_east = (scene([(3, 3, angle), (20, 20)], **OPEN) for angle in (SOUTH, EAST))
    one, two = (run(game, (10, 7, 5, 0, 0), 4)[-1] for game in (looking_south, looking_east))
    np.testing.assert_allclose(one[:2], two[:2], atol=0.02)


def test_torque_turns() -> None:
    game = scene([(3, 3), (20, 20)], **OPEN)
    angles = np.diff(run(game, (5, 5, 10, 0, 0), 4)[:, 3], prepend=0.0)
    np.testing.assert_allclose(angles, 0.67, atol=0.02)
    assert run(scene([(3, 3), (20, 20)], **OPEN), (5, 5, 5, 0, 0), 3)[-1, 3] == 0.0


def test_agents_run_up_a_locked_ramp() -> None:
    """From the slope's side (north) the agent gets high, from the vertical face not; a free ramp is pushed away."""
    highest = {}
    for name, begin, force, locked in (
        ("slope", (3, 7.0), 0, True),
        ("face", (3, 1.0), 10, True),
        ("free", (3, 7.0), 0, False),
    ):
        game = scene([begin, (30, 30)], ramps=[(3, 4)], **OPEN)
        game.worlds.freeze(0, 2, locked)
        highest[name] = run(game, (5, force, 5, 0, 0), 12)[:, 2].max()
        if not locked:
            assert centre(game, 2)[1] < 2.5
    assert 0.45 <= highest["slope"] <= 0.7 and highest["face"] < 0.02 and highest["free"] < 0.35


def test_locked_box_does_not_move() -> None:
    game = scene([(1, 3), (30, 30)], boxes=[(3, 3)], **OPEN)
    game.worlds.freeze(0, 2, True)
    assert run(game, (10, 5, 5, 0, 0), 40)[:, 2].max() < 0.02
    assert abs(centre(game, 2) - [3, 3, 0.25]).max() < 0.005
    game.worlds.freeze(0, 2, False)
    begin = centre(game, 2).copy()
    run(game, (10, 5, 5, 0, 0), 10)
    assert centre(game, 2)[0] - begin[0] == pytest.approx(3.9, abs=0.6)


def test_masses_and_shapes() -> None:
    game = scene([(1, 3), (5, 5)], boxes=[(3, 3), (3, 1.5)], ramps=[(1, 1)], sizes=[LONG_Y, CUBE])
    model = game.worlds.worlds[0].model
    assert model.body_mass[2:7].tolist() == pytest.approx([1.0] * 5)
    box = model.geom("box0").size
    np.testing.assert_allclose(box, [0.075, 0.825, 0.25])
    vertices = model.mesh_vert @ _rotation(model.geom("ramp0").quat).T + model.geom("ramp0").pos
    wanted = {(x, y, z) for x in (-0.25, 0.25) for y, z in ((-0.25, -0.25), (0.25, -0.25), (-0.25, 0.25))}
    assert {tuple(np.round(v, 5)) for v in vertices.tolist()} == wanted
    np.testing.assert_allclose(model.geom("ramp0").pos, [0, -1 / 12, -1 / 12], atol=1e-6)


@pytest.mark.parametrize(("scenario", "wall"), [("quadrant", 0.01), ("randomwalls", 1.0)])
def test_friction_and_damping(scenario: str, wall: float) -> None:
    game = scene([(1, 3), (5, 5)], boxes=[(3, 3)], ramps=[(1, 1)], scenario=scenario)
    model = game.worlds.worlds[0].model
    sliding = model.geom_friction[
        :, 0
    ].tolist()  # of the floor, two agents with two arms each, a ramp, a box, four walls
    assert sliding == [0.2] + [0.01] * 6 + [0.01, 0.2] + [wall] * 4
    damping = [[10, 10, 1, 10], [10, 10, 1, 10], [0.1] * 4, [0.01] * 4]
    np.testing.assert_array_equal(model.dof_damping.reshape(4, 4), damping)


def _rotation(quaternion: np.ndarray) -> np.ndarray:
    import mujoco

    matrix = np.zeros(9)
    mujoco.mju_quat2Mat(matrix, quaternion)
    return matrix.reshape(3, 3)


@pytest.mark.slow
def test_agents_do_not_cross_outer_walls() -> None:
    game = scene([(3, 3), (2, 2)], horizon=10_000)
    rng, low, high = np.random.default_rng(0), 6.0, 0.0
    for _ in range(5000):
        act(game, *rng.integers(0, (11, 11, 11, 2, 2), (2, 5)))
        spot = game.worlds.centres()[0, :2, :2]
        low, high = min(low, spot.min()), max(high, spot.max())
    assert low >= 0.20 and high <= 6.0 - 0.20
