"""The particle world against mpe2, step by step; its rows and initial positions."""

from __future__ import annotations

import dataclasses
import importlib

import numpy as np
import pytest

from jsrl.envs.config import EnvConfig
from jsrl.envs.make import make_game
from jsrl.errors import ConfigError, EnvironmentFault
from jsrl.games.particle.tasks import TASKS
from jsrl.types import Discrete, MultiDiscrete
from tests.marks import slow

SLOTS, STEPS = 3, 40
CASES = [
    ("simple_spread_v3", {}),
    slow("simple_spread_v3", {"N": 4, "local_ratio": 0.2}),
    ("simple_speaker_listener_v4", {}),
    ("simple_reference_v3", {"local_ratio": 0.3}),
    slow("simple_tag_v3", {}),
    ("simple_tag_v3", {"num_good": 2, "num_adversaries": 2, "num_obstacles": 1}),
]


def start_like(game, slot: int, world) -> None:
    """Set a slot to the state of mpe2's world, with agents closer together so that they touch often."""
    for entity in world.entities:
        entity.state.p_pos = 0.5 * entity.state.p_pos
    position = np.array([agent.state.p_pos for agent in world.agents])
    landmark = np.array([mark.state.p_pos for mark in world.landmarks]).reshape(-1, 2)
    game.world.place(np.array([slot]), position[None], landmark[None])
    goals = [getattr(agent, "_goal_b", None) for agent in world.agents]
    game.goal[slot] = [world.landmarks.index(goal) for goal in goals if goal is not None]


@pytest.mark.parametrize("continuous", [False, True], ids=["discrete", "continuous"])
@pytest.mark.parametrize(("name", "kwargs"), CASES, ids=str)
def test_equals_mpe2_step_by_step(name: str, kwargs: dict, continuous: bool) -> None:
    pytest.importorskip("mpe2")
    module = importlib.import_module(f"mpe2.{name}")
    options = {**kwargs, "max_cycles": STEPS, "continuous_actions": continuous}
    game = make_game(EnvConfig(f"particle:{name}", kwargs=options, action_transform="clip"), SLOTS, 0)
    step = game.reset()
    others = [module.parallel_env(**options) for _ in range(SLOTS)]
    for slot, other in enumerate(others):
        other.reset(seed=slot)
        start_like(game, slot, other.unwrapped.world)
    game.refresh()
    rng, touched = np.random.default_rng(0), 0
    names = game.spec.names
    assert names == tuple(others[0].possible_agents)
    for _ in range(STEPS):
        if continuous:
            action = {
                seat.name: rng.uniform(-0.2, 1.2, (SLOTS, 1, len(seat.action.low))).astype(np.float32)
                for seat in game.spec.seats
            }
        else:
            action = {seat.name: rng.integers(0, seat.action.num_actions, (SLOTS, 1)) for seat in game.spec.seats}
        step = game.step(action)
        touched += int(game.world.touching.sum()) if game.world.bodies.collide else 1
        for slot, other in enumerate(others):
            # mpe2 does not clip: the wrapper around its AEC form does, and warns
            given = {n: np.clip(action[n][slot, 0], 0.0, 1.0) if continuous else int(action[n][slot, 0]) for n in names}
            observed, reward, _, truncated, _ = other.step(given)
            for i, seat in enumerate(names):
                np.testing.assert_allclose(step.observation[seat][slot, 0], observed[seat], atol=1e-5)
                np.testing.assert_allclose(step.reward[slot, i], reward[seat], atol=1e-5, rtol=1e-5)
            np.testing.assert_allclose(step.state[slot], other.state(), atol=1e-5)
            assert all(truncated.values()) == bool(step.episodes)
    assert touched, "agents never touched, so contacts were not compared"
    assert [episode.slot for episode in step.episodes] == [0, 1, 2] and not step.episodes[0].terminated
    for other in others:
        other.close()


def play(game, steps: int, seed: int = 0):
    """Return copies of observations, rewards and first flags under random actions of a fixed stream."""
    rng, rows = np.random.default_rng(seed), [game.reset()]
    seen = [{name: array.copy() for name, array in rows[0].observation.items()}]
    for _ in range(steps):
        action = {
            group: rng.integers(0, game.spec.view(seats).action.num_actions, (game.num_envs, len(seats)))
            for group, seats in game.groups.items()
        }
        rows.append(game.step(action))
        seen.append({name: array.copy() for name, array in rows[-1].observation.items()})
    return rows, seen


@pytest.mark.parametrize("name", TASKS)
def test_a_slot_does_not_depend_on_its_neighbours_and_episodes_differ(name: str) -> None:
    config = EnvConfig(f"particle:{name}", kwargs={"max_cycles": 3})
    few, many = (make_game(config, count, 7) for count in (2, 5))
    a, b = few.reset(), many.reset()
    for group in few.groups:
        np.testing.assert_array_equal(a.observation[group], b.observation[group][:2])
    _, seen = play(few, 9)
    group = next(reversed(few.groups))
    openings = [seen[t][group][slot].tobytes() for t in (0, 4, 8) for slot in range(2)]
    assert len(set(openings)) == 6


