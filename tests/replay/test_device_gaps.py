"""Gaps of the ring on the device against a loop over the true rows in numpy: no transition is lost or invented."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from jsrl.agents.off_policy import transition
from jsrl.experiment import ReplayConfig
from jsrl.replay.device import ring as device
from jsrl.replay.device.gaps import KEPT
from jsrl.types import Trajectory, spec_of
from tests.marks import nightly

N, GAMMA, FRAMES = 3, 0.9, 3


class Row(NamedTuple):
    """One row of one environment. stack: the agent's observation, [FRAMES]. acts: observed with it, except in the last row."""

    stack: np.ndarray
    is_first: bool
    reward: float = 0.0
    discount: float = 1.0
    acts: int = 0


class ReplacedActors:
    """N environments whose actors are sometimes replaced: `lives[env]` holds the rows of each incarnation, in sequence."""

    def __init__(self, num_rows: int, seed: int) -> None:
        self.num_rows, self.rng = num_rows, np.random.default_rng(seed)
        self.lives: list[list[list[Row]]] = [[[self.begin()]] for _ in range(N)]
        self.starts: list[dict[int, tuple[int, int]]] = [
            {} for _ in range(N)
        ]  # row of the ring -> (incarnation, row of the incarnation)
        self.written = 0

    def begin(self) -> Row:
        stack = np.zeros(FRAMES, np.float32)
        stack[-1] = self.rng.integers(1, 1_000_000)
        return Row(stack, True, acts=1)

    def act(self, life: list[Row]) -> None:
        """Play the last row of an incarnation, and observe the next."""
        terminated = len(life) > 1 and life[-2].discount == 0
        over = terminated or (not life[-1].is_first and self.rng.random() < 0.1)
        life[-1] = life[-1]._replace(
            reward=float(self.rng.normal()),
            discount=float(over or self.rng.random() < 0.9),
        )
        following = self.begin()
        if not over:
            following = Row(np.append(life[-1].stack[1:], following.stack[-1]), False, acts=following.acts)
        life.append(following)

    def replace(self, env: int) -> None:
        self.lives[env].append([self.begin()])

    def trajectory(self) -> Trajectory:
        columns = []
        for env in range(N):
            life = self.lives[env][-1]
            begin = len(life) - 1
            for row in range(self.num_rows):
                self.starts[env][self.written + row] = (len(self.lives[env]) - 1, begin + row)
                self.act(life)
            columns.append(life[begin:])
        self.written += self.num_rows

        def leaf(name: str, dtype: Any) -> np.ndarray:
            return np.array(
                [[getattr(column[row], name) for column in columns] for row in range(self.num_rows + 1)], dtype
            )

        blank = np.zeros((self.num_rows + 1, N))
        return Trajectory(
            observation=leaf("stack", np.float32),
            is_first=leaf("is_first", bool),
            action=blank.astype(np.int32),
            reward=leaf("reward", np.float32),
            discount=leaf("discount", np.float32),
            acts=leaf("acts", np.uint8),
            log_prob=blank.astype(np.float32),
            extras=(),
            version=blank.astype(np.int64),
            core=(),
            state=leaf("stack", np.float32),
        )

    def walk(self, at: int, env: int, window: int) -> tuple[int, float, float, np.ndarray] | None:
        """Return (mask, reward, discount, observation that bootstraps) of the window at a row of the ring.

        It bootstraps at the last row on which the agent acts; mask is 0 if there is none but the first.
        """
        life, row = self.starts[env][at]
        rows = self.lives[env][life]
        if rows[row + 1].is_first or not rows[row].acts:
            return None
        reward, scale, steps, found = 0.0, 1.0, 0, (0, 0.0, 1.0, rows[row].stack)
        while steps < window and row + 1 < len(rows) and not rows[row + 1].is_first:
            reward += scale * rows[row].reward
            scale *= rows[row].discount * (GAMMA if rows[row + 1].acts else 1.0)
            row, steps = row + 1, steps + 1
            if scale == 0 or rows[row].acts:
                found = 1, reward, scale, rows[row].stack
            if scale == 0:
                break
        return found


