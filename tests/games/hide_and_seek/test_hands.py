"""Holding and locking boxes and ramps."""

from __future__ import annotations

import numpy as np
import pytest

from tests.games.hide_and_seek.scenes import EAST, STILL, WEST, act, centre, scene

pytest.importorskip("mujoco")

PULL, LOCK, HOLD_LOCK = (5, 5, 5, 1, 0), (5, 5, 5, 0, 1), (5, 5, 5, 1, 1)
OPEN = {"walls": [], "restrict_rect": None, "horizon": 1000}
FAR = (30, 30)


def beside(gap: float, angle: float = EAST) -> tuple[float, float, float]:
    """Return the position of an agent west of a cube at (3, 3), its centre `gap` from the cube."""
    return 3 - 0.25 - gap, 3, angle


def test_agent_grabs_and_releases_a_cube() -> None:
    game = scene([beside(0.2), FAR], boxes=[(3, 3)], **OPEN)
    act(game, PULL)
    assert game.hands.held[0, 0] == 2
    apart = centre(game, 2) - centre(game, 0)
    for _ in range(10):
        act(game, (1, 5, 5, 1, 0))
        assert game.hands.held[0, 0] == 2
        drift = np.linalg.norm(centre(game, 2) - centre(game, 0) - apart)
        assert drift < 0.05
    assert centre(game, 2)[0] < 1.5, "the cube was dragged along"
    act(game, STILL)
    assert game.hands.held[0, 0] == -1 and not game.worlds.worlds[0].simulation.eq_active[0]


@pytest.mark.parametrize(("start", "held"), [(beside(0.24), 2), (beside(0.27), -1), (beside(0.2, WEST), -1)])
def test_grabbing_needs_reach_and_sight(start, held: int) -> None:
    game = scene([start, FAR], boxes=[(3, 3)], **OPEN)
    act(game, PULL)
    assert game.hands.held[0, 0] == held


def test_two_agents_hold_one_cube_and_each_grabs_the_nearest() -> None:
    game = scene([beside(0.2), (3.45, 3, WEST), FAR], boxes=[(3, 3)], hiders=2, **OPEN)
    act(game, PULL, PULL)
    assert game.hands.held[0].tolist() == [3, 3, -1]
    game = scene([(3, 3, EAST), FAR], boxes=[(3.4, 2.58), (3.3, 3.44)], **OPEN)
    reach = game.hands.distance()[0, 0]
    act(game, PULL)
    assert (reach < 0.25).all() and game.hands.held[0, 0] == 3


def test_rotated_cube_keeps_its_angle_when_grabbed() -> None:
    game = scene([beside(0.2), FAR], boxes=[(3, 3, 0.6)], **OPEN)
    act(game, PULL)
    for _ in range(6):
        act(game, (1, 5, 5, 1, 0))
    assert game.worlds.position[0, 2, 3] - game.worlds.position[0, 0, 3] == pytest.approx(0.6 - EAST, abs=0.1)


def locked(game) -> bool:
    return bool(game.hands.locked[0, 0])


def test_teams_lock_and_unlock_their_own_objects() -> None:
    """Hiders 0 and 1 west and east of the cube, a seeker south of it."""
    game = scene([beside(0.2), (3.45, 3, WEST), (3, 2.55, np.pi)], boxes=[(3, 3)], hiders=2, **OPEN)
    act(game, LOCK, LOCK, LOCK)
    assert locked(game) and game.hands.team[game.hands.owner[0, 0]] in (0, 1)
    game = scene([beside(0.2), (30, 29), (3, 2.55, np.pi)], boxes=[(3, 3)], hiders=2, **OPEN)
    act(game, LOCK, STILL, STILL)
    assert locked(game) and game.hands.owner[0, 0] == 0
    for seeker in (STILL, LOCK):
        act(game, LOCK, STILL, seeker)
        assert locked(game)
    act(game, STILL, STILL, LOCK)
    assert not locked(game)


