"""Tasks for one agent: worlds, and rewards of scripted agents."""

from __future__ import annotations

import numpy as np
import pytest

from jsrl.envs.check import check_env
from jsrl.envs.config import EnvConfig
from jsrl.envs.make import make_game
from jsrl.errors import ConfigError
from jsrl.games.hide_and_seek.game import TASKS
from jsrl.games.hide_and_seek.layouts import CUBE, LONG_X, draw_layout, rooms_of
from jsrl.games.hide_and_seek.settings import settings_of
from jsrl.games.hide_and_seek.tasks import rays_of
from tests.games.hide_and_seek.scenes import EAST, act, centre, scene
from tests.marks import marked

mujoco = pytest.importorskip("mujoco")

LOCK, EAST_AND_LOCK, WEST_AND_LOCK = (5, 5, 5, 0, 1), (8, 5, 5, 0, 1), (2, 5, 5, 0, 1)


def distance(game) -> float:
    return float(np.linalg.norm((centre(game, 0) - centre(game, 1))[:2]))


def task(*boxes):
    return scene([(2, 3, EAST)], boxes=boxes, scenario="lock_and_return", horizon=40)


def test_agent_earns_each_metre_to_the_box_its_lock_and_then_each_metre_back() -> None:
    game, locked = task((3.5, 3)), []
    for action in [EAST_AND_LOCK] * 6 + [WEST_AND_LOCK] * 4:
        to_box, to_start = distance(game), centre(game, 0)[0] - 2
        reward = float(act(game, action).reward[0, 0])
        closer = to_start - (centre(game, 0)[0] - 2) if any(locked) else to_box - distance(game)
        locked.append(bool(game.hands.locked.any()))
        assert reward == pytest.approx(0.5 * closer + 5 * (locked == [False] * (len(locked) - 1) + [True]), abs=1e-5)
    assert locked[0] is False and locked[-1] is True


def test_unlocking_costs_what_the_lock_earned_and_the_start_counts_once_every_box_is_locked() -> None:
    both, one = task((2.45, 3), (2, 4.5)), task((2.45, 3))
    assert float(act(both, LOCK).reward[0, 0]) == pytest.approx(5.0, abs=0.02)
    assert float(act(both).reward[0, 0]) == pytest.approx(-5.0, abs=0.02)  # near, and not locking it
    assert [float(act(one, LOCK).reward[0, 0]) for _ in range(3)] == pytest.approx([6.0, 1.0, 1.0], abs=0.02)


@pytest.mark.parametrize("name", marked(TASKS, slow=TASKS.keys() - {"counting"}))
def test_passes_the_environment_contract_with_rows_in_common(name: str) -> None:
    config = EnvConfig(
        f"hide_and_seek:{name}", kwargs={"horizon": 12, "rows": [8, 3, 4]}, episode_metrics=("task_score",)
    )
    check_env(config, steps=40)
    game = make_game(config, 4, 0)
    shapes = {key: spec.shape for key, spec in game.spec.seats[0].observation.items()}
    assert game.spec.names == ("hider_0",) and shapes == {
        **{"observation_self": (10,), "agent_qpos_qvel": (1, 10), "box_obs": (8, 15), "ramp_obs": (3, 15)},
        **{"site_obs": (4, 3), "lidar": (30,), "mask_as_obs": (4,), "mask_aa_obs": (1,), "mask_aa_obs_spoof": (1,)},
        **{"mask_ab_obs": (8,), "mask_ab_obs_spoof": (8,), "mask_ar_obs": (3,), "mask_ar_obs_spoof": (3,)},
    }
    step = game.reset()
    seen, needed = step.observation["hider_0"], game.settings
    exist = [int(seen[f"mask_a{kind}"].sum(axis=-1).max()) for kind in ("a_obs_spoof", "b_obs_spoof", "r_obs_spoof")]
    assert exist == [0, needed.max_boxes, needed.n_ramps]
    for _ in range(12):
        step = game.step({"hider_0": np.full((4, 1, 5), (5, 5, 5, 0, 0))})
    assert len(step.episodes) == 4 and all(0 <= episode.metrics["task_score"] <= 6 for episode in step.episodes)
    game.close()


