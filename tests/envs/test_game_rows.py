"""The rows of environments with seats against their true events and against rows by hand; which seats one policy may play."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from jsrl.envs.base import EnvStep, Episode
from jsrl.envs.check import random_actions
from jsrl.envs.config import EnvConfig
from jsrl.envs.games.rows import GameRows
from jsrl.envs.make import make_game
from jsrl.envs.seats import finite_actions
from jsrl.errors import AgentFault, ConfigError, EnvironmentFault, MissingExtra
from jsrl.types import ArraySpec, Discrete, GameSpec, Seat

GAMES = "pettingzoo:tests.envs.seat_games:"
RED_AND_BLUE = {"a_[01]": "red", "a_[23]": "blue"}


def random_step(game, step, rng):
    """Step a game with random legal actions."""
    return game.step(random_actions(game, step.observation, rng))


def episodes_of(game, wanted: int):
    """Yield (slot, its rows, the reported episode) of complete episodes, in the order in which they end in each slot."""
    rng = np.random.default_rng(1)
    step, rows, ended = game.reset(), [[] for _ in range(game.num_envs)], 0
    while ended < wanted:
        for slot in range(game.num_envs):
            if step.is_first[slot]:
                assert not step.reward[slot].any() and (step.discount[slot] == 1).all()
                rows[slot] = []
            seen = np.concatenate([step.observation[group][slot] for group in game.groups])
            rows[slot].append(
                SimpleNamespace(
                    reward=step.reward[slot].copy(),
                    discount=step.discount[slot].copy(),
                    acts=step.acts[slot].copy(),
                    seen=seen,
                )
            )
        for episode in step.episodes:
            ended += 1
            yield episode.slot, rows[episode.slot], episode
        step = random_step(game, step, rng)


def side_of(name: str) -> set[str]:
    return {"a_0", "a_1"} if name in ("a_0", "a_1") else {"a_2", "a_3"}


def shown_living(plan, k: int) -> set[str]:
    """Return the seats that are shown as living on row k: on the last row of a terminated episode, those of the row before."""
    return set(plan.living(k if plan.truncated else min(k, plan.length - 1)))


def expected(plan, names, turns: bool, team: bool):
    """Return (rewards, discounts, acts) of an episode's steps and rows, following the row table."""
    rewards, discounts, acts = [], [], []
    for k in range(plan.length + 1):
        living = shown_living(plan, k)
        mover = plan.turns[k] if turns and k < plan.length else None
        row = []
        for name in names:
            waits = mover is not None and name != mover
            dead = name in plan.present and name not in living
            row.append(2 if team and dead and living & side_of(name) else 0 if name not in living or waits else 1)
        acts.append(row)
    for k, earned in enumerate(plan.rewards, 1):
        left = set(plan.living(k))
        over = k == plan.length and not plan.truncated
        rewards.append([])
        discounts.append([])
        for name in names:
            mates = [earned[mate] for mate in earned if mate in side_of(name)]
            shared = team and name in plan.present and name not in earned and mates
            rewards[-1].append(sum(mates) / len(mates) if shared else earned.get(name, 0.0))
            out = not left & side_of(name) if team else name not in left
            discounts[-1].append(0.0 if over or out else 1.0)
    return np.array(rewards), np.array(discounts), np.array(acts)


