"""An environment of your own with two seats that differ, and a policy for each: `python examples/own_game.py`.

A guide sees where a goal is, and says one of three words. A walker hears the last word, sees nothing else, and steps left,
stays or steps right. Both earn 1 in each step in which the walker is at the goal. They agree on a language: chance earns
about 2 of 20, the best policies about 16.

The environment steps all its games in one NumPy call (`jsrl.extend.VectorGame`). docs/policies.md has one that is stepped
alone, in the form of PettingZoo, and one policy for several seats; docs/populations.md has self-play.
"""

import argparse

import numpy as np

import jsrl
from jsrl.extend import ArraySpec, Discrete, Episode, GameSpec, GameStep, Seat

PLACES, WORDS, LIMIT = 9, 3, 20
WALKER = Seat("walker", ArraySpec((WORDS,), "float32"), Discrete(3), side="team")  # hears the last word, one-hot
GUIDE = Seat("guide", ArraySpec((WORDS + 1,), "float32"), Discrete(WORDS), side="team")  # and how far away the goal is


class GuidedWalk:
    """B games. The next step after an episode's end ignores the actions, and begins the next episode.

    Args:
      num_envs: B. seed, group: of this vector: each has random numbers of its own.
      groups: policy -> the names of its seats, whose observations are stacked.
    """

    spec = GameSpec((GUIDE, WALKER), "guided walk")

    def __init__(self, num_envs, seed, group, groups=None):
        """Prepare the games."""
        self.num_envs = num_envs
        self.groups = groups or {seat: (seat,) for seat in self.spec.names}
        self.rng = np.random.default_rng([*np.atleast_1d(seed), group])
        self.goal, self.place, self.word, self.length = np.zeros((4, num_envs), int)
        self.earned = np.zeros(num_envs)

    def reset(self):
        """Begin an episode in every game."""
        self.over = np.ones(self.num_envs, bool)
        return self.step({group: np.zeros((self.num_envs, len(seats)), int) for group, seats in self.groups.items()})

    def step(self, action):
        """Step all games; `action`: policy -> [B, number of its seats]."""
        chosen = {
            seat: action[group][:, number] for group, seats in self.groups.items() for number, seat in enumerate(seats)
        }
        first, games = self.over, self.num_envs
        self.goal = np.where(first, self.rng.integers(0, PLACES, games), self.goal)
        moved = np.clip(self.place + chosen["walker"] - 1, 0, PLACES - 1)
        self.place = np.where(first, self.rng.integers(0, PLACES, games), moved)
        self.word = np.where(first, 0, chosen["guide"])
        reward = np.where(first, 0.0, self.place == self.goal).astype(np.float32)
        self.length, self.earned = np.where(first, 0, self.length + 1), np.where(first, 0.0, self.earned + reward)
        self.over = self.length == LIMIT  # the time is up: truncated, so that no discount is 0
        episodes = [
            Episode(int(game), float(self.earned[game]), LIMIT, False, returns=(float(self.earned[game]),) * 2)
            for game in np.flatnonzero(self.over)
        ]
        both = (games, len(self.spec.seats))
        return GameStep(
            observation=self.seen(),
            is_first=first,
            reward=np.repeat(reward[:, None], 2, axis=1),
            discount=np.ones(both, np.float32),
            acts=np.ones(both, np.uint8),
            state=(),
            episodes=episodes,
        )

    def seen(self):
        """Return policy -> observations [B, number of its seats, ...]."""
        word, distance = np.eye(WORDS, dtype=np.float32)[self.word], (self.goal - self.place) / PLACES
        seats = {"guide": np.column_stack([word, distance]).astype(np.float32), "walker": word}
        return {group: np.stack([seats[name] for name in names], axis=1) for group, names in self.groups.items()}

    def close(self):
        """Free nothing."""


def experiment(total_env_steps=200_000):
    """Return the experiment: PPO for each seat, with options of its own."""
    return jsrl.Experiment(
        name="guided_walk",
        env=jsrl.EnvConfig(GuidedWalk),
        policies={
            "guide": jsrl.PolicyConfig(jsrl.PPOConfig(learning_rate=1e-3, entropy_coef=0.01), seats="guide"),
            "walker": jsrl.PolicyConfig(jsrl.PPOConfig(learning_rate=1e-3, entropy_coef=0.02), seats="walker"),
        },
        num_envs=32,
        rollout_length=64,
        total_env_steps=total_env_steps,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--total-env-steps", type=int, default=200_000)
    options = parser.parse_args()
    print(jsrl.check_env(jsrl.EnvConfig(GuidedWalk)))
    print(jsrl.run(experiment(options.total_env_steps)))