def drawn(name: str, number: int = 60):
    settings, rng = settings_of(name, {}), np.random.default_rng(0)
    return [draw_layout(settings, rng) for _ in range(number)]


def test_each_room_of_sequential_lock_has_a_ramp_and_no_door() -> None:
    for layout in drawn("sequential_lock", 20):
        taken = np.zeros((30, 30), bool)
        for wall in layout.walls:
            along = slice(wall.start, wall.end + 1)
            taken[(along, wall.at) if wall.axis == 0 else (wall.at, along)] = True
        rooms = rooms_of(taken)
        ramps = [i for cell in layout.cells[1:4] for i, room in enumerate(rooms) if (room == cell).all(axis=1).any()]
        assert len(rooms) == 3 and sorted(ramps) == [0, 1, 2] and layout.boxes == 4


def test_sites_stand_in_the_middle_and_apart_from_objects() -> None:
    for name, share, sizes in (("construction", 0.85, (0.5, 0.5)), ("shelter", 0.7, (1.5, 2.0))):
        layouts = drawn(name)
        numbers = {len(layout.sites) for layout in layouts}
        assert numbers == ({1, 2, 3, 4} if name == "construction" else {1})
        for layout in layouts:
            x, y, size = layout.sites.T
            assert (sizes[0] <= size).all() and (size <= sizes[1]).all()
            for at in (x, y):
                assert (np.abs(at - 3.0) + size / 2 <= 3.0 * share + 1e-9).all()
            apart = np.abs(layout.sites[:, None, :2] - layout.corners - layout.sizes[:, :2] / 2)
            assert (apart >= (layout.sites[:, None, 2:] + layout.sizes[:, :2]) / 2 - 1e-9).any(axis=2).all()


def test_only_the_next_box_of_the_order_can_be_locked_and_all_locks_earn_each_step() -> None:
    boxes = ((2.45, 3), (2, 3.45), (1.55, 3))
    game = scene([(2, 3, EAST)], boxes=boxes, scenario="sequential_lock", horizon=40)
    game.sight.cosine = -2.0  # the agent sees all around
    game.refresh()
    order, rewards = [], []
    for _ in range(4):
        before = game.hands.locked[0].copy()
        allowed = game.hands.lockable[0].copy()
        rewards.append(float(act(game, LOCK).reward[0, 0]))
        assert ((game.hands.locked[0] ^ before) == (allowed & ~before)).all()
        order += np.flatnonzero(game.hands.locked[0] ^ before).tolist()
    assert sorted(order) == [0, 1, 2] and rewards == pytest.approx([5.0, 5.0, 6.0, 1.0], abs=0.02)
    assert game.task is not None and game.task.score[0] == 1.0
    assert float(act(game).reward[0, 0]) == pytest.approx(-15.0, abs=0.02)
    orders = set()
    for seed in range(10):
        world = make_game(EnvConfig("hide_and_seek:sequential_lock"), 1, seed)
        world.reset()
        orders.add(int(world.hands.lockable[0, 3:].argmax()))
        world.close()
    assert len(orders) > 1


def test_construction_costs_the_distance_of_corners_and_ends_when_every_site_is_built() -> None:
    far = scene([(1, 1)], boxes=[(3, 3)], sites=[(3.8, 3, 0.5)], scenario="construction")
    corners = np.array([[x, y] for x in (-0.25, 0.25) for y in (-0.25, 0.25)])
    apart = np.linalg.norm(corners[:, None] + np.array([0.8, 0.0]) - corners, axis=-1)
    smooth = (apart * np.exp(-1.5 * apart)).sum(axis=1) / np.exp(-1.5 * apart).sum(axis=1)
    step = act(far)
    assert float(step.reward[0, 0]) == pytest.approx(-0.05 * smooth.mean(), abs=1e-4) and step.discount[0, 0] == 1
    both = [(3, 3, 0.5), (4, 4, 0.5)]
    half = scene([(1, 1)], boxes=[(3, 3), (4.2, 4)], sites=both, scenario="construction")
    assert act(half).discount[0, 0] == 1 and half.task is not None and half.task.score[0] == 0.5
    done = scene([(1, 1)], boxes=[(3, 3), (4.05, 4)], sites=both, scenario="construction")
    step = act(done)
    assert 5.9 < float(step.reward[0, 0]) < 6.0 and step.discount[0, 0] == 0 and len(step.episodes) == 1