def check_against_the_truth(form: str, death: str, wanted: int) -> None:
    kwargs = {"death": death, "sides": RED_AND_BLUE} if death == "team" else {}
    groups = {"even": ("a_0", "a_2"), "odd": ("a_1", "a_3")}
    game = make_game(EnvConfig(GAMES + form, kwargs=kwargs), 8, 0, groups=groups)
    order = list(game.spec.index([*groups["even"], *groups["odd"]]))
    names, done = game.spec.names, [0] * game.num_envs
    for slot, rows, episode in episodes_of(game, wanted):
        plan = game._envs[slot].env.log[done[slot]]
        done[slot] += 1
        assert plan.closed and plan.length == episode.length == len(rows) - 1
        turns = form.endswith("TurnGame")
        reward, discount, acts = expected(plan, names, turns, death == "team")
        found = np.array([row.reward for row in rows[1:]])
        np.testing.assert_allclose(found, reward, atol=1e-6)
        np.testing.assert_allclose(found.astype(float).sum(axis=0), reward.sum(axis=0), atol=1e-6)
        np.testing.assert_allclose(episode.returns, reward.sum(axis=0), atol=1e-6)
        np.testing.assert_array_equal([row.discount for row in rows[1:]], discount)
        shown = np.array([row.acts for row in rows])
        if turns:  # the environment decides which seat would have moved after the end
            np.testing.assert_array_equal(shown[:-1], acts[:-1])
            assert (shown[-1] == 1).sum() == 1 and (shown[-1] <= acts[-1]).all()
            np.testing.assert_array_equal(shown[-1] == 2, acts[-1] == 2)
        else:
            np.testing.assert_array_equal(shown, acts)
        assert episode.terminated == (not plan.truncated)
        for k, row in enumerate(rows):
            living = shown_living(plan, k)
            truth = [[k + 1, i + 1] if names[i] in living else [0, 0] for i in order]
            np.testing.assert_array_equal(row.seen, truth)


@pytest.mark.parametrize("death", ["ends", "team"])
@pytest.mark.parametrize("form", ["ParallelGame", "TurnGame", "LateTurnGame"])
def test_rows_equal_the_played_game(form: str, death: str) -> None:
    check_against_the_truth(form, death, 100)


@pytest.mark.nightly
@pytest.mark.parametrize("death", ["ends", "team"])
@pytest.mark.parametrize("form", ["ParallelGame", "TurnGame", "LateTurnGame"])
def test_rows_equal_the_played_game_in_ten_thousand_episodes(form: str, death: str) -> None:
    check_against_the_truth(form, death, 10_000)


TRIO = tuple(Seat(name, ArraySpec((1,), "float32"), Discrete(2), name[:-2]) for name in ("red_0", "red_1", "blue_0"))


@pytest.mark.parametrize("by_limit", [False, True])
@pytest.mark.parametrize("turns", [None, [True, True, True], [False, True, False]])
@pytest.mark.parametrize(
    ("death", "died", "last"),
    [
        ("team", [1, 0, 0], [2, 1, 1]),
        ("team", [0, 0, 1], [1, 1, 0]),
        ("ends", [1, 0, 0], [0, 1, 1]),
        ("team", [1, 1, 1], [1, 1, 1]),  # this is a termination
    ],
)
def test_a_seat_that_dies_as_the_episode_is_truncated_is_out(death, died, last, turns, by_limit: bool) -> None:
    rows = GameRows(GameSpec(TRIO, "trio", death=death), EnvConfig(max_episode_steps=1 if by_limit else None), 1, None)
    seen = {"all": np.zeros((1, 3, 1), np.float32)}
    turn = None if turns is None else np.array([turns])
    rows.opened(seen, turns=turn)
    dead = np.array([died], bool)
    cut = np.zeros((1, 3), bool) if by_limit else ~dead
    step = rows.step(seen, np.zeros((1, 3)), dead, cut, turns=turn)
    wanted = [kind if kind != 1 or turns is None else int(turns[i]) for i, kind in enumerate(last)]
    assert step.acts.tolist() == [wanted] and step.episodes[0].terminated == all(died)