def test_rows_of_a_time_limit() -> None:
    game = make_game(EnvConfig("particle:simple_spread_v3", kwargs={"max_cycles": 2}), 2, 0, groups={"all": SEATS})
    rows, seen = play(game, 4)
    assert [row.is_first.tolist() for row in rows] == [[True] * 2, [False] * 2, [False] * 2, [True] * 2, [False] * 2]
    assert not rows[3].reward.any() and all((row.discount == 1).all() and (row.acts == 1).all() for row in rows)
    assert [len(row.episodes) for row in rows] == [0, 0, 2, 0, 0]
    episode = rows[2].episodes[1]
    np.testing.assert_allclose(episode.returns, rows[1].reward[1] + rows[2].reward[1], rtol=1e-6)
    assert (episode.length, episode.terminated) == (2, False) and episode.return_ == pytest.approx(
        np.mean(episode.returns)
    )
    assert seen[0]["all"].shape == (2, 3, 18)
    limited = make_game(EnvConfig("particle:simple_spread_v3", max_episode_steps=1), 1, 0)
    assert [len(row.episodes) for row in play(limited, 3)[0]] == [0, 1, 0, 1]


SEATS = ("agent_0", "agent_1", "agent_2")


def test_groups_change_only_initial_positions() -> None:
    config = EnvConfig("particle:simple_spread_v3")
    apart = make_game(config, 2, 3)
    turned = make_game(config, 2, 3, groups={"last": ("agent_2", "agent_0"), "one": ("agent_1",)})
    one, two = apart.reset(), turned.reset()
    np.testing.assert_array_equal(two.observation["last"][:, 0], one.observation["agent_2"][:, 0])
    action = {"agent_0": np.array([[1], [2]]), "agent_1": np.array([[3], [4]]), "agent_2": np.array([[2], [0]])}
    one = apart.step(action)
    two = turned.step(
        {"last": np.stack([action["agent_2"][:, 0], action["agent_0"][:, 0]], axis=1), "one": action["agent_1"]}
    )
    np.testing.assert_array_equal(one.reward, two.reward)
    np.testing.assert_array_equal(one.state, two.state)


def test_actions_of_a_first_row_are_ignored_and_others_are_checked() -> None:
    config = EnvConfig("particle:simple_spread_v3", kwargs={"max_cycles": 1})
    game = make_game(config, 1, 0, groups={"all": SEATS})
    game.reset()
    game.step({"all": np.zeros((1, 3), int)})
    assert game.step({"all": np.full((1, 3), 77)}).is_first.all()
    with pytest.raises(EnvironmentFault, match=r"given action 77 for seat 'agent_1'. Expected 0 to 4"):
        game.step({"all": np.array([[0, 77, 0]])})


def test_move_and_symbol_as_two_choices_do_what_their_combination_does() -> None:
    config = EnvConfig("particle:simple_reference_v3")
    both = dataclasses.replace(config, kwargs={"multi_discrete": True})
    seats = {"all": ("agent_0", "agent_1")}
    whole, parted = (make_game(c, 2, 0, groups=seats) for c in (config, both))
    assert {seat.action for seat in parted.spec.seats} == {MultiDiscrete((5, 10))}
    rng = np.random.default_rng(0)
    for game in (whole, parted):
        game.reset()
    for _ in range(3):
        chosen = rng.integers(0, (5, 10), (2, 2, 2))
        one, two = whole.step({"all": chosen[..., 0] + 5 * chosen[..., 1]}), parted.step({"all": chosen})
        np.testing.assert_array_equal(one.state, two.state)
        np.testing.assert_array_equal(one.reward, two.reward)
    with pytest.raises(EnvironmentFault, match=r"given action \[4, 10\] for seat 'agent_0'. Expected 0 to \[4, 9\]"):
        parted.step({"all": np.broadcast_to([[4, 10], [0, 0]], (2, 2, 2))})


def test_silent_agents_have_only_moves() -> None:
    game = make_game(EnvConfig("particle:simple_speaker_listener_v4", kwargs={"multi_discrete": True}), 1, 0)
    assert [seat.action for seat in game.spec.seats] == [Discrete(3), Discrete(5)]


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (EnvConfig("particle:simple_spred_v3"), "no particle task 'simple_spred_v3'.*simple_spread_v3"),
        (EnvConfig("particle:simple_spread_v3", kwargs={"M": 3}), "could not be made with .*'M'"),
        (EnvConfig("particle:simple_spread_v3", kwargs={"local_ratio": 2}), "local_ratio is 2"),
        (EnvConfig("particle:simple_tag_v3", kwargs={"num_good": 0}), "num_good is 0"),
        (EnvConfig("particle:simple_tag_v3", kwargs={"num_obstacles": -1}), "num_obstacles is -1; give at least 0"),
        (EnvConfig("particle:simple_spread_v3", kwargs={"max_cycles": 0}), "max_cycles is 0"),
        (
            EnvConfig("particle:simple_spread_v3", kwargs={"max_cycles": "x"}),
            "could not be made with .*'max_cycles': 'x'",
        ),
        (
            EnvConfig("particle:simple_tag_v3", kwargs={"continuous_actions": True, "multi_discrete": True}),
            "exclude each other",
        ),
    ],
)
def test_invalid_options_are_refused(config: EnvConfig, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        make_game(config, 1, 0)


@pytest.mark.parametrize(
    ("groups", "told"),
    [
        ({"all": ("agent_0", "agent_7")}, "no seat 'agent_7'"),
        ({"all": ("agent_0", "agent_1")}, "seat 'agent_2' of .* is in no group"),
        ({"all": SEATS, "more": ("agent_0",)}, "seat 'agent_0' of .* is in the groups all, more"),
    ],
)
def test_invalid_groups_are_refused(groups: dict, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        make_game(EnvConfig("particle:simple_spread_v3"), 1, 0, groups=groups)
