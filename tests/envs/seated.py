"""A game with four different seats whose numbers all follow from the actions; given by reference."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from jsrl.envs.base import Episode, GameStep
from jsrl.envs.rows import slot_seeds
from jsrl.types import ArraySpec, Continuous, Discrete, GameSpec, Seat

LENGTH = 7  # actions of an episode
SEATS = (
    Seat("scout", ArraySpec((3,), "float32"), Discrete(4)),
    Seat("carrier_0", {"load": ArraySpec((2,), "float32")}, Discrete(3)),
    Seat("carrier_1", {"load": ArraySpec((2,), "float32")}, Discrete(3)),
    Seat("boss", ArraySpec((4,), "float32"), Continuous((-1.0, -1.0), (1.0, 1.0))),
)
UNLIKE = {"scout": ("scout",), "carriers": ("carrier_0", "carrier_1"), "boss": ("boss",)}


class Depot:
    """Every seat should match a secret number of its slot; a seat's action changes the secrets of the others.

    Slots are not in phase: slot b starts b steps into its first episode. Even episodes are truncated.
    """

    def __init__(
        self, num_envs: int, seed: int = 0, group: int = 0, groups: Mapping[str, tuple[str, ...]] | None = None
    ):
        self.spec = GameSpec(SEATS, "depot")
        self.num_envs = num_envs
        self.groups = {seat.name: (seat.name,) for seat in SEATS} if groups is None else dict(groups)
        self._secret = np.array(slot_seeds(seed, group, num_envs), np.int64) % 97
        self._age = np.arange(num_envs) % LENGTH
        self._count = np.zeros(num_envs, np.int64)
        self._opens = np.zeros(num_envs, bool)
        self._returns = np.zeros((num_envs, len(SEATS)))

    def reset(self) -> GameStep:
        zeros = np.zeros((self.num_envs, len(SEATS)), np.float32)
        self._opens[:], self._age = False, np.arange(self.num_envs) % LENGTH
        return self._shown(np.ones(self.num_envs, bool), zeros, zeros + 1.0, [])

    def step(self, action: Mapping[str, np.ndarray]) -> GameStep:
        assert set(action) == set(self.groups)
        by_seat = {}
        for group, names in self.groups.items():
            assert len(action[group]) == self.num_envs and action[group].shape[1] == len(names)
            by_seat |= {name: action[group][:, place] for place, name in enumerate(names)}
        first, self._opens = self._opens, np.zeros(self.num_envs, bool)
        boss = np.rint(3 * by_seat["boss"].clip(-1, 1).sum(-1)).astype(np.int64)
        moves = np.stack([by_seat["scout"], by_seat["carrier_0"], by_seat["carrier_1"], boss], -1).astype(np.int64)
        wanted = (self._secret[:, None] + np.arange(4)) % np.array([4, 3, 3, 7])
        reward = (moves == wanted).astype(np.float32) - 0.1 * np.abs(moves - wanted)
        self._secret = np.where(first, self._secret, (5 * self._secret + moves.sum(-1) + 1) % 97)
        reward[first] = 0.0
        self._returns = np.where(first[:, None], 0.0, self._returns) + reward
        self._age = np.where(first, 0, self._age + 1)
        over = self._age == LENGTH
        terminated = over & (self._count % 2 == 1)
        episodes = [
            Episode(
                int(b),
                float(self._returns[b].mean()),
                LENGTH,
                bool(terminated[b]),
                {},
                tuple(self._returns[b].tolist()),
            )
            for b in np.flatnonzero(over)
        ]
        self._count += over
        self._opens = over
        discount = np.repeat(1.0 - terminated.astype(np.float32), len(SEATS)).reshape(self.num_envs, -1)
        return self._shown(first, reward.astype(np.float32), discount.astype(np.float32), episodes)

    def _shown(self, first, reward, discount, episodes) -> GameStep:
        secret, age = self._secret.astype(np.float32), self._age.astype(np.float32)
        seen = {
            "scout": np.stack([secret % 4, age, secret / 97], -1),
            "carrier_0": {"load": np.stack([(secret + 1) % 3, age], -1)},
            "carrier_1": {"load": np.stack([(secret + 2) % 3, age], -1)},
            "boss": np.stack([secret % 7, age, -age, secret / 97], -1),
        }
        stacked = {}
        for group, names in self.groups.items():
            parts = [seen[name] for name in names]
            if isinstance(parts[0], dict):
                stacked[group] = {"load": np.stack([part["load"] for part in parts], 1)}
            else:
                stacked[group] = np.stack(parts, 1)
        acts = np.ones((self.num_envs, len(SEATS)), np.uint8)
        return GameStep(stacked, first, reward, discount, acts, (), episodes)

    def close(self) -> None: ...
