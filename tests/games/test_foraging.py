"""Foraging in NumPy against lbforaging: every step, and the distribution of the first states."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from jsrl.envs.adapters.lbf import Foraging
from jsrl.envs.check import check_env
from jsrl.envs.config import EnvConfig
from jsrl.envs.make import make_game
from jsrl.errors import ConfigError, EnvironmentFault
from jsrl.games.foraging import ForagingGame
from jsrl.networks.distances import distances

SLOTS, STEPS = 4, 60
CASES = [
    ("5x5-2p-1f", {}),
    ("8x8-2p-2f-coop", {"penalty": 0.1}),
    ("6x6-3p-3f", {"penalty": 0.2}),
    ("2s-6x6-4p-4f", {}),
    ("2s-5x5-3p-2f-coop", {}),
]


def as_lbforaging(game: ForagingGame, kwargs: dict) -> list[Foraging]:
    """Return lbforaging's environments in the game's state."""
    name = f"Foraging-{game.spec.name.partition(':')[2]}" + "-v3"
    others = []
    for slot in range(game.num_envs):
        other = Foraging(EnvConfig(f"lbf:{name}", kwargs=kwargs), name)
        other.reset(slot)
        env = other._env
        env.field[:] = 0
        for place, worth in zip(game.food[slot].tolist(), game.worth[slot].tolist(), strict=True):
            env.field[tuple(place)] += worth
        for i, player in enumerate(env.players):
            player.setup(tuple(game.position[slot, i].tolist()), int(game.level[slot, i]), env.field_size)
        env._food_spawned = env.field.sum()
        env._gen_valid_moves()
        others.append(other)
    return others


@pytest.mark.parametrize(("name", "kwargs"), CASES, ids=str)
def test_equals_lbforaging_step_by_step(name: str, kwargs: dict) -> None:
    pytest.importorskip("lbforaging")
    game = make_game(EnvConfig(f"foraging:{name}", kwargs=kwargs), SLOTS, 3)
    step, rng, lifted, ends = game.reset(), np.random.default_rng(0), 0, Counter()
    others = as_lbforaging(game, kwargs)
    for _ in range(STEPS):
        tries = game._beside(game.position).any(axis=(2, 3)) & (rng.random(game.level.shape) < 0.7)
        chosen = np.where(tries, 5, rng.integers(0, 6, tries.shape))
        action = {seat: chosen[:, i : i + 1] for i, seat in enumerate(game.spec.names)}
        begins = [episode.slot for episode in step.episodes]
        step = game.step(action)
        if begins:
            for slot, other in enumerate(as_lbforaging(game, kwargs)):
                others[slot] = other if slot in begins else others[slot]
        for slot in sorted(set(range(SLOTS)) - set(begins)):
            state = others[slot].step({seat: int(action[seat][slot, 0]) for seat in game.spec.names})
            for i, seat in enumerate(game.spec.names):
                np.testing.assert_array_equal(step.observation[seat][slot, 0], state.observation[seat])
                assert step.reward[slot, i] == pytest.approx(state.reward[seat], abs=1e-6)
                lifted += state.reward[seat] > 0
            over = [episode for episode in step.episodes if episode.slot == slot]
            assert bool(over) == bool(state.terminated or state.truncated)
            assert not over or over[0].terminated == bool(state.terminated)
            ends.update("food left" if state.truncated else "all lifted" for _ in over)
    assert lifted and ends, (lifted, ends)


def test_first_states_have_the_distribution_of_lbforaging() -> None:
    """Places of foods, levels of agents and of foods: the shares of 2,000 resets of each differ by chance only."""
    pytest.importorskip("lbforaging")
    name = "6x6-2p-2f"
    own = make_game(EnvConfig(f"foraging:{name}"), 2_000, 0)
    own.reset()
    other = Foraging(EnvConfig(f"lbf:Foraging-{name}-v3"), f"Foraging-{name}-v3")
    drawn: list[list[tuple]] = [[], []]
    for slot in range(own.num_envs):
        drawn[0].append(
            (own.food[slot][own.worth[slot] > 0].tolist(), own.level[slot].tolist(), own.worth[slot].tolist())
        )
        other.reset(None if slot else 0)
        env = other._env
        places = np.argwhere(env.field).tolist()
        drawn[1].append(
            (places, [int(player.level) for player in env.players], [int(env.field[tuple(p)]) for p in places])
        )
    for part in range(3):
        one, two = (Counter(str(sorted(game[part])) for game in games) for games in drawn)
        keys = [key for key in {*one, *two} if one[key] + two[key] >= 20]
        chi = sum((one[key] - two[key]) ** 2 / (one[key] + two[key]) for key in keys)
        freedom = len(keys) - 1
        assert chi < freedom + 4 * (2 * max(freedom, 1)) ** 0.5, (part, chi, freedom)


def test_passes_the_environment_contract() -> None:
    report = check_env(EnvConfig("foraging:5x5-2p-1f", kwargs={"max_cycles": 20}), steps=120, num_envs=3)
    assert [seat.name for seat in report.spec.seats] == ["agent_0", "agent_1"] and report.episodes > 0
    assert {seat.side for seat in report.spec.seats} == {"team"} and report.spec.symmetric


@pytest.mark.parametrize("name", ["8x7-2p-2f", "8x8-2p", "2x2-2p-1f", "8x8-0p-2f", "Foraging-8x8-2p-2f-v3"])
def test_invalid_names_and_options_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"no foraging game '{name}'"):
        make_game(EnvConfig(f"foraging:{name}"), 1, 0)
    with pytest.raises(ConfigError, match=r"could not be made with .*'speed'"):
        make_game(EnvConfig("foraging:8x8-2p-2f", kwargs={"speed": 3}), 1, 0)
    with pytest.raises(ConfigError, match="max_cycles is 0"):
        make_game(EnvConfig("foraging:8x8-2p-2f", kwargs={"max_cycles": 0}), 1, 0)
    with pytest.raises(ConfigError, match="9 agents and 1 foods do not fit into 3 x 3 cells"):
        make_game(EnvConfig("foraging:3x3-9p-1f"), 1, 0)


def test_invalid_actions_are_refused() -> None:
    game = make_game(EnvConfig("foraging:8x8-2p-2f"), 2, 0)
    game.reset()
    with pytest.raises(EnvironmentFault, match=r"\(slot 1.*given action 6 for seat 'agent_1'. Expected 0 to 5"):
        game.step({"agent_0": np.array([[0], [0]]), "agent_1": np.array([[0], [6]])})


def test_distances_are_those_between_all_foods_and_agents_and_from_the_agent_to_the_others():
    foods, agents = [(2, 3, 1), (-1, -1, 0), (7, 5, 3)], [(4, 3, 2), (7, 4, 1), (0, 9, 2)]
    row = np.array([*np.ravel(foods), *np.ravel(agents), 0, 1, 0], np.float32)

    def apart(one, other):
        down, across = one[0] - other[0], one[1] - other[1]
        way = [np.sign(down), np.sign(across)]
        steps = [down / 5, across / 5, abs(down) / 5, abs(across) / 5]
        return [*steps, *way, *np.abs(way), float(abs(down) + abs(across) == 1)]

    expected = [number for food in foods for agent in agents for number in apart(food, agent) if food[2]]
    expected = [*expected[:27], *[0.0] * 27, *expected[27:]]
    expected += [number for other in agents[1:] for number in apart(other, agents[0])]
    expected += [4 / 5, 3 / 5, 1, 0, 3, 2, 1, 2, 0, 1, 0]
    np.testing.assert_allclose(distances(np.stack([row, row]), 3), [expected] * 2, atol=1e-6)


def test_distances_of_a_game_with_other_agents_are_refused():
    with pytest.raises(
        ConfigError, match=r"with 3 agents, and 14 numbers .* network and critic_network with the torso mlp"
    ):
        distances(np.zeros((1, 14), np.float32), 3)