@pytest.mark.parametrize(
    ("form", "fault", "told"),
    [
        ("ParallelGame", "cut", r"truncated seat 'a_\d' in step 1 of its episode, while others play on"),
        ("TurnGame", "cut", r"truncated seat 'a_\d' in step 1 of its episode, while others play on"),
        ("ParallelGame", "revive", r"has seat 'a_\d' in the game after it had ended, or joined late"),
        ("ParallelGame", "vanish", r"dropped 'a_\d' from `agents` without terminating or truncating it"),
        ("ParallelGame", "unseen", r"returned no observation of seat 'a_\d', which lives"),
        ("ParallelGame", "unseen last", r"returned no observation of seat 'a_\d', which lives"),
        ("ParallelGame", "reward", r"returned float64 \[1\] array\(\[1\.\]\) as reward of 'a_\d'; expected a number"),
        ("WithState", "state", r"\(global state\) returned .*declares shape \[3\]"),
        ("Masked", "none", r"lets seat 'a_\d' act but allows no action"),
    ],
)
def test_contract_violations_are_refused(form: str, fault: str, told: str) -> None:
    game = make_game(EnvConfig(GAMES + form, kwargs={"fault": fault}), 2, 0)
    with pytest.raises(EnvironmentFault, match=told + r".*slot|slot.*" + told):
        for _ in episodes_of(game, 60):
            pass


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("made", r":Raises' raised RuntimeError when it was made with kwargs \{'fault': 'made'\}: no display"),
        ("reset", r":Raises' \(slot 0, .*seed \d+\) raised RuntimeError in reset: no level.*_games\.py, line \d+"),
    ],
)
def test_errors_before_the_first_step_are_named(fault: str, told: str) -> None:
    with pytest.raises(EnvironmentFault, match=told):
        make_game(EnvConfig(GAMES + "Raises", kwargs={"fault": fault}), 2, 0)


def test_masks_in_info_apply_to_acting_seats() -> None:
    game = make_game(EnvConfig(GAMES + "Masked"), 4, 0)
    rng, step, closed = np.random.default_rng(0), game.reset(), 0
    for _ in range(100):
        last = np.isin(np.arange(4), [episode.slot for episode in step.episodes])
        for i, name in enumerate(game.spec.names):
            masks = step.observation[name]["action_mask"][:, 0]
            shut = (step.acts[:, i] == 1) & ~last
            np.testing.assert_array_equal(masks[shut], np.tile([0, 1, 0], (shut.sum(), 1)))
            assert (masks[~shut] == 1).all()
            closed += int((~shut).sum())
        step = random_step(game, step, rng)
    assert closed > 0


def test_the_last_observation_before_a_time_limit_keeps_its_mask() -> None:
    pytest.importorskip("pettingzoo")
    pytest.importorskip("pygame")
    game = make_game(EnvConfig("pettingzoo:pettingzoo.classic.tictactoe_v3", max_episode_steps=3), 1, 0)
    step = game.reset()
    for move in [0, 3, 1]:
        step = game.step({name: np.array([[move]]) for name in game.spec.names})
    assert step.episodes and not step.episodes[0].terminated and step.acts[0].tolist() == [0, 1]
    masks = [step.observation[name]["action_mask"][0, 0].tolist() for name in game.spec.names]
    assert masks == [[1] * 9, [0, 0, 1, 0, 1, 1, 1, 1, 1]]


# rows by hand: crosses on 0, 1, 2; noughts on 3, 4 -> player_1 wins with the fifth move
TICTACTOE = [  # (acts, reward, discount) of row 0 and of the row after each move
    ([1, 0], [0, 0], [1, 1]),
    ([0, 1], [0, 0], [1, 1]),
    ([1, 0], [0, 0], [1, 1]),
    ([0, 1], [0, 0], [1, 1]),
    ([1, 0], [0, 0], [1, 1]),
    ([0, 1], [1, -1], [0, 0]),
    ([1, 0], [0, 0], [1, 1]),
]


