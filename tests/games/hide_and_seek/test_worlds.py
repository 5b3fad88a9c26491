"""Random worlds: counts, rooms, doors, positions; and their observations."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest

from jsrl.envs.check import check_env, random_actions
from jsrl.envs.config import EnvConfig
from jsrl.envs.make import import_modules, make_game, make_spec
from jsrl.errors import ConfigError, EnvironmentFault, MissingExtra
from jsrl.games.hide_and_seek.layouts import draw_layout
from jsrl.games.hide_and_seek.settings import settings_of
from jsrl.games.hide_and_seek.walls import OUTER_HEIGHT, box_of, walls_of
from jsrl.games.hide_and_seek.worlds import WorldsAhead, build_world
from tests.directors.scripted import chi_square_p
from tests.games.hide_and_seek.scenes import EAST, scene
from tests.marks import nightly, slow

mujoco = pytest.importorskip("mujoco")


VARIANTS = [("empty", {"n_hiders": 1, "n_seekers": 1}), slow("quadrant", {}), slow("randomwalls", {"max_others": 5})]


@pytest.mark.parametrize(("scenario", "options"), VARIANTS)
def test_passes_the_environment_contract(scenario: str, options: dict) -> None:
    """Among others: equal seeds play the same episodes bit for bit, and different seeds do not."""
    config = EnvConfig(f"hide_and_seek:{scenario}", kwargs={"horizon": 20, **options})
    report = check_env(config, steps=50, max_seconds=10)
    assert report.episodes >= 8 and report.env_steps_per_s > 0
    groups = [make_game(config, 2, 0, group=group).reset().state for group in (0, 1, 1)]
    np.testing.assert_array_equal(groups[1], groups[2])
    assert not np.array_equal(groups[0], groups[1])


def test_a_second_reset_drops_open_episodes() -> None:
    game = make_game(EnvConfig("hide_and_seek:empty", kwargs={"horizon": 5}), 2, 0)
    rng, step = np.random.default_rng(0), game.reset()
    opening = step.state.copy()
    for _ in range(3):
        step = game.step(random_actions(game, step.observation, rng))
    step = game.reset()
    assert step.is_first.all() and not step.reward.any() and not np.array_equal(step.state, opening)
    ends = []
    for t in range(1, 12):
        step = game.step(random_actions(game, step.observation, rng))
        ends += [(t, episode.length) for episode in step.episodes]
    assert ends == [(5, 5), (5, 5), (11, 5), (11, 5)]


def layouts(scenario: str, number: int, **options):
    settings, rng = settings_of(scenario, options), np.random.default_rng(0)
    return settings, [draw_layout(settings, rng) for _ in range(number)]


def cells_of(layout, settings) -> np.ndarray:
    """Return how often each cell is occupied by walls and objects."""
    taken = np.zeros((settings.grid_size, settings.grid_size), int)
    for wall in layout.walls:
        along = slice(wall.start, wall.end + 1)
        taken[(along, wall.at) if wall.axis == 0 else (wall.at, along)] = 1
    for (x, y), size in zip(layout.cells.tolist(), layout.sizes, strict=True):
        wide, deep = (math.ceil(side / settings.cell - 1e-9) for side in size[:2])
        taken[x : x + wide, y : y + deep] += 1
    return taken


def test_random_walls_and_objects_follow_the_original_distribution() -> None:
    settings, drawn = layouts("randomwalls", 1000)
    boxes = np.array([layout.boxes for layout in drawn])
    agents = settings.n_agents + settings.n_ramps
    long = np.array([(layout.sizes[agents:].max(axis=1) > 1).sum() for layout in drawn])
    assert boxes.min() == 3 and boxes.max() == 9 and (long >= 3).all() and (long <= boxes).all()
    assert chi_square_p(np.bincount(boxes)[3:]) > 1e-3
    assert boxes.mean() == pytest.approx(6.0, abs=0.15) and long.mean() == pytest.approx(4.45, abs=0.2)
    walls = [len(layout.walls) for layout in drawn]
    outer = np.mean([any(wall.height == OUTER_HEIGHT for wall in layout.walls) for layout in drawn])
    assert min(walls) >= 0 and max(walls) <= 10 and np.mean(walls) == pytest.approx(4.8, abs=0.3)
    assert outer == pytest.approx(0.5, abs=0.04)
    assert np.mean([layout.attempts for layout in drawn]) < 1.2
    for layout in drawn:
        assert cells_of(layout, settings).max() <= 1
        for team in (slice(0, 2), slice(2, 4)):
            cells = layout.cells[team]
            assert np.abs(cells - cells[0]).max() <= 3


@pytest.mark.slow
@pytest.mark.parametrize("count", [1_500, nightly(10_000)])
def test_thousands_of_worlds_place_all_objects(count: int) -> None:
    for scenario, options in (("randomwalls", {"n_hiders": 3, "n_seekers": 3}), ("quadrant", {})):
        _, drawn = layouts(scenario, count, **options)
        assert np.mean([layout.attempts for layout in drawn]) < 1.2


@pytest.mark.nightly
@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_ten_thousand_resets_never_fail() -> None:
    settings = settings_of("randomwalls", {"n_hiders": 3, "n_seekers": 3})
    attempts = [build_world(settings, slot, episode).layout.attempts for slot in range(100) for episode in range(100)]
    assert np.mean(attempts) < 1.2


def test_each_inner_wall_has_at_most_one_door_of_two_cells() -> None:
    """Equal seeds draw the same rooms with and without doors, so the pieces of each wall are known."""
    closed, opened = (settings_of("randomwalls", {"door_size": size, "prob_outside_walls": 1.0}) for size in (0, 2))
    numbers, widths = set(), set()
    for seed in range(300):
        whole, pieces = (walls_of(settings, np.random.default_rng(seed))[4:] for settings in (closed, opened))
        numbers.add(len(whole))
        for wall in whole:
            mine = [p for p in pieces if p[:2] == wall[:2] and wall.start <= p.start and p.end <= wall.end]
            free = sorted(set(range(wall.start, wall.end + 1)) - {c for p in mine for c in range(p.start, p.end + 1)})
            at_an_end = bool(free) and (
                free[0] == wall.start or free[-1] == wall.end
            )  # one of its cells is another wall's
            assert len(free) in (0, 2 + at_an_end) and (not free or free[-1] - free[0] == len(free) - 1)
            if len(mine) == 2:
                low, high = (box_of(piece, opened.cell) for piece in sorted(mine, key=lambda piece: piece.start))
                widths.add(round(high[0][wall.axis] - high[1][wall.axis] - low[0][wall.axis] - low[1][wall.axis], 6))
    assert numbers == {0, 1, 2, 3} and widths == {0.7}


def test_inner_walls_do_not_cross_and_start_more_than_six_cells_apart() -> None:
    """The other end of a wall may be anywhere, so at least one of both ends has this distance."""
    settings, inner = settings_of("randomwalls", {"door_size": 0, "prob_outside_walls": 1.0}), 0
    for seed in range(300):
        walls = walls_of(settings, np.random.default_rng(seed))
        for k in range(4, len(walls)):
            new, fits, inner = walls[k], [], inner + 1
            for end in (2, 3):  # fields of a segment: its start and end
                lines = [
                    w for w in walls[:k] if (w.axis, w.at) == (1 - new.axis, new[end]) and w.start <= new.at <= w.end
                ]
                same_side = [w.at for w in walls[4:k] if (w.axis, w[end]) == (new.axis, new[end])]
                taken = [line.start for line in lines] + [line.end for line in lines] + same_side
                fits.append(bool(lines) and all(abs(new.at - place) > 6 for place in taken))
            assert any(fits), (seed, new)
            across = [w for w in walls[:k] if w.axis != new.axis and w.start < new.at < w.end]
            along = [w for w in walls[:k] if (w.axis, w.at) == (new.axis, new.at)]
            assert not any(new.start < w.at < new.end for w in across), "walls touch, and do not cross"
            assert not any(new.start < w.end and w.start < new.end for w in along)
    assert inner > 300


def test_quadrant_scenario() -> None:
    _, drawn = layouts("quadrant", 1000)
    doors = []
    for layout in drawn:
        assert len(layout.walls) in (6, 7, 8) and sum(wall.height == OUTER_HEIGHT for wall in layout.walls) == 4
        inner = [wall for wall in layout.walls if wall.height < OUTER_HEIGHT]
        closed = sum(wall.end - wall.start >= 14 for wall in inner)
        doors.append(2 - closed)
        boxes, seekers = layout.corners[-2:], layout.cells[2:4]
        assert (boxes[:, 0] >= 3.0).all() and (boxes[:, 1] + 0.5 <= 3.0).all()
        assert not ((seekers[:, 0] >= 15) & (seekers[:, 1] < 14)).any()
    assert np.mean(np.array(doors) == 1) == pytest.approx(0.5, abs=0.04) and set(doors) == {1, 2}
    cells = np.array([layout.cells for layout in drawn])
    room = (cells[..., 0] >= 15) & (cells[..., 1] < 15)
    assert (room[:, [0, 1, 4]].mean(axis=0) > 0.1).all() and (room[:, [0, 1, 4]].mean(axis=0) < 0.3).all()
    quarters = [(cells[:, 2:4, 0] >= 15).mean(), (cells[:, 2:4, 1] >= 15).mean()]  # three quarters, equally often
    assert quarters == pytest.approx([1 / 3, 2 / 3], abs=0.05)
    _, drawn = layouts("quadrant", 50, hider_uniform_placement=False)
    corners = np.array([layout.corners[:2] for layout in drawn])
    assert (corners[..., 0] >= 3.0).all() and (corners[..., 1] + 0.3 <= 3.0).all()


def test_a_world_at_rest() -> None:
    """Nothing turns or moves; only agents' arms may reach into objects."""
    for seed in range(20):
        world = build_world(settings_of("randomwalls", {"n_hiders": 3, "n_seekers": 3}), seed, 0)
        position = world.simulation.qpos.reshape(-1, 4)
        assert not position[:, 2:].any() and not world.simulation.qvel.any()
        mujoco.mj_forward(world.model, world.simulation)
        assert world.simulation.contact.dist.min(initial=0.0) >= -0.061


