"""Values learnt in a two-player turn game are exact for any length of trajectories and windows."""

import functools

import jax
import numpy as np
import pytest

from jsrl.agents.off_policy import transition
from jsrl.agents.returns import Rows, gae, n_step_returns, vtrace
from jsrl.agents.rows import row_margin, row_masks
from jsrl.types import Trajectory
from tests.agents.compiled import compiled
from tests.agents.turn_game import GAMMA, NEVER_LEARNT, WAITING, action_values, best_play, play, random_values
from tests.marks import slow

TARGETS = {
    "gae": lambda rows, margin: gae(rows, gamma=GAMMA, lambda_=0.9, margin=margin).target,
    "vtrace": lambda rows, margin: vtrace(rows, np.zeros_like(rows.reward), gamma=GAMMA, margin=margin).target,
    "n-step": lambda rows, margin: n_step_returns(rows, gamma=GAMMA, n=2, margin=margin),
}


SLOW = [slow(*case) for case in (("gae", 64), ("vtrace", 3), ("n-step", 4))]


@functools.cache
def trajectories(num_rows: int) -> Trajectory:
    """Return random play in columns [num_rows + 1, ..., 2]; `action` is what the seats observed."""
    games = play(64 * 16 + 1, 32, 0)
    starts = range(0, len(games.seen) - num_rows, num_rows)
    seen, is_first, reward, discount, acts = (
        np.concatenate([leaf[s : s + num_rows + 1] for s in starts], axis=1)
        for leaf in (games.seen, games.is_first, games.reward, games.discount, games.acts)
    )
    return Trajectory((), is_first, seen, reward, discount, acts, (), (), (), ())


@pytest.mark.parametrize(("targets", "num_rows"), [("gae", 3), *SLOW])
def test_values_are_exact_for_short_and_long_trajectories(targets, num_rows):
    """Half of all columns end with a row on which the seat waits; its value was never learnt."""
    t = trajectories(num_rows)
    assert 0.4 < (t.acts[-1] == 0).mean() < 0.6

    @jax.jit
    def sweep(value):
        margin = row_margin(t)
        rows = Rows(value[t.action], t.reward[:-1], t.discount[:-1], t.acts, t.is_first)
        target, mask = TARGETS[targets](rows, margin), row_masks(t, margin).value
        mine = mask[..., None] * (t.action[:-1, ..., None] == np.arange(2 * WAITING))
        return (mine * target[..., None]).sum((0, 1, 2)), mine.sum((0, 1, 2))

    value = np.repeat(np.float32([0.0, NEVER_LEARNT]), WAITING)
    for _ in range(12):  # all rows at once: each sweep applies the operator whose fixed point is the value
        total, count = (np.asarray(x) for x in sweep(value))
        value = np.where(count > 0, total / np.maximum(count, 1), value).astype(np.float32)
    np.testing.assert_allclose(value[:WAITING], random_values(), atol=0.02)
    assert (value[WAITING:] == NEVER_LEARNT).all()


def test_margin_equals_the_longest_wait_of_a_row():
    """Turns of two: 2 rows. A seat that acts always or never: 1. Long waits cost at most a quarter of the rows."""
    turns, margin = trajectories(64), compiled(row_margin)
    assert margin(turns) == 2
    assert margin(turns._replace(acts=np.ones_like(turns.acts))) == 1
    assert margin(turns._replace(acts=np.zeros_like(turns.acts))) == 1
    rare = np.zeros_like(turns.acts)
    rare[::40] = 1
    assert margin(turns._replace(acts=rare, discount=np.ones_like(turns.discount), is_first=rare[..., 0] > 1)) == 16
    alone = turns._replace(acts=np.ones((65, 4), np.uint8), discount=np.zeros((65, 4)), is_first=np.ones((65, 4), bool))
    assert margin(alone) == 1


@pytest.mark.parametrize(("window", "goes_on"), [slow(2, "best"), slow(2, "random"), slow(3, "random"), (5, "random")])
def test_action_values_are_exact_for_windows_of_any_length(window, goes_on):
    """Windows start at every row. Windows of 3 and 5 rows end where the seat waits; 1 row cannot teach anything."""
    games = play(4001, 32, 1)
    rows = np.arange(4001 - window)[None] + np.arange(window + 1)[:, None]
    leaves = (games.seen[..., 0], games.is_first, games.action[..., 0], games.reward[..., 0], games.discount[..., 0])
    seen, *others, acts = (leaf[rows].reshape(window + 1, -1) for leaf in (*leaves, games.acts[..., 0]))  # of seat 0
    t = Trajectory(seen, *others, acts, (), (), (), ())
    batch = jax.tree.map(np.asarray, jax.jit(lambda t: transition(t, GAMMA))(t))
    chosen = batch.mask > 0
    place = batch.observation[chosen] * 2 + batch.action[chosen]
    value = np.repeat(np.float32([[0.0], [NEVER_LEARNT]]), WAITING, axis=0).repeat(2, axis=1)
    for _ in range(30):
        ahead = value.max(axis=1) if goes_on == "best" else value.mean(axis=1)
        target = batch.reward[chosen] + batch.discount[chosen] * ahead[batch.next_observation[chosen]]
        value[:WAITING] = (np.bincount(place, target, minlength=6) / np.bincount(place, minlength=6)).reshape(3, 2)
    exact = action_values(best_play() if goes_on == "best" else random_values())
    np.testing.assert_allclose(value[:WAITING], exact, atol=0.02)
