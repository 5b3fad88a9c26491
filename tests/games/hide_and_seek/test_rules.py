"""Preparation, rewards, bounds, episode ends, statistics, and invalid states."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from jsrl.envs.check import check_env, random_actions
from jsrl.envs.config import EnvConfig
from jsrl.envs.make import make_game
from jsrl.errors import ConfigError
from jsrl.games.hide_and_seek.settings import settings_of
from tests.games.hide_and_seek.scenes import EAST, NORTH, SOUTH, STILL, WEST, act, centre, scene

pytest.importorskip("mujoco")

WILD = (10, 0, 10, 1, 1)


def prepared(step) -> float:
    return float(step.observation["seeker_0"]["observation_self"][0, 0, 9])


@pytest.mark.parametrize(("scenario", "length"), [("quadrant", 32), ("randomwalls", 96)])
def test_seekers_wait_while_hiders_prepare(scenario: str, length: int) -> None:
    horizon = settings_of(scenario, {}).horizon
    game = scene(
        [(1, 1), (4, 4.5)], boxes=[(4, 4)], walls=[], scenario=scenario, prep_fraction=0.4, horizon=horizon, hiders=1
    )
    start, shown = game.worlds.position[0].copy(), [prepared(game.refresh())]
    assert shown == [0.0]
    for k in range(1, length + 1):
        step = act(game, STILL, WILD)
        shown.append(prepared(step))
        assert not step.reward.any(), k
    moved = np.abs(game.worlds.position[0] - start)
    assert moved[1:, [0, 1, 3]].max() < 1e-6 and moved[1:, 2].max() < 1e-3
    assert not game.hands.locked.any() and (game.hands.held == -1).all()
    step = act(game, STILL, WILD)
    assert np.abs(step.reward).tolist() == [[1.0, 1.0]] and prepared(step) == 1.0
    assert np.abs(game.worlds.position[0, 1] - start[1]).max() > 0.01
    assert (np.diff(shown) > 0).all() and shown[-1] < 1.0


def test_seekers_may_skip_rows_of_the_preparation_phase() -> None:
    config = EnvConfig("hide_and_seek:empty", kwargs={"horizon": 10, "seekers_wait": True})
    game = make_game(config, 2, 0, groups=EVERYBODY)
    rng, step = np.random.default_rng(0), game.reset()
    acts = [step.acts[0].tolist()]
    for _ in range(11):
        step = game.step(random_actions(game, step.observation, rng))
        acts.append(step.acts[0].tolist())
    assert acts == [[1, 1, 0, 0]] * 4 + [[1, 1, 1, 1]] * 7 + [[1, 1, 0, 0]]
    assert not any("waited" in note for note in check_env(config, steps=30).notes)


def test_rewards_follow_visibility() -> None:
    game = make_game(EnvConfig("hide_and_seek:empty", kwargs={"prep_fraction": 0.0}), 8, 0, groups=EVERYBODY)
    rng, step, seen = np.random.default_rng(0), game.reset(), set()
    for _ in range(40):
        step = game.step(random_actions(game, step.observation, rng))
        caught = game.sight.seen[:, 2:, :2].any(axis=(1, 2))
        np.testing.assert_array_equal(step.reward, np.where(caught[:, None], [-1, -1, 1, 1], [1, 1, -1, -1]))
        seen |= set(caught.tolist())
    assert seen == {True, False}


def test_near_option_limits_the_distance_at_which_hiders_count_as_seen() -> None:
    far, near = ([(1, 3), (x, 3, WEST)] for x in (3.2, 2.8))  # the seeker looks at the hider
    for agents, reward in ((far, [1.0, -1.0]), (near, [-1.0, 1.0])):
        game = scene(agents, walls=[], reward_range=2.0)
        assert act(game).reward[0].tolist() == reward
        assert game.sight.seen[0, 1, 0]
    with pytest.raises(ConfigError, match="reward_range is 0; give a positive, finite number"):
        settings_of("empty", {"reward_range": 0})


def test_reward_of_a_seen_hider_may_fall_with_distance() -> None:
    for x, worth in ((2.0, 0.75), (3.0, 0.5), (5.5, 0.0)):
        game = scene([(1, 3), (x, 3, WEST)], walls=[], reward_range=4.0, reward_falls=True)
        step = act(game)
        assert step.reward[0] == pytest.approx([1.0 - 2.0 * worth, 2.0 * worth - 1.0], abs=0.02)
    unseen = scene([(1, 3), (2, 3, EAST)], walls=[], reward_range=4.0, reward_falls=True)
    assert act(unseen).reward[0].tolist() == [1.0, -1.0]
    with pytest.raises(ConfigError, match="reward_falls needs a reward_range"):
        settings_of("empty", {"reward_falls": True})


def test_each_seeker_may_earn_by_what_it_sees_itself() -> None:
    agents = [(3, 3), (4, 3, WEST), (5, 3, EAST), (3, 5, SOUTH)]  # a hider, and seekers of which the second looks away
    for each, earned in ((False, [0.5, 0.5, 0.5]), (True, [0.5, -1.0, 0.0])):
        game = scene(agents, walls=[], reward_range=4.0, reward_falls=True, reward_each=each)
        assert act(game).reward[0] == pytest.approx([-0.5, *earned], abs=0.02)


EVERYBODY = {"all": ("hider_0", "hider_1", "seeker_0", "seeker_1")}


def test_agents_outside_are_penalised_alone_in_the_main_game() -> None:
    agents = [(13, 3, EAST), (3, 3, EAST), (4, 4, NORTH)]
    game = scene(agents, walls=[], scenario="randomwalls", hiders=2)
    assert act(game).reward.tolist() == [[-10.0, 1.0, -1.0]]
    for x, lost in ((12.02, True), (11.98, False), (-5.98, False), (-6.02, True)):  # of the centre
        game = scene([(x, 3, EAST), *agents[1:]], walls=[], scenario="randomwalls", hiders=2)
        assert (act(game).reward[0, 0] == -10.0) == lost
    early = scene(agents, walls=[], scenario="randomwalls", hiders=2, prep_fraction=0.4)
    assert not act(early).reward.any()


@pytest.mark.parametrize("body", [2, 3, 4])
def test_object_outside_penalises_everybody_in_the_quadrant(body: int) -> None:
    game = scene([(3, 3), (4, 4)], ramps=[(1, 4)], boxes=[(2, 2), (1, 1)], walls=[], scenario="quadrant")
    assert np.abs(act(game).reward).max() == 1.0
    game.worlds.worlds[0].simulation.qpos[4 * body] = 7.0
    assert act(game).reward.tolist() == [[-10.0, -10.0]]


METRICS = (
    *(
        f"{name}{when}"
        for name in ("max_box_move", "num_box_lock", "max_ramp_move", "num_ramp_lock")
        for when in ("_prep", "")
    ),
    *("hider_return", "seeker_return", "seen_share", "nearest_distance"),
    *("out_of_bounds_share", "grab_share", "discard_episode"),
)


def test_the_statistics_of_a_scripted_episode() -> None:
    """A hider drags a box for ten steps, and locks it in the step after the preparation, when its statistics are taken."""
    config = EnvConfig("hide_and_seek:empty", kwargs=SCRIPTED, episode_metrics=METRICS)
    pattern = scene([(2.55, 3, EAST), (1, 5.5)], boxes=[(3, 3)], **SCRIPTED, walls=[])
    game = make_game(config, 1, 0)
    game.reset()
    game.put(0, pattern.worlds.worlds[0])
    game.refresh()
    begin, moved, step = centre(game, 2).copy(), None, None
    for k in range(1, 51):
        step = act(game, (1, 5, 5, 1, 0) if k <= 10 else (5, 5, 5, 1, 0) if k <= 20 else (5, 5, 5, 0, 1))
        if k == 21:
            moved = float(np.linalg.norm(centre(game, 2) - begin))
        assert bool(step.episodes) == (k == 50)
    (episode,) = step.episodes
    told = episode.metrics
    assert not episode.terminated and episode.length == 50 and sorted(told) == sorted(METRICS)
    assert moved > 1.0 and told["max_box_move_prep"] == pytest.approx(moved)
    assert told["max_box_move"] == pytest.approx(moved, abs=0.01)
    assert told["num_box_lock_prep"] == told["num_box_lock"] == 1.0 and told["max_ramp_move"] == 0.0
    assert told["grab_share"] == pytest.approx(20 / 50 / 2) and told["out_of_bounds_share"] == 0.0
    assert (told["hider_return"], told["seeker_return"]) == pytest.approx(episode.returns)
    assert told["seeker_return"] == pytest.approx(30 * (2 * told["seen_share"] - 1))


SCRIPTED = {
    "n_hiders": 1,
    "n_seekers": 1,
    "n_boxes": 1,
    "horizon": 50,
    "prep_fraction": 0.4,
    "restrict_rect": None,
}


@pytest.mark.parametrize("speed", [np.nan, 2e10])  # damping makes the second one valid again within the env step
def test_an_invalid_state_ends_its_episode_and_is_counted(speed: float, tmp_path, monkeypatch, capfd) -> None:
    monkeypatch.chdir(tmp_path)  # MuJoCo writes its log there
    config = EnvConfig("hide_and_seek:empty", kwargs={"prep_fraction": 0.0}, episode_metrics=("discard_episode",))
    game = make_game(config, 2, 0, groups=EVERYBODY)
    rng, step = np.random.default_rng(0), game.reset()
    step = game.step(random_actions(game, step.observation, rng))
    before = game.worlds.position[1].copy()
    game.worlds.worlds[1].simulation.qvel[0] = speed
    step = game.step(random_actions(game, step.observation, rng))
    np.testing.assert_array_equal(game.worlds.position[1], before)
    assert game.discarded == 1 and not step.reward[1].any() and step.reward[0].all() and (step.discount == 1).all()
    assert [(e.slot, e.length, e.terminated, e.metrics) for e in step.episodes] == [
        (1, 2, False, {"discard_episode": 1.0})
    ]
    step = game.step(random_actions(game, step.observation, rng))
    assert step.is_first.tolist() == [False, True] and not game.worlds.broken.any()
    for _ in range(5):
        step = game.step(random_actions(game, step.observation, rng))
        assert step.reward.all()


def test_shorter_limit_ends_episodes_with_statistics() -> None:
    config = EnvConfig("hide_and_seek:empty", max_episode_steps=3, episode_metrics=("seen_share", "max_box_move"))
    game = make_game(config, 2, 0, groups=EVERYBODY)
    rng, step, ended = np.random.default_rng(0), game.reset(), []
    for t in range(1, 9):
        step = game.step(random_actions(game, step.observation, rng))
        ended += [(t, episode.length, sorted(episode.metrics)) for episode in step.episodes]
        assert not step.reward.any(), "the preparation is as long as without the limit"
    assert ended == [(t, 3, ["max_box_move", "seen_share"]) for t in (3, 3, 7, 7)]


def test_unknown_statistics_are_refused() -> None:
    config = EnvConfig("hide_and_seek:empty", episode_metrics=("seen_share:mean", "num_boxes_lock"))
    with pytest.raises(ConfigError, match=r"episode_metrics has 'num_boxes_lock'.*num_box_lock.*task_score"):
        make_game(config, 1, 0)


@pytest.mark.slow
def test_a_closed_game_frees_its_worlds() -> None:
    game = make_game(EnvConfig("hide_and_seek:empty"), 1, 0)
    game.reset()
    world = weakref.ref(game.worlds.worlds[0].simulation)
    game.close()
    game.close()
    gc.collect()
    assert world() is None


def test_actions_out_of_range_are_refused() -> None:
    from jsrl.errors import EnvironmentFault

    game = scene([(2, 3, EAST), (4, 3, WEST)])
    with pytest.raises(
        EnvironmentFault,
        match=r"given action \[5, 5, 11, 0, 0\] for seat 'hider_0'. Expected 0 to \[10, 10, 10, 1, 1\]",
    ):
        act(game, (5, 5, 11, 0, 0))