def test_scenarios_have_the_settings_of_the_original() -> None:
    table = {
        "randomwalls": (
            240,
            0.4,
            6.0,
            30,
            (3, 9),
            (3, 9),
            2,
            True,
            False,
            (-6, -6, 12, 12),
            4,
            True,
            0.5,
            2,
            0.5,
            0.5,
            30,
        ),
        "quadrant": (80, 0.4, 6.0, 30, 2, 0, 1, False, True, (0.1, 0.1, 5.9, 5.9), 4, True, 0.5, 2, None, None, 30),
        "lock_and_return": (120, 0.0, 6.0, 30, 1, 0, 0, True, False, None, 6, False, 1.0, 2, None, None, 30),
        "sequential_lock": (120, 0.0, 6.0, 30, 4, 0, 3, True, False, None, 3, False, 1.0, 0, None, None, 30),
        "construction": (150, 0.0, 6.0, 30, 8, 0, 0, True, False, None, 4, False, 1.0, 2, None, None, 30),
        "shelter": (240, 0.0, 6.0, 30, 8, 3, 0, True, False, None, 4, False, 1.0, 2, None, None, 30),
    }
    names = (
        *(
            "horizon",
            "prep_fraction",
            "floor_size",
            "grid_size",
            "n_boxes",
            "n_elongated_boxes",
            "n_ramps",
            "lock_ramp",
        ),
        *("penalize_objects_out", "restrict_rect", "n_rooms", "random_room_number", "prob_outside_walls", "door_size"),
        *("hiders_together_radius", "seekers_together_radius", "n_lidar"),
    )
    for scenario, wanted in table.items():
        settings = settings_of(scenario, {})
        assert tuple(getattr(settings, name) for name in names) == wanted, scenario
    phases = {horizon: settings_of("empty", {"horizon": horizon}).prep_steps for horizon in (79, 80, 239, 240)}
    assert phases == {79: 32, 80: 32, 239: 96, 240: 96}


