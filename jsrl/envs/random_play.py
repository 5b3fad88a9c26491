"""Random legal actions, for checks and for tests."""

from __future__ import annotations

from typing import Any

import numpy as np

from jsrl.envs.base import VectorEnv, VectorGame
from jsrl.types import Continuous, Discrete, EnvSpec, GameSpec, MultiDiscrete, Tree, map_tree, named_leaves


def random_actions(env: VectorEnv | VectorGame, observation: Tree, rng: np.random.Generator) -> Any:
    """Draw legal actions, [B, ...] or group -> [B, N_g, ...]; continuous ones exceed their bounds on purpose."""
    if not isinstance(env.spec, GameSpec):
        return _draw(env.spec, observation, rng)
    drawn = {}
    for group, seats in env.groups.items():
        columns = [map_tree(lambda leaf, i=i: leaf[:, i], observation[group]) for i in range(len(seats))]
        views = [env.spec.view((seat,)) for seat in seats]
        drawn[group] = np.stack([_draw(view, seen, rng) for view, seen in zip(views, columns, strict=True)], axis=1)
    return drawn


def _draw(spec: EnvSpec, observation: Tree, rng: np.random.Generator) -> np.ndarray:
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
