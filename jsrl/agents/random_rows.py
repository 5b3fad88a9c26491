"""Random observations and trajectories of a spec that obey the row table, for checks and warm-ups."""

from __future__ import annotations

import numpy as np

from jsrl.types import (
    ArraySpec,
    Continuous,
    Discrete,
    EnvSpec,
    Trajectory,
    Tree,
    make_trajectory_spec,
    map_tree,
    named_leaves,
    spec_of,
    unflatten,
    zeros,
)


def action_nums(spec: EnvSpec) -> tuple[int, ...]:
    """Return how many actions each part of a discrete action has."""
    if isinstance(spec.action, Continuous):
        raise TypeError(f"{spec.name} has continuous actions, which have no number")
    return (spec.action.num_actions,) if isinstance(spec.action, Discrete) else spec.action.nums


def random_observation(spec: EnvSpec, rng: np.random.Generator, *leading: int) -> Tree:
    """Return observations [*leading, ...]: normal, or integers in 0..99; an action mask allows everything."""
    return _random_tree(spec.observation, rng, *leading)


def _random_tree(tree: Tree, rng: np.random.Generator, *leading: int) -> Tree:
    def draw(name: str, leaf: ArraySpec) -> np.ndarray:
        shape = (*leading, *leaf.shape)
        if name == "action_mask":
            return np.ones(shape, leaf.dtype)
        if np.issubdtype(np.dtype(leaf.dtype), np.floating):
            return rng.normal(size=shape).astype(leaf.dtype)
        return rng.integers(0, 2 if leaf.dtype == "bool" else 100, shape).astype(leaf.dtype)

    return unflatten(tree, [draw(name, leaf) for name, leaf in named_leaves(tree)])


def random_trajectory(
    spec: EnvSpec,
    rng: np.random.Generator,
    *,
    num_rows: int,
    num_envs: int,
    extras: Tree,
    core: Tree,
    weighted: bool = False,
) -> Trajectory:
    """Return a trajectory [T+1, B, ...] of random rows with episode ends in every second environment.

    Args:
      spec: the environment's. rng: draws the rows. num_rows: T. num_envs: B.
      extras: schema of `ActOutput.extras` for one environment; the rows hold zeros.
      core: the core before row 0, [B, ...] per leaf; () when feed-forward.
      weighted: draw importance weights in (0, 1], as prioritised replay gives them.
    """
    core_spec = map_tree(lambda leaf: ArraySpec(leaf.shape[1:], leaf.dtype), spec_of(core))
    blank = zeros(make_trajectory_spec(spec, extras, core_spec, num_rows=num_rows, num_envs=num_envs))
    is_first, discount = np.zeros_like(blank.is_first), np.ones_like(blank.discount)
    last = num_rows // 2  # the row of the last observation, where an episode ends
    is_first[last + 1, ::2] = True
    if last:
        discount[last - 1, ::4] = 0.0
    if isinstance(spec.action, Continuous):
        action = rng.normal(size=blank.action.shape)
    else:
        nums = action_nums(spec)
        action = rng.integers(nums[0] if isinstance(spec.action, Discrete) else nums, size=blank.action.shape)
    reward = rng.normal(size=blank.reward.shape).astype(np.float32)
    reward[last, ::2] = 0.0
    return blank._replace(
        observation=random_observation(spec, rng, num_rows + 1, num_envs),
        is_first=is_first,
        action=action.astype(blank.action.dtype),
        reward=reward,
        discount=discount,
        acts=np.ones_like(blank.acts),
        log_prob=np.full_like(blank.log_prob, -1.0),
        core=core,
        sampling=(1.0 - rng.random(num_envs)).astype(np.float32) if weighted else (),
        state=() if spec.state is None else _random_tree(spec.state, rng, num_rows + 1, num_envs),
    )