def test_a_larger_map_has_cells_and_objects_of_the_same_size() -> None:
    settings, drawn = layouts("randomwalls", 50, map_scale=2)
    assert (settings.floor_size, settings.grid_size) == (12.0, 60)
    assert settings.restrict_rect == (-12, -12, 24, 24) and settings.cell == pytest.approx(0.2)
    assert settings.hiders_together_radius == 1.0 and settings.horizon == 240
    assert max(layout.corners.max() for layout in drawn) > 9
    assert {tuple(size) for layout in drawn for size in layout.sizes[4:].tolist()} == {
        (0.5, 0.5, 0.5),
        (1.65, 0.15, 0.5),
        (0.15, 1.65, 0.5),
    }


SHAPES = {
    ("randomwalls", 1): {"agent_qpos_qvel": (5, 10), "box_obs": (9, 15), "ramp_obs": (2, 15)},
    ("randomwalls", 2): {"agent_qpos_qvel": (5, 10), "box_obs": (9, 15), "ramp_obs": (2, 15)},
    ("randomwalls", 3): {"agent_qpos_qvel": (5, 10), "box_obs": (9, 15), "ramp_obs": (2, 15)},
    ("quadrant", 2): {"agent_qpos_qvel": (3, 10), "box_obs": (2, 12), "ramp_obs": (1, 9)},
    ("empty", 1): {"agent_qpos_qvel": (1, 10)},
}


