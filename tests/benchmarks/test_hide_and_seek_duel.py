"""The duels of hide-and-seek: a policy for all seats plays one team and gets no information of the other's seats."""

import numpy as np
import pytest

pytest.importorskip("mujoco")

from benchmarks.hide_and_seek_duel import learned_side, make_duel
from jsrl.envs.config import EnvConfig


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