def with_state(windows: Trajectory) -> Trajectory:
    """Return windows whose observation also holds the state (that of a row is its stack)."""
    return windows._replace(observation={"observation": windows.observation, "state": windows.state})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_rows", "window", "frames", "prioritised"),
    [
        nightly(4, 1, False, False),
        (4, 3, True, True),
        (1, 3, False, True),
        (4, 6, False, False),
        nightly(2, 3, True, False),
    ],
)
def test_no_transition_is_lost_at_a_gap(num_rows, window, frames, prioritised):
    lives = ReplacedActors(num_rows, seed=num_rows + window)
    first = lives.trajectory()
    config = ReplayConfig(capacity=24 * N, window=window, prioritised=prioritised, min_size=1)
    shape = device.ring_shape(config, spec_of(first), FRAMES if frames else None)
    add = jax.jit(partial(device.add, shape), donate_argnums=0)
    look = jax.jit(lambda ring, ids: transition(with_state(device.read(shape, ring, ids)), GAMMA))
    ring, gaps = add(device.init_ring(shape, spec_of(first)), first), 0
    for step in range(100 // num_rows):
        for env in range(N):
            if lives.rng.random() < (0.3 if step % 3 else 0.0) * num_rows / 4:
                lives.replace(env)
                gaps += 1
        ring = add(ring, lives.trajectory())
        oldest = max(0, lives.written - shape.capacity + 1)
        oldest += shape.history if oldest else 0
        places = [(at, env) for at in range(oldest, lives.written - window + 1) for env in range(N)]
        expected = {place: lives.walk(*place, window) for place in places}
        possible = [place for place in places if expected[place] is not None]
        trained = next((place for place in possible if expected[place][0]), (0, 0))
        ids = np.full(24 * N, trained[0] % shape.capacity * N + trained[1])  # of one size: nothing compiles twice
        ids[: len(possible)] = [at % shape.capacity * N + env for at, env in possible]
        seen = jax.tree.map(np.asarray, look(ring, ids))
        for column, place in enumerate(possible):
            mask, reward, discount, bootstrap = expected[place]
            assert seen.mask[column] == mask, place
            if not mask:
                continue
            np.testing.assert_allclose(seen.reward[column], reward, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(seen.discount[column], discount, rtol=1e-5)
            if discount > 0:
                np.testing.assert_array_equal(seen.next_observation["observation"][column], bootstrap)
                np.testing.assert_array_equal(seen.next_observation["state"][column], bootstrap)
        if prioritised:
            drawn = np.asarray(ring.tree[0])[: shape.capacity * N] > 0
            assert set(np.flatnonzero(drawn)) == set(ids[: len(possible)])
        else:
            drawn = np.asarray(device.draw(shape, ring, jax.random.key(step), 2_000)[0])
            assert set(ids[: len(possible)]) <= set(drawn)
    assert gaps > 2 * N


def test_oldest_gap_loses_its_bootstrap_row_when_too_many_gaps():
    lives = ReplacedActors(1, seed=0)
    first = lives.trajectory()
    shape = device.ring_shape(ReplayConfig(capacity=24 * N, min_size=1), spec_of(first))
    add = jax.jit(partial(device.add, shape))
    ring = add(device.init_ring(shape, spec_of(first)), first)
    for _ in range(KEPT + 2):
        lives.replace(0)
        ring = add(ring, lives.trajectory())
    ids = np.arange(KEPT + 2) * N  # the rows of environment 0 before each gap
    mask = np.asarray(jax.jit(lambda ring: transition(device.read(shape, ring, ids), GAMMA).mask)(ring))
    np.testing.assert_array_equal(mask, [0, 0, *[1] * KEPT])


@pytest.mark.slow
def test_kept_bootstrap_row_bootstraps_only_where_the_agent_acts():
    lives = ReplacedActors(1, seed=0)
    first = lives.trajectory()
    shape = device.ring_shape(ReplayConfig(capacity=24 * N, min_size=1), spec_of(first))
    ring = device.init_ring(shape, spec_of(first))
    first.acts[:] = np.array([[1, 1, 1], [0, 1, 2]])
    first.discount[:] = 1.0
    ring = device.add(shape, ring, first)
    for env in range(N):
        lives.replace(env)
    after = lives.trajectory()
    after.reward[:], after.discount[:] = 7.0, 0.0
    ring = device.add(shape, ring, after)
    windows = device.read(shape, ring, np.arange(N))
    np.testing.assert_array_equal(windows.acts, first.acts)
    assert (windows.reward[1] == 0.0).all() and (windows.discount[1] == 1.0).all()  # a last observation's
    assert ring.gaps.used.sum() == N
