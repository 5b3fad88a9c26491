"""The duels of hide-and-seek: a policy for all seats plays one team and sees nothing of the other; tasks and classifier."""

import numpy as np
import pytest

pytest.importorskip("mujoco")

from benchmarks.hide_and_seek_duel import learned_side, make_duel
from benchmarks.hide_and_seek_transfer import classify, env_of, game_of
from jsrl.envs.config import EnvConfig
from jsrl.envs.make import make_spec
from jsrl.games.hide_and_seek.game import TASKS


class Recorded:
    """A policy of all seats that plays the seat number and records its inputs."""

    seats = ("hider_0", "hider_1", "seeker_0", "seeker_1")

    def __call__(self, observation, is_first, *, greedy, raw):
        self.seen = observation
        chosen = np.arange(len(self.seats))[None, :, None]
        return np.broadcast_to(chosen, (len(is_first), len(self.seats), 5)).copy()


def test_a_policy_of_all_seats_plays_one_team() -> None:
    game = make_duel(EnvConfig("hide_and_seek:empty"), 3, 0)
    step, policy = game.reset(), Recorded()
    for team, seats in (("hider", [0, 1]), ("seeker", [2, 3])):
        shown = step.observation[team]
        actions = learned_side(policy, team)(game, shown, step.is_first)
        assert actions.shape == (3, 2, 5) and actions[0, :, 0].tolist() == seats
        for name, leaf in policy.seen.items():
            np.testing.assert_array_equal(leaf[:, seats], shown[name])
            assert not np.delete(leaf, seats, axis=1).any()
    game.close()


def test_all_tasks_have_the_observations_of_the_game() -> None:
    game = game_of(1, 0)
    seats = [make_spec(env).seats[0] for env in (game.env, *(env_of(task, game.env) for task in TASKS))]
    assert len(seats) == 6 and all(seat.observation == seats[0].observation for seat in seats)
    assert {seat.action for seat in seats} == {seats[0].action}


def test_classifier_tells_what_the_states_contain_and_nothing_else() -> None:
    rng = np.random.default_rng(0)
    counts = rng.binomial(6, 0.5, 600)
    noise = rng.normal(size=(600, 8))
    told = noise.copy()
    told[:, 0] = counts + 0.05 * rng.normal(size=600)
    assert classify(told, counts, 150)["right"] > 0.75
    found = classify(noise, counts, 150)
    assert found["right"] < found["most frequent"] + 0.1 < 0.55
