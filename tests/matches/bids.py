"""A game with known numbers: each seat earns its action at each step, and winning bids end the game early."""

from __future__ import annotations

import numpy as np

from jsrl.envs.base import Episode, GameStep
from jsrl.matches.players import Contestant, SeatPolicy
from jsrl.types import ArraySpec, Continuous, GameSpec, Seat

ACTION = Continuous((-100.0,), (100.0,))


class Bids:
    """Seats observe their position and the slot; a game lasts 2 steps if the first side is ahead, else 9."""

    def __init__(self, sides, num_envs=3):
        seats = tuple(
            Seat(f"seat_{place}", ArraySpec((2,), "float32"), ACTION, side) for place, side in enumerate(sides)
        )
        self.spec, self.num_envs = GameSpec(seats, "bids"), num_envs
        self.groups = {seat.name: (seat.name,) for seat in seats}

    def reset(self):
        self.age = np.zeros(self.num_envs, int)
        self.returns = np.zeros((self.num_envs, len(self.spec.seats)))
        self.opens = np.zeros(self.num_envs, bool)
        return self._seen(np.ones(self.num_envs, bool), [])

    def step(self, action):
        assert set(action) == set(self.groups)
        paid = np.concatenate([action[seat.name][:, :, 0] for seat in self.spec.seats], axis=1)
        first, self.opens = self.opens, np.zeros(self.num_envs, bool)
        self.returns = np.where(first[:, None], 0.0, self.returns + paid)
        self.age = np.where(first, 0, self.age + 1)
        ahead = self.returns[:, 0] > self.returns[:, -1]
        self.opens = self.age == np.where(ahead, 2, 9)
        return self._seen(
            first,
            [
                Episode(int(b), 0.0, int(self.age[b]), True, returns=tuple(self.returns[b].tolist()))
                for b in np.flatnonzero(self.opens)
            ],
        )

    def _seen(self, first, episodes):
        num = len(self.spec.seats)
        seen = {
            seat.name: np.stack([np.full((self.num_envs, 1), place), np.arange(self.num_envs)[:, None]], -1).astype(
                np.float32
            )
            for place, seat in enumerate(self.spec.seats)
        }
        ones = np.ones((self.num_envs, num), np.float32)
        return GameStep(seen, first, 0 * ones, ones, ones.astype(np.uint8), (), episodes)

    def close(self):
        pass


def bidder(name, bid, *seats):
    """Return a contestant with a policy for each of `seats` (tuples of positions) that bids `bid + position / 10`."""

    def policy(places):
        def act(observation, is_first):
            assert observation.shape[1:] == (len(places), 2) and (observation[0, :, 0] == places).all()
            return (bid + observation[:, :, :1] / 10).astype(np.float32)

        return SeatPolicy(places, act)

    return Contestant(name, tuple(policy(places) for places in seats))
