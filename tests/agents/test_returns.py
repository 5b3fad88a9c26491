"""Returns and masks against NumPy loops per episode and rlax: terminations, truncations, resets and all kinds of rows."""

import itertools

import numpy as np
import pytest

from jsrl.agents import returns
from jsrl.agents import rows as kinds_of_rows
from jsrl.agents.returns import Rows
from tests.agents.compiled import compiled
from tests.marks import slow

GAMMA, LAMBDA = 0.93, 0.87
gae = compiled(returns.gae)
n_step_returns, row_kinds = compiled(returns.n_step_returns, "n"), compiled(kinds_of_rows.row_kinds)
vtrace = compiled(returns.vtrace, "weight_advantage")


def make_rows(seed: int, *, num_rows: int = 40, trailing: tuple[int, ...] = (7,), waiting: bool = False) -> Rows:
    """Rows that follow the row table: each episode ends in a cut row (reward 0, discount 1) after a random length.

    waiting: rows of all kinds, in a mixture that differs between columns (none of one kind, only one kind, turns).
    """
    rng = np.random.default_rng(seed)
    shape = (num_rows, *trailing)
    value = rng.normal(size=(num_rows + 1, *trailing)).astype(np.float32)
    reward = rng.normal(size=shape).astype(np.float32)
    discount, is_first = np.ones(shape, np.float32), np.zeros((num_rows + 1, *trailing), bool)
    acts = np.ones((num_rows + 1, *trailing), np.uint8)
    if waiting:
        chances = rng.dirichlet((0.6, 0.6, 0.3), size=trailing)  # of waiting, acting, value-only
        acts[:] = (rng.random(acts.shape)[..., None] > np.cumsum(chances, axis=-1)).sum(axis=-1)
    for column in np.ndindex(*trailing):
        row = int(rng.integers(1, 9))
        while row < num_rows:  # row is the last observation of an episode that ended at row - 1
            discount[(row - 1, *column)] = rng.integers(2)
            reward[(row, *column)] = 0.0
            is_first[(row + 1, *column)] = True
            row += int(rng.integers(2, 12))
    return Rows(value, reward, discount, acts, is_first)


def columns(rows: Rows):
    exact = [np.asarray(leaf, np.float64) for leaf in rows]
    for column in np.ndindex(*rows.reward.shape[1:]):
        yield column, Rows(*(leaf[(slice(None), *column)] for leaf in exact))


def episodes(rows: Rows):
    """Yield (start, end) of each episode of one column: rows start..end-1, bootstrapped by the value at row end."""
    num_rows, start = len(rows.reward), 0
    for end in [*(t for t in range(num_rows) if rows.is_first[t + 1]), num_rows]:
        yield start, end
        start = end + 1


def decisions(rows: Rows, start: int, end: int):
    """Yield (row, reward until the agent's next row, discount until then, the agent's next row or end).

    Only for the agent's own rows (acting and value-only). The last one is omitted where it would bootstrap a waiting row.
    """
    own = [t for t in range(start, end) if rows.acts[t]]
    for t, following in zip(own, [*own, end][1:], strict=True):
        gathered, alive = 0.0, 1.0
        for row in range(t, following):
            gathered += alive * rows.reward[row]
            alive *= rows.discount[row]
        if rows.acts[following] or alive == 0:
            yield t, gathered, alive, following


def masks_of(rows: Rows):
    """Return (policy mask, value mask) of one column, bool [T]."""
    policy, value = np.zeros(len(rows.reward), bool), np.zeros(len(rows.reward), bool)
    for start, end in episodes(rows):
        for t, *_ in decisions(rows, start, end):
            policy[t], value[t] = rows.acts[t] == 1, True
    return policy, value


def slow_corrected(rows: Rows, rho, c, lambda_):
    """Forward sums of discounted corrections per episode: no backward recursion as in the code under test."""
    x = np.zeros(len(rows.reward))
    for start, end in episodes(rows):
        steps = list(decisions(rows, start, end))
        for i in range(len(steps)):
            weight = 1.0
            for t, r, d, following in steps[i:]:
                delta = r + GAMMA * d * rows.value[following] - rows.value[t]
                x[steps[i][0]] += weight * rho[t] * delta
                weight *= GAMMA * lambda_ * c[t] * d
    return x