def test_turned_box_does_not_match_a_site() -> None:
    game = scene([(1, 1)], boxes=[(3, 3)], sites=[(3, 3, 0.5)], scenario="construction")
    game.worlds.worlds[0].simulation.qpos[7] = np.pi / 4
    game.refresh()
    assert act(game).discount[0, 0] == 1
    game.worlds.worlds[0].simulation.qpos[7] = np.pi / 2
    game.refresh()
    assert act(game).discount[0, 0] == 0


def test_rays_to_the_cylinder_are_those_of_mujoco() -> None:
    """A turned box, a long one, one in the air, and rays just above the floor."""
    boxes, sizes = [(1.8, 2.5), (3.0, 1.2), (3.1, 5)], [CUBE, LONG_X, CUBE]
    game = scene([(5.5, 5.5)], boxes=boxes, sizes=sizes, sites=[(3, 3, 1.8)], scenario="shelter", n_elongated_boxes=1)
    model, data = game.worlds.worlds[0].model, game.worlds.worlds[0].simulation
    data.qpos[7], data.qpos[14] = 0.6, 2.0
    game.refresh()
    reward, geom = act(game).reward[0, 0], np.zeros(1, np.int32)
    hit = 0
    for begin, along in zip(*rays_of(game.settings), strict=True):
        mujoco.mj_ray(model, data, [*begin, 0.01], [*along, 0.0], None, 1, 2, geom)
        hit += geom[0] >= 0 and model.geom_type[geom[0]] == mujoco.mjtGeom.mjGEOM_CYLINDER
    assert 15 < hit < 28 and reward == pytest.approx(-0.001 * hit, abs=1e-6)
    assert 0.1 < game.task.score[0] < 0.5


def test_boxes_of_counting_leave_to_the_counted_sides_and_are_hidden_at_the_end() -> None:
    game = make_game(EnvConfig("hide_and_seek:counting", episode_metrics=("task_score",)), 8, 0)
    step = game.reset()
    counts, seen = game.task.score.copy(), game.sight.seen[:, 0, 1:].copy()
    for _ in range(79):
        step = game.step({"hider_0": np.full((8, 1, 5), (10, 0, 10, 1, 1))})
        seen |= game.sight.seen[:, 0, 1:]
    assert seen.all() and not game.sight.seen[:, 0, 1:].any()
    np.testing.assert_array_equal((game.worlds.centres()[:, 1:, 0] > 3).sum(axis=1), counts)
    np.testing.assert_allclose(game.worlds.position[:, 0, :2], game.worlds.start[:, 0, :2], atol=1e-6)
    step = game.step({"hider_0": np.full((8, 1, 5), (10, 0, 10, 1, 1))})
    assert [episode.metrics["task_score"] for episode in step.episodes] == counts.tolist()
    assert len(set(counts.tolist())) > 2 and not step.reward.any()
    game.close()


def test_options_that_a_task_cannot_have_are_refused() -> None:
    with pytest.raises(ConfigError, match="n_hiders is 1 and n_seekers 1; lock_and_return is for one agent"):
        settings_of("lock_and_return", {"n_seekers": 1})
    with pytest.raises(ConfigError, match=r"rows is .*; construction needs at least \[8, 0, 4\]"):
        settings_of("construction", {"rows": [4, 3, 4]})
    for rows in ([8, 3], "8,3,4", ["8", 3, 4]):
        with pytest.raises(ConfigError, match=r"rows is .*; its type is tuple\[int, int, int\]"):
            settings_of("construction", {"rows": rows})
    with pytest.raises(ConfigError, match=r"n_boxes is \(0, 2\); construction needs at least 1"):
        settings_of("construction", {"n_boxes": [0, 2]})
    with pytest.raises(ConfigError, match="n_sites is 0; shelter has exactly 1"):
        settings_of("shelter", {"n_sites": 0})
    with pytest.raises(ConfigError, match="counting is played on a floor of 6 m"):
        settings_of("counting", {"map_scale": 2})
    with pytest.raises(ConfigError, match="n_seekers is 0; give 1, 2 or 3"):
        settings_of("empty", {"n_seekers": 0})
