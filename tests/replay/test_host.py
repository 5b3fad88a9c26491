"""Replay on the host: windows hold the written rows, gaps end them, priorities reach their windows, threads agree."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from jsrl.experiment import ReplayConfig
from jsrl.replay.host.limiter import Limiter, make_limiter
from jsrl.replay.host.replay import HostReplay
from jsrl.replay.host.rows import RowsShape, read_ids
from jsrl.replay.host.tree import HostTree
from jsrl.replay.shared import windows_spec
from jsrl.types import ArraySpec, Discrete, EnvSpec, make_trajectory_spec, map_tree, spec_of
from tests.marks import slow
from tests.replay.streams import FRAMES, World

B, T, LANES = 3, 4, 2


class Replay:
    """A host replay of two lanes, the worlds that fill it, and the true source of each row of a lane."""

    def __init__(self, capacity: int, window: int, *, frames=False, core=False, prioritised=False, incarnation=0):
        self.worlds = [World(B, T, seed=lane, frames=frames, core=core) for lane in range(LANES)]
        self.first = [world.trajectory() for world in self.worlds]
        self.spec = spec_of(self.first[0])
        self.config = ReplayConfig(
            capacity=capacity, window=window, prioritised=prioritised, alpha=1.0, epsilon=0.0, min_size=1
        )
        self.replay = HostReplay(
            self.config, self.spec, lanes=LANES, frames=FRAMES if frames else None, incarnation=incarnation
        )
        self.window = window
        self.truth: list[list[int | None]] = [[] for _ in range(LANES)]  # the world's row of each row of a lane
        self.sequence = [0] * LANES
        for lane in range(LANES):
            self._insert(lane, self.first[lane])

    def _insert(self, lane: int, trajectory) -> None:
        self.replay.insert(lane, (0, self.sequence[lane]), trajectory)
        end = len(self.worlds[lane].rows)
        self.truth[lane] += range(end - T, end)
        self.sequence[lane] += 1

    def more(self, count: int) -> Replay:
        for _ in range(count):
            for lane in range(LANES):
                self._insert(lane, self.worlds[lane].trajectory())
        return self

    def gap(self, lane: int) -> None:
        """Lose a trajectory: the bootstrap row of the last one stays as a separate row."""
        self.worlds[lane].trajectory()
        self.sequence[lane] += 1
        self.truth[lane].append(None)

    def draw(self, number: int):
        into = map_tree(lambda leaf: leaf.zeros(), self.windows(number))
        return into, self.replay.draw(into, beta=0.5)

    def windows(self, number: int):
        return windows_spec(self.config, self.spec, number)

    def where(self, id_: int) -> tuple[int, int, int]:
        """Return (lane, row of the lane, environment) of an id."""
        _, lap, place = read_ids(np.array(id_))
        shape = self.replay.shape
        lane, within = divmod(int(place), shape.capacity * B)
        return lane, int(lap) * shape.capacity + within // B, within % B

    def possible(self) -> set[tuple[int, int, int]]:
        """Return every window that may be drawn now, by the rules and not by the code."""
        shape, found = self.replay.shape, set()
        for lane, truth in enumerate(self.truth):
            world, written = self.worlds[lane], len(truth)
            lost = max(0, written - shape.capacity + 1)
            for at in range(lost + (shape.history if lost else 0), written - self.window + 1):
                row = truth[at]
                for env in range(B):
                    if row is None or (shape.with_core and row % T) or not (shape.with_core or world.mask(row, env)):
                        continue
                    if all(self._frame_there(lane, at, env, back) for back in range(shape.history + 1)):
                        found.add((lane, at, env))
        return found

    def _frame_there(self, lane: int, at: int, env: int, back: int) -> bool:
        """Return whether the row `back` rows before is in this segment, or the game started since."""
        world, row = self.worlds[lane], self.truth[lane][at]
        for step in range(back):
            fresh = world.is_first(row - step, env) and not world.observation(row - step, env)[..., :-1].any()
            if fresh:
                return True
            if at - step - 1 < 0 or self.truth[lane][at - step - 1] != row - step - 1:
                return False
        return True


@pytest.mark.parametrize(
    ("frames", "core", "window", "prioritised"),
    [(False, False, 1, False), slow(True, False, 3, True), (True, False, 2, False), slow(False, True, 6, True)],
)
def test_windows_hold_the_written_rows_and_every_window_is_drawn(frames, core, window, prioritised):
    replay = Replay(20 * B * LANES, window, frames=frames, core=core, prioritised=prioritised)
    for step in range(30):
        for lane in {6: (0,), 7: (0, 1), 20: (0,)}.get(step, ()):
            replay.gap(lane)
        replay.more(1)
        if step % 3 and step not in (7, 8, 20):
            continue
        into, ids = replay.draw(2_000)
        places = [replay.where(int(i)) for i in ids]
        assert set(places) == replay.possible() and replay.replay.num_starts == len(set(places))
        for column in range(0, 2_000, 29):
            lane, at, env = places[column]
            rows = replay.truth[lane][at : at + window]
            if None not in rows:
                replay.worlds[lane].check_window(map_tree(np.asarray, into), column, rows[0], env)
    assert len(replay.truth[0]) > 3 * replay.replay.shape.capacity
    assert replay.replay.drawn == 13 * 2_000
    assert replay.replay.inserted == 31 * LANES * B * T
    assert replay.replay.size + replay.replay.evicted >= replay.replay.inserted  # a gap keeps one more row


def test_window_ends_at_a_gap_with_its_bootstrap_row():
    replay = Replay(40 * B * LANES, 3)
    replay.gap(0)
    replay.more(2)
    world, kept = replay.worlds[0], T  # row T of the lane is the bootstrap row of the lost trajectory's predecessor
    into, ids = replay.draw(3_000)
    seen = 0
    for column, (lane, at, env) in enumerate(replay.where(int(i)) for i in ids):
        if lane == 0 and at == kept - 2:  # rows T-2, T-1, the kept row, and the first one behind the gap
            seen += 1
            np.testing.assert_array_equal(into.observation[2, column], world.observation(T, env))
            assert into.is_first[3, column]
            assert (into.acts[2:, column] == 0).all()
            assert into.discount[2, column] == 1.0
            assert into.acts[0, column] == world.rows[at]["acts"][env]
        if lane == 0 and at == kept + 1:  # the first row behind it starts windows like any other
            assert into.is_first[0, column] == world.is_first(2 * T, env)
    assert seen > 5
    assert not any(self_at == kept for lane, self_at, _ in map(replay.where, map(int, ids)) if lane == 0)


def test_actor_restart_is_a_gap():
    replay = Replay(40 * B * LANES, 1)
    trajectory = replay.worlds[0].trajectory()
    replay.replay.insert(0, (1, 0), trajectory)
    assert replay.replay.lanes[0].written == 2 * T + 1
    replay.replay.insert(0, (1, 1), replay.worlds[0].trajectory())
    assert replay.replay.lanes[0].written == 3 * T + 1


def test_uniform_draws_are_even_over_lanes_of_different_length():
    replay = Replay(40 * B * LANES, 1)
    for _ in range(5):
        replay._insert(0, replay.worlds[0].trajectory())
    _, ids = replay.draw(60_000)
    _, counts = np.unique(ids, return_counts=True)
    expected = 60_000 / len(replay.possible())
    assert len(counts) == len(replay.possible())
    assert np.abs(counts / expected - 1).max() < 5 / np.sqrt(expected)


LATE = 0.25  # priority of an overwritten window; no weight may become this


def test_priorities_return_to_their_windows_through_any_delay():
    """Batches are drawn ahead, rows keep being overwritten, priorities return late: none reaches another window."""
    replay = Replay(26 * B * LANES, 1, prioritised=True).more(3)
    drawn: list[np.ndarray] = []
    truth: dict[int, float] = {}
    for step in range(40):
        replay.more(1)
        drawn.append(replay.draw(16)[1])
        if step >= 5:
            ids = drawn.pop(0)
            there = replay.possible()
            priorities = np.array([1.0 + (int(i) % 97) if replay.where(i) in there else LATE for i in ids])
            replay.replay.feedback(ids, {"priorities": priorities})
            truth |= {int(i): p for i, p in zip(ids, priorities, strict=True)}
    tree = replay.replay._tree
    assert tree is not None
    current = {replay.where(i): p for i, p in truth.items()}
    possible = replay.possible()
    alive = {where: p for where, p in current.items() if where in possible}
    assert replay.replay.ignored > 20
    assert len(alive) > 3
    assert LATE in truth.values() and not (tree.weights == LATE).any()
    shape = replay.replay.shape
    for lane, at, env in possible:
        weight = tree.weights[(lane * shape.capacity + at % shape.capacity) * B + env]
        if (lane, at, env) in alive:
            assert weight == alive[lane, at, env]
        else:
            assert weight in {1.0, *(1.0 + k for k in range(97))}  # the highest priority at its arrival
    assert set(np.flatnonzero(tree.weights)) == {
        (lane * shape.capacity + at % shape.capacity) * B + env for lane, at, env in possible
    }


def test_priorities_of_an_earlier_incarnation_reach_no_window():
    before, after = (Replay(26 * B * LANES, 1, prioritised=True, incarnation=life).more(3) for life in (0, 1))
    ids = before.draw(16)[1]
    after.replay.feedback(ids, {"priorities": np.full(16, LATE)})
    before.replay.feedback(ids, {"priorities": np.full(16, LATE)})
    trees = before.replay._tree, after.replay._tree
    assert [bool((tree.weights == LATE).any()) for tree in trees if tree is not None] == [True, False]
    assert after.replay.ignored == 16 and not before.replay.ignored


def test_importance_weights_follow_the_probabilities():
    replay = Replay(20 * B * LANES, 1, prioritised=True).more(2)
    _, ids = replay.draw(400)
    ids = np.unique(ids)
    replay.replay.feedback(ids, {"priorities": np.linspace(1.0, 4.0, len(ids))})
    into, again = replay.draw(5_000)
    chance = dict(zip(ids.tolist(), np.linspace(1.0, 4.0, len(ids)), strict=True))
    expected = np.array([chance[int(i)] for i in again]) ** -0.5
    np.testing.assert_allclose(into.sampling, expected, rtol=1e-5)
    assert into.sampling.max() == 1.0


def test_windows_drawn_again_bring_their_own_importance_weights(monkeypatch):
    """Rows are overwritten while a batch is read: its lost windows are replaced by others, of other priorities."""
    replay = Replay(20 * B * LANES, 1, prioritised=True).more(8)
    _, ids = replay.draw(500)
    replay.replay.feedback(ids, {"priorities": np.random.default_rng(0).uniform(1.0, 9.0, 500)})
    read, interrupted = replay.replay.rows.read, []

    def read_late(places, into):
        read(places, into)
        if not interrupted:
            interrupted.append(places.copy())
            replay.more(2)

    monkeypatch.setattr(replay.replay.rows, "read", read_late)
    into, ids = replay.draw(200)
    places = read_ids(ids)[2]
    assert 20 < (places != interrupted[0]).sum() < 200
    chances = replay.replay.index_arrays["weights"][places]
    np.testing.assert_allclose(into.sampling, (chances / chances.min()) ** -0.5, rtol=1e-5)


def test_each_part_of_a_prioritised_batch_has_windows_of_all_ages():
    """Several updates per call, and several devices, split a batch into parts: none may get only old or only new windows."""
    replay = Replay(100 * B * LANES, 1, prioritised=True).more(10)
    ages = np.array([replay.where(int(i))[1] for i in replay.draw(800)[1]]).reshape(8, 100)
    middle, spread = ages.mean(), ages.std() / 10  # of the mean of 100 ages
    assert np.abs(ages.mean(axis=1) - middle).max() < 4 * spread
    assert (ages.std(axis=1) > 0.7 * ages.std()).all()


@pytest.mark.slow
def test_threads_draw_intact_windows_while_rows_are_overwritten():
    """A ring that is constantly overwritten: every drawn window holds written rows, in one piece."""
    spec = make_trajectory_spec(EnvSpec(ArraySpec((500,), "float32"), Discrete(2)), (), (), num_rows=8, num_envs=2)
    config = ReplayConfig(capacity=78, window=4, batch_size=16, prioritised=True, min_size=1)
    replay = HostReplay(config, spec)
    assert replay.shape == RowsShape(1, 40, 2, 8, 4)
    block = map_tree(lambda leaf: leaf.zeros(), spec)
    block.acts[...] = 1
    count, stop, wrong = [0], threading.Event(), []

    def insert() -> None:
        for sequence in range(1_500):
            block.observation[...] = (sequence * 8 + np.arange(9))[:, None, None]
            replay.insert(0, (0, sequence), block)
        stop.set()

    def draw() -> None:
        into = map_tree(lambda leaf: leaf.zeros(), windows_spec(config, spec))
        while not stop.is_set():
            if replay.num_starts:
                ids = replay.draw(into)
                count[0] += 1
                first = into.observation[0, :, 0]
                steps = into.observation - first[None, :, None] - np.arange(5)[:, None, None]
                if np.abs(steps).max() > 0:
                    wrong.append(into.observation[:, :, 0].copy())
                replay.feedback(ids, {"priorities": np.ones(16)})

    threads = [threading.Thread(target=draw) for _ in range(2)]
    for thread in threads:
        thread.start()
    insert()
    for thread in threads:
        thread.join()
    assert not wrong
    assert count[0] > 20


@pytest.mark.parametrize("size", [50, 16**3 + 77, 70_000])  # one that is searched at once, and levels below it
def test_sum_tree_equals_a_running_sum(size):
    rng = np.random.default_rng(0)
    tree, truth = HostTree(size), np.zeros(size)
    for _ in range(30):
        at = rng.integers(0, size, 300)
        weights = rng.random(300)
        weights[::7] = 0.0
        tree.set(at, weights)
        truth[at] = weights
    np.testing.assert_array_equal(tree.weights, truth)
    assert tree.total == pytest.approx(truth.sum())
    points = (np.arange(5_000) + 0.5) / 5_000
    found = tree.find(points)
    np.testing.assert_array_equal(found, np.searchsorted(truth.cumsum(), points * truth.sum(), side="right"))
    assert (truth[found] > 0).all()


def test_limiter_keeps_the_ratio_on_both_sides():
    limiter = Limiter(min_size=100, ratio=4.0, slack=64.0)
    while limiter.may_insert(10):
        limiter.inserted += 10
    assert limiter.inserted == 110  # 4 x 10 windows ahead of the draws; 4 x 20 would be more than 64
    while limiter.may_draw(32):
        limiter.drawn += 32
    assert limiter.drawn == 96
    for _ in range(200):
        if limiter.may_insert(10):
            limiter.inserted += 10
        if limiter.may_draw(32):
            limiter.drawn += 32
    assert abs(4.0 * (limiter.inserted - 100) - limiter.drawn) <= 64
    assert limiter.inserted > 1_000
    limiter.refill()
    again = Limiter(100, 4.0, 64.0)
    again.restore(limiter.state)
    assert again == limiter


def test_draws_begin_after_one_fill_however_often_it_was_interrupted():
    limiter = Limiter(min_size=100, ratio=4.0, slack=64.0)
    for _ in range(5):
        limiter.inserted += 30
        limiter.refill()
    limiter.inserted += 100
    assert limiter.may_draw(64) and not limiter.may_draw(65), limiter


@pytest.mark.parametrize(
    ("ratio", "insert", "draw"), [(0.01, 8, 256), (256.0, 128, 256), (1.0, 1_000, 32), (None, 8, 8)]
)
def test_smallest_slack_does_not_deadlock(ratio, insert, draw):
    limiter = make_limiter(100, ratio, 1e-6, insert_size=insert, draw_size=draw, waiting=draw)
    for _ in range(3_000):
        if limiter.may_insert(insert):
            limiter.inserted += insert
        elif limiter.may_draw(draw):
            limiter.drawn += draw
        else:
            pytest.fail(f"both wait: {limiter}")


def test_memory_of_cores_stays_that_of_the_trajectories_of_one_lap():
    """A core is kept for row 0 of each trajectory; after many laps no other places hold one."""
    replay = Replay(96, 3, core=True).more(40)  # 17 rows of a lane, without rounding
    rows = replay.replay.rows.rows
    used = np.flatnonzero(np.asarray(rows.core).reshape(len(rows.acts), -1).any(axis=1))
    assert replay.replay.shape.capacity % T == 0
    assert 0 < len(used) <= LANES * B * replay.replay.shape.capacity // T