def test_masks_of_a_thousand_schedules_equal_a_loop():
    rows = make_rows(10, num_rows=24, trailing=(1000,), waiting=True)
    kinds = row_kinds(rows.discount, rows.acts, rows.is_first)
    for (column,), single in columns(rows):
        policy, value = masks_of(single)
        np.testing.assert_array_equal(kinds.trained[:, column], value)
        np.testing.assert_array_equal((kinds.acting & kinds.trained)[:, column], policy)
    cut = rows.is_first[1:]
    assert not (kinds.trained & cut).any() and ((rows.acts[:-1] > 0) & ~cut & ~np.asarray(kinds.trained)).sum() > 100


def test_single_agent_trains_on_all_rows_but_last_observations():
    rows = make_rows(11)
    kinds = row_kinds(rows.discount, rows.acts, rows.is_first)
    np.testing.assert_array_equal(kinds.trained, ~rows.is_first[1:])
    np.testing.assert_array_equal(kinds.acting, ~rows.is_first[1:])


def test_acts_without_row_t_are_refused():
    rows = make_rows(0)
    with pytest.raises(ValueError, match=r"acts has shape \[40, 7\], expected \[41, 7\]: with row T"):
        gae(rows._replace(acts=rows.acts[:-1]), gamma=GAMMA, lambda_=LAMBDA)


def test_acts_on_all_rows_gives_plain_gae():
    """Value-only rows are discounted and corrected like acting rows, but have no advantage."""
    rows = make_rows(12, trailing=(1000,), num_rows=24)
    dead = rows._replace(acts=rows.acts + (np.random.default_rng(1).random(rows.acts.shape) < 0.5))
    plain, got = (gae(r, gamma=GAMMA, lambda_=LAMBDA) for r in (rows, dead))
    np.testing.assert_array_equal(got.target, plain.target)
    np.testing.assert_array_equal(got.advantage, np.where(dead.acts[:-1] == 1, plain.advantage, 0.0))


def test_acts_on_own_rows_gives_gae_over_own_rows():
    """A column without its waiting rows gives the same numbers; their rewards, undiscounted, belong to the row before."""
    rows = make_rows(13, num_rows=24, trailing=(200,))
    acts = (np.random.default_rng(2).random(rows.acts.shape) < 0.5).astype(np.uint8)
    acts[0], acts[-1] = 1, 1
    acts[rows.is_first] = 1
    acts[:-1][rows.is_first[1:]] = 1  # last observations
    rows = rows._replace(acts=acts)
    got = gae(rows, gamma=GAMMA, lambda_=LAMBDA)
    for (column,), single in columns(rows):
        own = np.flatnonzero(single.acts)
        reward, discount = np.zeros(len(own) - 1), np.ones(len(own) - 1)
        for i, (t, following) in enumerate(itertools.pairwise(own)):
            for row in range(t, following):
                reward[i] += discount[i] * single.reward[row]
                discount[i] *= single.discount[row]
        less = Rows(single.value[own], reward, discount, np.ones(len(own), np.uint8), single.is_first[own])
        advantage = np.zeros(len(own))
        for i in range(len(own) - 2, -1, -1):
            if not less.is_first[i + 1]:
                delta = reward[i] + GAMMA * discount[i] * less.value[i + 1] - less.value[i]
                advantage[i] = delta + GAMMA * LAMBDA * discount[i] * advantage[i + 1]
        np.testing.assert_allclose(got.advantage[own[:-1], column], advantage[:-1], atol=1e-5)


@pytest.mark.parametrize("waiting", [False, True])
@pytest.mark.parametrize("trailing", [(3, 2), (), (200,)])
def test_gae_equals_forward_sums_per_episode(trailing, waiting):
    rows = make_rows(0, num_rows=24, trailing=trailing, waiting=waiting)
    advantage, target = gae(rows, gamma=GAMMA, lambda_=LAMBDA)
    ones = np.ones(len(rows.reward))
    for column, single in columns(rows):
        expected = slow_corrected(single, ones, ones, LAMBDA)
        index = (slice(None), *column)
        policy, mask = masks_of(single)
        np.testing.assert_allclose(advantage[index], expected * policy, atol=1e-5)
        np.testing.assert_allclose(target[index][mask], (expected + single.value[:-1])[mask], atol=1e-5)