@pytest.mark.parametrize(("scenario", "team"), SHAPES)
def test_shapes_masks_and_order_of_rows(scenario: str, team: int) -> None:
    options = {"n_hiders": team, "n_seekers": team, "max_others": 5 if scenario == "randomwalls" else None}
    game = make_game(EnvConfig(f"hide_and_seek:{scenario}", kwargs=options), 3, 0)
    step, agents = game.reset(), 2 * team
    step = game.step(random_actions(game, step.observation, np.random.default_rng(0)))
    shapes = {"observation_self": (10,), "lidar": (30,), **SHAPES[scenario, team]}
    masks = {"agent_qpos_qvel": "mask_aa_obs", "box_obs": "mask_ab_obs", "ramp_obs": "mask_ar_obs"}
    for rows in masks.keys() & shapes.keys():
        shapes[masks[rows]] = shapes[f"{masks[rows]}_spoof"] = shapes[rows][:1]
    seen = {name: step.observation[name] for name in game.spec.names}
    assert all({key: leaf.shape[2:] for key, leaf in own.items()} == shapes for own in seen.values())
    kinds = {key: "bool" if key.startswith("mask") else "float32" for key in shapes}
    assert all({key: str(leaf.dtype) for key, leaf in own.items()} == kinds for own in seen.values())
    for i, name in enumerate(game.spec.names):
        own = {key: leaf[:, 0] for key, leaf in seen[name].items()}
        assert own["observation_self"][:, 8].tolist() == [float(i < team)] * 3
        for k in range(agents - 1):
            other = seen[game.spec.names[(i - 1 - k) % agents]]["observation_self"][:, 0]
            np.testing.assert_array_equal(own["agent_qpos_qvel"][:, k], other)
        assert not own["agent_qpos_qvel"][:, agents - 1 :].any() and not own["mask_aa_obs"][:, agents - 1 :].any()
        assert (own["mask_aa_obs_spoof"].sum(axis=1) == agents - 1).all()
        if "box_obs" in own:
            real = own["mask_ab_obs_spoof"].astype(bool)
            assert real.sum(axis=1).tolist() == [world.layout.boxes for world in game.worlds.worlds]
            assert not own["box_obs"][~real].any() and not own["mask_ab_obs"][~real].any()
            assert own["box_obs"][real].any(axis=1).all(), "rows of unseen boxes keep their features"
            assert own["mask_ar_obs_spoof"].all() and own["ramp_obs"].any(axis=2).all()