def test_tic_tac_toe_by_hand() -> None:
    pytest.importorskip("pettingzoo")
    pytest.importorskip("pygame")
    game = make_game(EnvConfig("pettingzoo:pettingzoo.classic.tictactoe_v3"), 1, 0)
    steps = [game.reset()]
    boards = [steps[0].observation["player_2"]["observation"][0, 0].copy()]
    masks = [steps[0].observation["player_1"]["action_mask"][0, 0].tolist()]
    for move in [0, 3, 1, 4, 2, 7]:
        steps.append(game.step({name: np.array([[move]]) for name in game.spec.names}))
        boards.append(steps[-1].observation["player_2"]["observation"][0, 0].copy())
        masks.append(steps[-1].observation["player_1"]["action_mask"][0, 0].tolist())
    for step, (acts, reward, discount) in zip(steps, TICTACTOE, strict=True):
        assert (step.acts[0].tolist(), step.reward[0].tolist(), step.discount[0].tolist()) == (acts, reward, discount)
    assert [bool(step.is_first[0]) for step in steps] == [True, *[False] * 5, True]
    assert masks[0] == masks[1] == masks[5] == masks[6] == [1] * 9 and masks[2] == [0, 1, 1, 0, 1, 1, 1, 1, 1]
    # the waiting player sees the board: channel 0 has its own marks, channel 1 the other's
    assert boards[5][..., 1].ravel().tolist() == [1, 1, 1, 0, 0, 0, 0, 0, 0]
    assert boards[5][..., 0].ravel().tolist() == [0, 0, 0, 1, 1, 0, 0, 0, 0] and not boards[6].any()
    (episode,) = steps[5].episodes
    assert (episode.returns, episode.length, episode.terminated) == ((1.0, -1.0), 5, True)


@pytest.mark.parametrize("api", ["parallel", "aec"])
def test_mpe2_aec_and_parallel_equal_the_particle_world(api: str) -> None:
    pytest.importorskip("mpe2")
    config = EnvConfig("pettingzoo:mpe2.simple_spread_v3", kwargs={"max_cycles": 4, "api": api})
    game = make_game(config, 2, 0)
    own = make_game(EnvConfig("particle:simple_spread_v3", kwargs={"max_cycles": 4}), 2, 0)
    assert game.spec.seats[0].observation == own.spec.seats[0].observation and game.spec.state == own.spec.state
    rng, step, closed = np.random.default_rng(0), game.reset(), []
    for _ in range(30):
        closed += step.episodes
        if api == "parallel":
            assert (step.acts == 1).all()
        else:
            assert (step.acts.sum(axis=1) == 1).all()
        step = random_step(game, step, rng)
    assert closed and all(not e.terminated and e.length == (4 if api == "parallel" else 12) for e in closed)


def test_turn_based_and_simultaneous_rewards_are_equal() -> None:
    pytest.importorskip("mpe2")
    together, in_turn = (
        make_game(EnvConfig("pettingzoo:mpe2.simple_tag_v3", kwargs={"api": api}), 1, 0) for api in ("parallel", "aec")
    )
    together.reset(), in_turn.reset()
    moves = np.random.default_rng(0).integers(0, 5, (25, 4))
    moves[:, 3] = 2  # the prey leaves the screen and is penalised
    for move in moves:
        at_once = together.step({name: move[i].reshape(1, 1) for i, name in enumerate(together.spec.names)})
        reward = np.zeros(4)
        for i in range(4):  # only the mover's action matters
            step = in_turn.step({name: move[i].reshape(1, 1) for name in in_turn.spec.names})
            reward += step.reward[0]
        np.testing.assert_allclose(reward, at_once.reward[0], atol=1e-6)
    assert len(set(step.episodes[0].returns)) > 1
    np.testing.assert_allclose(step.episodes[0].returns, at_once.episodes[0].returns, atol=1e-6)


def test_time_limits_and_metrics() -> None:
    config = EnvConfig(GAMES + "ParallelGame", max_episode_steps=2, episode_metrics=("level:sum",))
    game = make_game(config, 4, 0)
    cut = [
        (rows, episode) for _, rows, episode in episodes_of(game, 50) if episode.length == 2 and not episode.terminated
    ]
    assert cut and all(episode.metrics == {"level:sum": 2.0} for _, episode in cut)
    for rows, _ in cut:
        assert rows[-1].acts.any() and (rows[-1].discount[rows[-1].acts == 1]).any()