@pytest.mark.parametrize("lambda_", [0.0, LAMBDA, 1.0])
@pytest.mark.parametrize("waiting", [False, True])
def test_vtrace_equals_forward_sums_per_episode(waiting, lambda_):
    rows = make_rows(1, waiting=waiting)
    log_rho = np.random.default_rng(2).normal(size=rows.reward.shape).astype(np.float32)
    options = {"gamma": GAMMA, "lambda_": lambda_, "rho_clip": 1.1, "c_clip": 0.9}
    advantage, target = vtrace(rows, log_rho, **options)
    unweighted, _ = vtrace(rows, log_rho, weight_advantage=False, **options)
    for (column,), single in columns(rows):
        ratio = np.where(single.acts[:-1] == 1, np.exp(log_rho[:, column]), 1.0)
        rho = np.minimum(ratio, 1.1)
        x = slow_corrected(single, rho, np.minimum(ratio, 0.9), lambda_)
        expected = np.zeros(len(x))
        for start, end in episodes(single):
            for t, r, d, following in decisions(single, start, end):
                ahead = x[following] if following < end else 0.0
                value_ahead = single.value[following] + lambda_ * ahead
                expected[t] = (r + GAMMA * d * value_ahead - single.value[t]) * (single.acts[t] == 1)
        _, mask = masks_of(single)
        np.testing.assert_allclose(target[mask, column], (x + single.value[:-1])[mask], atol=2e-5)
        np.testing.assert_allclose(unweighted[:, column], expected, atol=2e-5)
        np.testing.assert_allclose(advantage[:, column], rho * expected, atol=2e-5)


@pytest.mark.parametrize("weight_advantage", [False, True])
@pytest.mark.parametrize("lambda_", [0.0, 0.95, 1.0])
def test_on_policy_vtrace_is_gae(lambda_, weight_advantage):
    rows = make_rows(3, waiting=True)
    options = {"gamma": GAMMA, "lambda_": lambda_}
    expected = gae(rows, **options)
    got = vtrace(rows, np.zeros_like(rows.reward), weight_advantage=weight_advantage, **options)
    np.testing.assert_allclose(got.target, expected.target, atol=1e-5)
    np.testing.assert_allclose(got.advantage, expected.advantage, atol=1e-5)


@pytest.mark.parametrize("n", [1, 3, 100])
def test_n_step_returns_equal_a_slow_window(n):
    rows = make_rows(5, waiting=True)
    got = n_step_returns(rows, gamma=GAMMA, n=n)
    for (column,), single in columns(rows):
        for start, end in episodes(single):
            steps = list(decisions(single, start, end))
            for i, (first, *_) in enumerate(steps):
                total, weight, bootstrap = 0.0, 1.0, end
                for _, r, d, following in steps[i : i + n]:
                    total += weight * r
                    weight *= GAMMA * d
                    bootstrap = following
                np.testing.assert_allclose(got[first, column], total + weight * single.value[bootstrap], atol=2e-5)


def test_n_step_refuses_an_empty_window():
    with pytest.raises(ValueError, match="n >= 1, got 0"):
        n_step_returns(make_rows(0), gamma=GAMMA, n=0)


def test_the_row_table_by_hand():
    """Two steps, truncated; then one step, terminated: v(o2) bootstraps, v(o5) does not, masked rows give 0."""
    value = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], np.float32)
    reward = np.array([10.0, 20.0, 0.0, 30.0, 0.0], np.float32)
    discount = np.array([1.0, 1.0, 1.0, 0.0, 1.0], np.float32)
    is_first = np.array([1, 0, 0, 1, 0, 1], bool)
    rows = Rows(value, reward, discount, np.ones(6, np.uint8), is_first)
    advantage, _ = gae(rows, gamma=0.5, lambda_=0.5)
    second = 20.0 + 0.5 * 3.0 - 2.0
    first = (10.0 + 0.5 * 2.0 - 1.0) + 0.25 * second
    np.testing.assert_allclose(advantage, [first, second, 0.0, 30.0 - 4.0, 0.0])