def test_rows_of_unseen_entities_may_be_hidden() -> None:
    options = {"hide_unseen": True, "max_others": 5}
    game = make_game(EnvConfig("hide_and_seek:randomwalls", kwargs=options), 3, 0)
    seen = game.reset().observation["hider_0"]
    for rows, mask in (("agent_qpos_qvel", "aa"), ("box_obs", "ab"), ("ramp_obs", "ar")):
        shown = seen[rows].any(axis=-1)
        np.testing.assert_array_equal(shown, seen[f"mask_{mask}_obs"].astype(bool))


def test_worlds_built_ahead_equal_those_built_on_demand() -> None:
    settings = settings_of("quadrant", {})
    ahead = WorldsAhead(settings, [7, 8])
    begun = [ahead.take(slot, 0) for slot in (0, 1)]
    deadline = time.monotonic() + 60
    while not all(future.done() for future in ahead._ahead.values()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert sorted(ahead._ahead) == [(0, 1), (1, 1)]
    begun += [ahead.take(slot, 1) for slot in (0, 1)]
    for world, (seed, episode) in zip(begun, [(7, 0), (8, 0), (7, 1), (8, 1)], strict=True):
        alone = build_world(settings, seed, episode)
        np.testing.assert_array_equal(world.simulation.qpos, alone.simulation.qpos)
        assert world.layout.walls == alone.layout.walls and world.rng.random() == alone.rng.random()
    ahead.close()
    ahead.close()


def test_options_that_leave_no_place_are_refused_before_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jsrl.games.hide_and_seek.layouts.ATTEMPTS", 50)
    config = EnvConfig("hide_and_seek:empty", kwargs={"n_boxes": 9, "floor_size": 2})
    with pytest.raises(
        ConfigError, match=r"no place for all objects on a floor of 2\.0 m\. Give fewer objects \(n_boxes, "
    ):
        make_spec(config)


def test_world_without_room_raises_wherever_it_is_built(monkeypatch) -> None:
    monkeypatch.setattr("jsrl.games.hide_and_seek.layouts.ATTEMPTS", 50)
    settings = settings_of("randomwalls", {"floor_size": 2.0, "grid_size": 20, "n_boxes": 9, "n_elongated_boxes": 9})
    ahead = WorldsAhead(settings, [0])
    with pytest.raises(EnvironmentFault, match="50 worlds in a row had no place"):
        for episode in range(2):
            ahead.take(0, episode)
    ahead.close()


def test_positions_may_be_relative_to_the_agent() -> None:
    """An agent at (3, 3) that looks east; another 1 m north and 1 m east of it; a box 2 m west."""
    for relative, place, angle in ((False, (3.85, 3.85), 7.0), (True, (1.0, 1.0), np.pi / 4)):
        game = scene([(3, 3, EAST), (4, 4, 7.0)], boxes=[(1, 3)], relative=relative)
        seen = {name: leaf[0, 0] for name, leaf in game.refresh().observation["hider_0"].items()}
        np.testing.assert_allclose(seen["agent_qpos_qvel"][0, :4], (*place, 0.0, angle), atol=1e-5)
        box = (1 - 0.25 - 2.85, 2.75 - 2.85) if relative else (0.75, 2.75)
        np.testing.assert_allclose(seen["box_obs"][0, :4], (*box, 0.0, 1.0), atol=1e-5)
        other = game.refresh().observation["seeker_0"]["observation_self"][0, 0, 3]
        assert other == pytest.approx(7.0 - 2 * np.pi if relative else 7.0, abs=1e-5)


def test_slots_are_independent() -> None:
    config = EnvConfig("hide_and_seek:randomwalls", kwargs={"horizon": 12})
    few, many = (make_game(config, count, 5) for count in (2, 3))
    rng = np.random.default_rng(0)
    step, other = few.reset(), many.reset()
    for _ in range(30):
        action = random_actions(many, other.observation, rng)
        step, other = few.step({k: v[:2] for k, v in action.items()}), many.step(action)
        np.testing.assert_array_equal(step.state, other.state[:2])
        np.testing.assert_array_equal(step.reward, other.reward[:2])


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("quadrent", {}, "no scenario 'quadrent'.*quadrant"),
        ("empty", {"n_hider": 2}, "no option 'n_hider'.*n_hiders"),
        ("empty", {"n_hiders": 4}, "n_hiders is 4"),
        ("empty", {"max_others": 2}, "max_others is 2"),
        ("empty", {"n_boxes": [4, 3]}, "n_boxes is"),
        ("empty", {"map_scale": 0}, "map_scale is 0; give a finite number of at least 0.67"),
        ("empty", {"map_scale": math.inf}, "map_scale is inf; give a finite"),
        ("empty", {"floor_size": math.inf}, "floor_size is inf; give a positive, finite number"),
        ("quadrant", {"floor_size": 12.0}, "floor_size is 12, .*beyond 5.9 m .*give map_scale"),
        ("empty", {"map_scale": "2"}, "map_scale is '2'; its type is float"),
        ("empty", {"horizon": "80"}, "horizon is '80'; its type is int"),
        ("empty", {"n_boxes": [1, 2, 3]}, r"n_boxes is \[1, 2, 3\]; its type is int | tuple\[int, int\]"),
        ("empty", {"n_ramps": 1.5}, "n_ramps is 1.5; its type is int"),
        ("empty", {"restrict_rect": [0, 0, 1]}, r"restrict_rect is \[0, 0, 1\]; its type is tuple"),
        ("empty", {"restrict_rect": [0, 0, 1, -1]}, "restrict_rect is .*each minimum below its maximum"),
        ("empty", {"n_sites": 1}, "n_sites is 1; empty has none"),
        ("empty", {"hiders_together_radius": 0}, "hiders_together_radius is 0; give a positive"),
        (
            "randomwalls",
            {"seekers_together_radius": 0.2},
            "seekers_together_radius is 0.2; 2 agents need more than a cell",
        ),
        ("counting", {"n_ramps": 1}, "n_ramps is 1; counting has only cubes"),
        ("counting", {"n_boxes": [2, 5]}, r"n_boxes is \(2, 5\); counting needs a number from 1 to 6"),
        ("quadrant", {"door_size": -1}, "door_size is -1; give at least 0"),
    ],
)
def test_invalid_options_are_refused(name: str, options: dict, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        make_game(EnvConfig(f"hide_and_seek:{name}", kwargs=options), 1, 0)


def test_missing_or_old_mujoco_names_the_install_command(monkeypatch) -> None:
    import sys

    config = EnvConfig("hide_and_seek:empty")
    calls = (lambda: make_game(config, 1, 0), lambda: import_modules(config))
    monkeypatch.setattr(mujoco, "__version__", "3.4.0")
    for call in calls:
        with pytest.raises(
            MissingExtra, match=r"needs MuJoCo 3.5 or newer; 3.4.0 is .*pip install .*\[hide-and-seek\]"
        ):
            call()
    monkeypatch.setitem(sys.modules, "mujoco", None)
    for call in calls:
        with pytest.raises(MissingExtra, match=r"needs the package mujoco \(.*pip install .*\[hide-and-seek\]"):
            call()
