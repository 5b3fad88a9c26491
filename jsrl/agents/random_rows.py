"""Random observations and trajectories of a spec that obey the row table, for checks and warm-ups."""

from __future__ import annotations

from typing import Any

import numpy as np

from jsrl.types import (
    Array,
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
    spread,
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
    if isinstance(spec.action, Continuous):
        action = rng.normal(size=blank.action.shape)
    else:
        nums = action_nums(spec)
        action = rng.integers(nums[0] if isinstance(spec.action, Discrete) else nums, size=blank.action.shape)
    rows = blank._replace(
        reward=rng.normal(size=blank.reward.shape).astype(np.float32),
        observation=random_observation(spec, rng, num_rows + 1, num_envs),
        action=action.astype(blank.action.dtype),
        acts=np.ones_like(blank.acts),
        log_prob=np.full_like(blank.log_prob, -1.0),
        core=core,
        sampling=(1.0 - rng.random(num_envs)).astype(np.float32) if weighted else (),
        state=() if spec.state is None else _random_tree(spec.state, rng, num_rows + 1, num_envs),
    )
    number = np.arange(num_envs)
    return with_ends(rows, np.where(number % 2 == 0, num_rows // 2, num_rows + 1), number % 4 == 0)


def with_ends(rows: Trajectory, lasts: Array, terminated: Array | bool = False) -> Trajectory:
    """Return the rows with one end of an episode in each column, and none elsewhere.

    Args:
      lasts: [B], the row of the episode's last observation; T + 1: the episode goes on.
      terminated: [B], whether the episode ends by a termination; else by a time limit.
    """
    number, lasts = np.arange(len(rows.is_first))[:, None], np.asarray(lasts)
    return rows._replace(
        is_first=number == lasts + 1,
        reward=changed(rows.reward, number == lasts, 0.0),
        discount=changed(np.ones_like(rows.discount), (number == lasts - 1) & np.asarray(terminated), 0.0),
    )


def changed(leaf: Array, where: Array, other: Any) -> np.ndarray:
    """Return the leaf with other numbers where a mask of its leading axes is set."""
    return np.asarray(np.where(spread(where, leaf), other, leaf), leaf.dtype)


def acted_otherwise(rows: Trajectory, where: Array) -> Trajectory:
    """Return the rows with actions 0, log-probabilities and rewards out of the ordinary where [T+1, B] says so."""
    return rows._replace(
        action=changed(rows.action, where, 0),
        log_prob=changed(rows.log_prob, where, -50.0),
        reward=changed(rows.reward, where, 1e4),
    )


def terminated(rows: Trajectory, where: Array) -> Trajectory:
    """Return the rows with discount 0 where [T+1, B] says so."""
    return rows._replace(discount=changed(rows.discount, where, 0.0))


def dead(rows: Trajectory, where: Array) -> Trajectory:
    """Return rows of which nothing is to be learned where [T+1, B] says so: waiting, and each a last observation."""
    return rows._replace(acts=changed(rows.acts, where, 0), is_first=rows.is_first | where)