def test_rows_after_a_cut_do_not_affect_earlier_rows():
    rows = make_rows(6)
    changed = rows._replace(value=rows.value.copy(), reward=rows.reward.copy())
    for column in range(rows.reward.shape[1]):
        reset = int(np.flatnonzero(rows.is_first[:, column])[1])
        changed.value[reset:, column] += 100.0
        changed.reward[reset:, column] -= 50.0
        before, after = (gae(r, gamma=GAMMA, lambda_=LAMBDA).advantage[:reset, column] for r in (rows, changed))
        np.testing.assert_array_equal(before, after)


def test_is_first_of_an_environment_applies_to_all_its_agents():
    rows = make_rows(7, trailing=(4, 1))
    agents = Rows(*(np.repeat(leaf, 3, axis=2) for leaf in rows))
    shared = agents._replace(is_first=rows.is_first[..., 0])
    options = {"gamma": GAMMA, "lambda_": LAMBDA}
    np.testing.assert_array_equal(gae(shared, **options).advantage, gae(agents, **options).advantage)


@pytest.mark.parametrize(
    ("lambda_", "rho_clip"),
    [(0.0, 1.0), (0.5, 1.0), (0.95, 1.0), (1.0, 1.0), (0.95, 1.3), slow(0.0, 1.3), slow(0.5, 1.3), slow(1.0, 1.3)],
)
def test_vtrace_agrees_with_rlax_for_every_lambda(lambda_, rho_clip):
    rlax = pytest.importorskip("rlax", exc_type=ImportError)
    rng = np.random.default_rng(9)
    value, reward = rng.normal(size=31).astype(np.float32), rng.normal(size=30).astype(np.float32)
    discount = (rng.random(30) < 0.9).astype(np.float32)
    rows = Rows(value, reward, discount, np.ones(31, np.uint8), np.zeros(31, bool))
    for log_rho in (np.zeros(30, np.float32), rng.normal(size=30).astype(np.float32)):
        oracle = compiled(rlax.vtrace_td_error_and_advantage)
        expected = oracle(value[:-1], value[1:], reward, discount * GAMMA, np.exp(log_rho), lambda_, rho_clip, rho_clip)
        got = vtrace(rows, log_rho, gamma=GAMMA, lambda_=lambda_, rho_clip=rho_clip)
        np.testing.assert_allclose(got.target - value[:-1], expected.errors, atol=1e-5)
        np.testing.assert_allclose(got.advantage, expected.pg_advantage, atol=1e-5)


@pytest.mark.slow
def test_gae_and_returns_agree_with_rlax():
    rlax = pytest.importorskip("rlax", exc_type=ImportError)
    rng = np.random.default_rng(8)
    value, reward = rng.normal(size=21).astype(np.float32), rng.normal(size=20).astype(np.float32)
    discount = (rng.random(20) < 0.9).astype(np.float32)
    rows = Rows(value, reward, discount, np.ones(21, np.uint8), np.zeros(21, bool))
    expected = compiled(rlax.truncated_generalized_advantage_estimation)(reward, discount * GAMMA, LAMBDA, value)
    np.testing.assert_allclose(gae(rows, gamma=GAMMA, lambda_=LAMBDA).advantage, expected, atol=1e-5)
    lambda_oracle = compiled(rlax.lambda_returns)(reward, discount * GAMMA, value[1:], LAMBDA)
    np.testing.assert_allclose(gae(rows, gamma=GAMMA, lambda_=LAMBDA).target, lambda_oracle, atol=1e-5)
    n_oracle = compiled(lambda *rows: rlax.n_step_bootstrapped_returns(*rows, 4))(reward, discount * GAMMA, value[1:])
    np.testing.assert_allclose(n_step_returns(rows, gamma=GAMMA, n=4), n_oracle, atol=1e-5)
