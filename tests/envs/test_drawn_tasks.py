"""`env.tasks`: each episode gets a task drawn by weight, the same for the same seed."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from jsrl.envs.config import EnvConfig
from jsrl.envs.make import make
from jsrl.errors import ConfigError
from jsrl.references.reference import from_json, to_json

TASKS = ({"length": 2}, {"length": 5}, {"length": 9})


def lengths(config: EnvConfig, seed: int, slots: int = 3, steps: int = 900) -> list[tuple[int, int]]:
    """Return (slot, length) of the episodes in order."""
    env = make(config, slots, seed, group=1)
    env.reset()
    shape = (slots, *env.spec.action.array.shape)
    found = [env.step(np.zeros(shape, np.float32)).episodes for _ in range(steps)]
    env.close()
    return [(episode.slot, episode.length) for episodes in found for episode in episodes]


def test_tasks_are_drawn_by_weight_and_by_seed() -> None:
    config = EnvConfig("tests.duel:Walk", tasks=TASKS, task_weights=(3, 1, 1))
    seen = lengths(config, 0)
    counts = Counter(length for _, length in seen)
    assert set(counts) == {2, 5, 9} and 0.5 < counts[2] / len(seen) < 0.7
    assert seen == lengths(config, 0) != lengths(config, 1)
    assert [length for slot, length in seen if slot == 0][:20] != [length for slot, length in seen if slot == 1][:20]
    assert from_json(to_json(config)) == config


def test_games_draw_tasks_too() -> None:
    game = make(EnvConfig("tests.duel:Duel", tasks=({"length": 3},)), 2, 0, groups={"all": ("left", "right")})
    game.reset()
    ended = [game.step({"all": np.zeros((2, 2, 1), np.float32)}).episodes for _ in range(8)]
    assert [len(episodes) for episodes in ended] == [0, 0, 2, 0, 0, 0, 2, 0]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"id": "matrix:rps", "tasks": (1,)}, "'matrix:rps' takes no tasks"),
        ({"tasks": (1, 2), "task_weights": (1.0,)}, "for 2 tasks; give one number above 0 for each"),
        ({"tasks": (1,), "task_weights": (0.0,)}, "give one number above 0"),
    ],
)
def test_invalid_options_are_refused(options: dict, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        make(EnvConfig(**options), 1, 0)