@pytest.mark.parametrize(
    ("config", "error", "told"),
    [
        (
            EnvConfig("pettingzoo:no_such_suite.thing_v0"),
            MissingExtra,
            r"named 'no_such_suite'\)\. Check the module's name",
        ),
        (
            EnvConfig("pettingzoo:tests.envs.seat_game"),
            ConfigError,
            "no module tests.envs.seat_game; nearest: tests.*seat_games",
        ),
        (EnvConfig("pettingzoo:tests.envs.seat_games"), ConfigError, "has no parallel_env and no env"),
        (EnvConfig("pettingzoo:tests.envs.scripted:Counting"), ConfigError, "without `possible_agents`"),
        (EnvConfig(GAMES + "ParallelGame", kwargs={"death": "never"}), ConfigError, "death is ends or team"),
        (
            EnvConfig(GAMES + "ParallelGame", kwargs={"sides": {"a_?": "red", "b_*": "blue"}}),
            ConfigError,
            "sides has 'b_.', which matches none of its agents a_0, a_1",
        ),
        (EnvConfig(GAMES + "ParallelGame", kwargs={"size": 3}), ConfigError, "could not be made with .*size"),
        (EnvConfig("tests.envs.seat_games:ParallelGame"), ConfigError, "pettingzoo:tests.envs.seat_games:ParallelGame"),
        (EnvConfig("CartPole-v1"), ConfigError, "has one agent"),
    ],
)
def test_invalid_configs_are_refused(config: EnvConfig, error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        make_game(config, 1, 0)


def seat(name: str, size: int = 3, actions: int = 2) -> Seat:
    return Seat(name, {"place": ArraySpec((size,), "float32")}, Discrete(actions))


GAME = GameSpec(
    (seat("a"), seat("b", size=4), seat("c"), seat("d", actions=5)), "game", state=ArraySpec((2,), "float32")
)


def test_equal_seats_are_stacked_in_the_given_order() -> None:
    assert GAME.index(("c", "a")) == (2, 0)
    view = GAME.view(("c", "a"))
    assert view.observation == {"place": ArraySpec((2, 3), "float32")}
    assert (view.num_agents, view.action, view.state) == (2, Discrete(2), ArraySpec((2,), "float32"))
    assert GAME.view(("b",)).num_agents == 1


@pytest.mark.parametrize(("other", "leaf"), [("b", "observation/place"), ("d", "action is")])
def test_different_seats_are_refused_with_the_differing_leaf(other: str, leaf: str) -> None:
    with pytest.raises(ConfigError, match=rf"the seats a and {other} of 'game' cannot be played by one policy: {leaf}"):
        GAME.view(("a", other))


def test_seat_names_are_unique() -> None:
    with pytest.raises(ConfigError, match=r"has the seats \['a', 'a'\]; give at least one, each with a unique name"):
        GameSpec((seat("a"), seat("a")), "game")


def test_only_actions_that_count_must_be_finite():
    """Slot 0 acts, slot 1 has ended, and in slot 2 only the first seat acts."""
    acts = np.array([[1, 1], [1, 1], [1, 0]], np.uint8)
    zeros, first = np.zeros((3, 2), np.float32), np.zeros(3, bool)
    part = EnvStep(zeros, first, zeros, zeros, acts, [Episode(1, 0.0, 1, True)])
    action = np.zeros((3, 2, 1), np.float32)
    action[1, 0] = action[2, 1] = np.nan
    assert finite_actions(action, part) is action
    action[2, 0] = -np.inf
    with pytest.raises(AgentFault, match=r"chose \[-inf\] for slot 2; expected finite actions"):
        finite_actions(action, part)