def test_teammate_unlocks_and_a_lock_persists_without_agents() -> None:
    game = scene([beside(0.2), (3.45, 3, WEST), FAR], boxes=[(3, 3)], hiders=2, **OPEN)
    act(game, LOCK, LOCK)
    begin = centre(game, 3).copy()
    for _ in range(10):
        act(game, (10, 5, 5, 0, 1), LOCK)
    assert locked(game) and np.abs(centre(game, 3) - begin).max() < 0.005
    act(game, LOCK, STILL)
    assert not locked(game)
    game = scene([beside(0.2), FAR], boxes=[(3, 3)], **OPEN)
    act(game, LOCK)
    for _ in range(6):
        act(game, (0, 5, 5, 0, 1))
    for _ in range(3):
        act(game, STILL)
    assert locked(game) and game.hands.distance()[0, 0, 0] > 1.0


def test_team_of_the_last_lock_may_block_a_new_lock() -> None:
    game = scene([beside(0.2), (3.45, 3, WEST)], boxes=[(3, 3)], **OPEN)
    act(game, STILL, LOCK)
    assert not locked(game), "an object that was never locked belongs to the hiders"
    act(game, LOCK, STILL)
    assert locked(game) and game.hands.owner[0, 0] == 0
    other = scene([(30, 30), (3.45, 3, WEST)], boxes=[(3, 3)], **OPEN)
    act(other, STILL, LOCK)
    assert locked(other) and other.hands.owner[0, 0] == 1
    act(other, STILL, STILL)
    assert not locked(other)
    swapped = scene([beside(0.2), (3.45, 3, WEST)], boxes=[(3, 3)], **OPEN)
    swapped.hands.owner[0, 0] = 1
    act(swapped, LOCK, STILL)
    assert not locked(swapped)
    act(swapped, STILL, LOCK)
    assert locked(swapped) and swapped.hands.owner[0, 0] == 1


def test_any_agent_that_locks_at_once_may_become_the_owner() -> None:
    owners = set()
    for seed in range(12):
        game = scene([beside(0.2), (3.45, 3, WEST)], boxes=[(3, 3)], **OPEN)
        game.worlds.worlds[0] = game.worlds.worlds[0]._replace(rng=np.random.default_rng(seed))
        act(game, LOCK, LOCK)
        owners.add(int(game.hands.owner[0, 0]))
    assert owners == {0, 1}


@pytest.mark.parametrize(("gap", "near"), [(0.24, True), (0.27, False)])
def test_locking_needs_reach(gap: float, near: bool) -> None:
    game = scene([beside(gap), FAR], boxes=[(3, 3)], **OPEN)
    act(game, LOCK)
    assert locked(game) == near


def test_locking_needs_sight() -> None:
    game = scene([beside(0.2, WEST), FAR], boxes=[(3, 3)], **OPEN)
    act(game, LOCK)
    assert not locked(game)
    game.worlds.freeze(0, 2, True)
    game.hands.locked[0, 0] = True
    act(game, STILL)
    assert locked(game)


def test_locks_as_agents_see_them() -> None:
    game = scene([beside(0.2), (3.45, 3, WEST), FAR], boxes=[(3, 3)], hiders=2, **OPEN)
    step = game.refresh()
    assert not any(step.observation[name]["box_obs"][0, 0, 0, -3:].any() for name in game.spec.names)
    step = act(game, LOCK, LOCK, LOCK)
    owner = int(game.hands.owner[0, 0])
    shown = [step.observation[name]["box_obs"][0, 0, 0, -3:].tolist() for name in game.spec.names]
    assert [row[2] for row in shown] == [1, 1, 1] and [row[1] for row in shown] == [1, 1, 0]
    assert [row[0] for row in shown] == [float(i == owner) for i in range(3)]


def test_ramps_of_the_quadrant_cannot_be_locked() -> None:
    for scenario, held in (("quadrant", False), ("empty", True)):
        game = scene([beside(0.2), FAR], ramps=[(3, 3)], scenario=scenario, **{**OPEN, "walls": []})
        step = act(game, HOLD_LOCK)
        assert locked(game) == held and game.hands.held[0, 0] == 2
        assert step.observation["hider_0"]["ramp_obs"].shape[-1] == (12 if held else 9)
