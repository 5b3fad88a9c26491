"""The ring on the device: windows hold the written rows, starts are uniform, priorities count, nothing is copied."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jsrl.errors import ConfigError
from jsrl.experiment import ReplayConfig
from jsrl.replay.device import ring as device
from jsrl.replay.device import tree as device_tree
from jsrl.types import spec_of
from tests.marks import slow
from tests.replay.streams import FRAMES, World

N, T = 3, 4


def feedback(ring, ids, priorities, **config):
    return device.feedback(ReplayConfig(**config), ring, ids, {"priorities": priorities})


class Replay:
    """A ring and the world that fills it."""

    def __init__(self, capacity: int, window: int, *, frames=False, core=False, prioritised=False, seed=0):
        self.world = World(N, T, seed=seed, frames=frames, core=core)
        first = self.world.trajectory()
        spec = spec_of(first)
        config = ReplayConfig(capacity=capacity, window=window, prioritised=prioritised, min_size=1)
        self.shape = device.ring_shape(config, spec, FRAMES if frames else None)
        self.add = jax.jit(partial(device.add, self.shape), donate_argnums=0)
        self.draw = jax.jit(partial(device.draw, self.shape), static_argnums=2)
        self.read = jax.jit(partial(device.read, self.shape))
        self.ring = self.add(device.init_ring(self.shape, spec), first)

    def more(self, count: int) -> Replay:
        for _ in range(count):
            self.ring = self.add(self.ring, self.world.trajectory())
        return self

    def place(self, start: int) -> tuple[int, int]:
        """Return (row since the beginning, environment) of an id."""
        row, env = start // N * self.shape.stride, start % N
        written = len(self.world.rows)
        return row + (written - 1 - row) // self.shape.capacity * self.shape.capacity, env

    def possible(self) -> set[tuple[int, int]]:
        """Return every (row, environment) that a window may start at."""
        written = len(self.world.rows)
        lost = max(0, written - self.shape.capacity + 1)
        oldest = lost + (self.shape.history if lost else 0)
        return {
            (at, env)
            for at in range(oldest, written - self.shape.window + 1)
            for env in range(N)
            if (at % T == 0 if self.shape.stride > 1 else self.world.mask(at, env))
        }


@pytest.mark.parametrize(
    ("frames", "core", "window", "prioritised"),
    [(False, False, 1, False), slow(True, False, 3, True), slow(True, False, 1, False), slow(False, True, 6, True)],
)
def test_windows_hold_the_written_rows_and_every_window_is_drawn(frames, core, window, prioritised):
    """While filling and several times around the ring, across trajectories, episode ends and lost lives."""
    replay = Replay(20 * N, window, frames=frames, core=core, prioritised=prioritised)
    for step in range(16):
        replay.more(1)
        if 1 < step < 5:
            continue
        ids, chances = replay.draw(replay.ring, jax.random.key(step), 400)
        windows = jax.tree.map(np.asarray, replay.read(replay.ring, ids))
        places = [replay.place(int(start)) for start in ids]
        possible = replay.possible()
        assert possible <= set(places)
        strays = [place for place in places if place not in possible]  # four draws in a row had mask 0
        assert len(strays) <= (0 if prioritised else 12)
        assert not any(replay.world.mask(*place) for place in strays)
        for column in range(0, 400, 9):
            replay.world.check_window(windows, column, *places[column])
        assert float(chances.min()) == float(chances.max()) > 0
    assert replay.ring.written == len(replay.world.rows) > 3 * replay.shape.capacity


def test_uniform_draws_are_even():
    replay = Replay(12 * N, 1).more(20)
    ids, _ = replay.draw(replay.ring, jax.random.key(0), 60_000)
    _, counts = np.unique(np.asarray(ids), return_counts=True)
    expected = 60_000 / len(replay.possible())
    assert np.sort(counts)[-len(replay.possible()) - 1 :].max() < 1.2 * expected
    assert np.sort(counts)[-len(replay.possible())] > 0.8 * expected
    assert counts.sum() - np.sort(counts)[-len(replay.possible()) :].sum() < 600  # four draws in a row had mask 0


@pytest.mark.slow
def test_priorities_set_probability_and_weight_of_a_window():
    replay = Replay(12 * N, 2, prioritised=True).more(5)
    ids = np.unique(np.asarray(replay.draw(replay.ring, jax.random.key(0), 2_000)[0]))
    priorities = np.linspace(0.0, 3.0, len(ids)).astype(np.float32)
    ring = feedback(replay.ring, jnp.asarray(ids), jnp.asarray(priorities), alpha=0.7, epsilon=0.01)
    expected = (priorities + 0.01) ** 0.7
    expected /= expected.sum()
    drawn, chances = replay.draw(ring, jax.random.key(1), 50_000)
    found, counts = np.unique(np.asarray(drawn), return_counts=True)
    np.testing.assert_array_equal(found, ids)
    np.testing.assert_allclose(counts / 50_000, expected, atol=2e-4)  # drawn in strata
    weights = np.asarray(device.weights_of(chances, 0.5))
    by_id = {int(i): w for i, w in zip(drawn, weights, strict=True)}
    np.testing.assert_allclose([by_id[int(i)] for i in ids], (expected / expected.min()) ** -0.5, rtol=1e-4)
    assert weights.max() == 1.0


def test_new_windows_get_the_highest_priority_and_old_ones_are_removed():
    replay = Replay(12 * N, 1, prioritised=True).more(5)
    ids = jnp.asarray(sorted({int(i) for i in replay.draw(replay.ring, jax.random.key(0), 2_000)[0]}))
    replay.ring = feedback(replay.ring, ids[:1], jnp.array([8.0]), alpha=1.0, epsilon=0.0)
    replay.more(1)
    weights = np.asarray(replay.ring.tree[0])
    written = len(replay.world.rows)
    places = {replay.place(i): w for i, w in enumerate(weights[: replay.shape.capacity * N])}
    for (at, env), weight in places.items():
        if at >= written - T:
            assert weight == (8.0 if (at, env) in replay.possible() else 0.0)
        elif (at, env) not in replay.possible():
            assert weight == 0.0


def test_sum_tree_is_consistent_after_any_write():
    size = 64 * 64 + 700
    tree = device_tree.init_tree(size)
    truth = np.zeros(size, np.float32)
    rng = np.random.default_rng(0)
    setter = jax.jit(device_tree.set_weights)
    for _ in range(20):
        at = rng.choice(size, 300, replace=False).astype(np.int32)
        weights = rng.random(300).astype(np.float32)
        tree, truth[at] = setter(tree, at, weights), weights
    tree = setter(tree, np.full(300, 2**31 - 1, np.int32), np.ones(300, np.float32))  # beyond the end: ignored
    for above, below in zip(tree[1:], tree, strict=False):
        sums = np.asarray(below).reshape(-1, 64).sum(1)
        np.testing.assert_allclose(np.asarray(above)[: len(sums)], sums, rtol=1e-5)
    np.testing.assert_array_equal(np.asarray(tree[0])[:size], truth)
    points = (np.arange(4_000) + 0.5) / 4_000
    found, weights = jax.jit(device_tree.find)(tree, points.astype(np.float32))
    expected = np.searchsorted(np.cumsum(truth, dtype=np.float64), points * truth.sum(dtype=np.float64))
    assert np.mean(np.asarray(found) == expected) > 0.99  # the others are neighbours: rounding
    assert np.abs(np.asarray(found) - expected).max() <= 2
    np.testing.assert_array_equal(np.asarray(weights), truth[np.asarray(found)])
    assert (np.asarray(weights) > 0).all()


@pytest.mark.parametrize("prioritised", [False, slow(True)])
def test_adding_and_drawing_copy_no_ring(prioritised):
    """XLA's own report: the ring is written into its donated buffer, and temporary memory is small."""
    replay = Replay(40_000 * N, 2, frames=True, prioritised=prioritised)

    def call(ring, trajectory, key):
        ring = device.add(replay.shape, ring, trajectory)
        ids, _ = device.draw(replay.shape, ring, key, 32)
        return ring, device.read(replay.shape, ring, ids)

    compiled = (
        jax.jit(call, donate_argnums=0).lower(replay.ring, replay.world.trajectory(), jax.random.key(0)).compile()
    )
    memory = compiled.memory_analysis()
    ring_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(replay.ring))
    assert memory.alias_size_in_bytes >= 0.99 * ring_bytes
    assert memory.temp_size_in_bytes < 0.05 * ring_bytes


def test_too_small_ring_is_refused_with_a_valid_size():
    with pytest.raises(ConfigError, match=r"set it to 48 or more"):
        Replay(8 * N, 5)
    Replay(48, 5)
