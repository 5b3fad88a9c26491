"""Random legal actions, for checks and for tests."""

from __future__ import annotations

import numpy as np

from jsrl.envs.base import VectorGame
from jsrl.types import Continuous, Discrete, EnvSpec, MultiDiscrete, Tree, map_tree, named_leaves


def random_actions(spec: EnvSpec, observation: Tree, rng: np.random.Generator) -> np.ndarray:
    """Draw legal actions [B, ...] for observations [B, ...]; continuous ones exceed their bounds on purpose."""
    num_envs = len(next(leaf for _, leaf in named_leaves(observation)))
    masks = observation.get("action_mask") if isinstance(observation, dict) else None
    action = spec.action
    if isinstance(action, Continuous):
        return rng.normal(0.0, 2.0, (num_envs, len(action.low))).astype(np.float32)
    nums = (action.num_actions,) if isinstance(action, Discrete) else action.nums
    columns, start = [], 0
    for num in nums:
        score = rng.random((num_envs, num))
        if masks is not None:
            score = np.where(masks[:, start : start + num] > 0, score, -1.0)
        columns.append(score.argmax(axis=1).astype(np.int32))
        start += num
    return np.stack(columns, axis=1) if isinstance(action, MultiDiscrete) else columns[0]


def random_joint_actions(
    game: VectorGame, observation: dict[str, Tree], rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """Draw legal actions, group -> [B, N_g, ...], for observations group -> [B, N_g, ...]."""
    return {
        group: np.stack(
            [
                random_actions(game.spec.view((seat,)), map_tree(lambda leaf: leaf[:, i], observation[group]), rng)  # noqa: B023
                for i, seat in enumerate(seats)
            ],
            axis=1,
        )
        for group, seats in game.groups.items()
    }
