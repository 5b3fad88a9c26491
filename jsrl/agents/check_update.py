"""Checks of `update`; the table is in jsrl.agents.check."""

from __future__ import annotations

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jsrl.agents.base import UpdateOutput
from jsrl.agents.checking import (
    Broken,
    Checked,
    difference,
    expect,
    finite,
    matches,
    other_rows,
    paths,
    same,
    shifted,
    traced_alike,
)
from jsrl.agents.finite import check_layout, check_metrics
from jsrl.types import Array, ArraySpec, Trajectory, Tree, map_trajectory, map_tree, spread

LONGEST_DELAY = 64  # updates until the policy changes
WARM = 3  # updates before the other checks
ROUNDING = 1e-6  # relative; rewards are changed by this to see how far rounding errors go
TIMES = 100.0  # differences of so many times that are no rounding errors


def update_traces(checked: Checked) -> None:
    """`update` can be traced, with importance weights and without, and is the same function each time."""
    state, rows = checked.state, checked.open_rows()
    before = [id(leaf) for leaf in jax.tree.leaves(state)]

    def update(trajectory: Trajectory, key: Array) -> Any:
        returned = checked.agent.update(state, trajectory, key)
        right = isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], UpdateOutput)
        expect(right, f"update returned {type(returned).__name__}, expected (AgentState, UpdateOutput)")
        check_layout("update: the new state", state, returned[0])
        check_metrics(returned[1].metrics)
        return returned

    traced_alike("update", update, rows, checked.key)
    expect(before == [id(leaf) for leaf in jax.tree.leaves(state)], "update writes to the state that it is given")
    weighted = rows._replace(sampling=np.ones(checked.num_envs, np.float32))
    _, output = jax.eval_shape(checked.agent.update, state, weighted, checked.key)
    checked.priorities = output.priorities is not None
    if checked.priorities:
        matches("update: priorities", output.priorities, ArraySpec((checked.num_envs,), str(output.priorities.dtype)))


def update_contract(checked: Checked) -> None:
    """State and metrics stay finite; something is learned; the same inputs give the same outputs."""
    before = jax.tree.map(np.array, checked.state)
    trajectory = checked.varied()
    begin = time.perf_counter()
    state, output = jax.block_until_ready(checked.update(checked.state, trajectory, checked.key))
    between = time.perf_counter()
    again, _ = jax.block_until_ready(checked.update(checked.state, trajectory, checked.key))
    checked.seconds |= {"update_compile_s": between - begin, "update_s": time.perf_counter() - between}
    finite("update: the new state", state)
    finite("update: metrics", output.metrics)
    updates = int(state.updates)
    expect(updates == 1, f"update: updates is {updates} after the first update, expected 1")
    same("update called twice with the same arguments", state, again)
    same("the state handed to update", before, checked.state)
    learned = any(_changed(a, b) for a, b in zip(before[:4], state[:4], strict=True))
    expect(learned, "update: no number of the state but counters changed; nothing was learned from random rows")


def _changed(before: Tree, after: Tree) -> bool:
    """Return whether a number that is no counter differs."""
    pairs = zip(paths(before), paths(after), strict=True)
    return any(a.dtype.kind not in "iub" and (a != b).any() for (_, a), (_, b) in pairs)


def update_learns(checked: Checked) -> None:
    """Within 64 updates the policy and the learner's own weights change; states are finite and count their updates."""
    state = checked.state
    kept = [leaf for _, leaf in paths(state.learner_params)]
    acting = [leaf for _, leaf in paths(state.params)]
    # of target networks alone: copies, which may stay so for longer
    stored = all(any(np.array_equal(leaf, other) for other in acting) for leaf in kept)
    for number in range(LONGEST_DELAY):
        rows = checked.acted(state.params, checked.varied())  # else `target_kl` and the like would stop each update
        new, output = checked.update(state, rows, jax.random.fold_in(checked.key, number))
        stored = stored or difference(checked.state.learner_params, new.learner_params) is not None
        if stored and number >= WARM and _changed(state.params.weights, new.params.weights):
            break
        state = new
    else:
        were = f"what they were after {LONGEST_DELAY} updates"
        expect(stored, f"update: learner_params are {were}; store them in the new state")
        raise Broken(f"update: params.weights are {were} with random rows")
    finite(f"update {number}: the new state", state)
    finite(f"update {number}: metrics", output.metrics)
    expect(int(state.updates) == number, f"update: updates is {int(state.updates)} after {number} updates")
    checked.learned = state
    params = state.params._replace(weights=shifted(state.params.weights, checked.rng))
    moved = state._replace(params=params, learner_params=shifted(state.learner_params, checked.rng))
    ends = jax.tree.leaves(checked.update(moved, checked.varied(), checked.key))
    works = all(np.isfinite(leaf).all() for leaf in ends if jnp.issubdtype(leaf.dtype, jnp.floating))
    checked.trained = moved if works else state


def update_priorities(checked: Checked) -> str | None:
    """Priorities are finite, and 0 or more."""
    if not checked.priorities:
        return "update returns no priorities"
    for state in (checked.state, checked.trained):
        priorities = np.asarray(checked.update(state, checked.varied(), checked.key)[1].priorities)
        finite("update: priorities", priorities)
        expect((priorities >= 0).all(), f"update: priorities has numbers below 0, such as {priorities.min():.3g}")
    return None


def update_without_trained_rows(checked: Checked) -> None:
    """A batch of zeros in which no row is trained on gives no NaN."""
    rows = checked.open_rows()
    empty = rows._replace(
        acts=np.zeros_like(rows.acts),
        observation=map_tree(np.zeros_like, rows.observation),
        reward=np.zeros_like(rows.reward),
    )
    finite("update with mask 0 everywhere", checked.learn(empty))


# -- rows that do not matter ------------------------------------------------------------------------------------------


def update_ignores_masked_rows(checked: Checked) -> None:
    """Action, log_prob and reward of a last observation's row (the next row is_first) change nothing."""
    rows = checked.varied()
    cut = np.concatenate([rows.is_first[1:], np.zeros((1, checked.num_envs), bool)])
    _ignores(checked, "other actions, log_probs and rewards in rows before is_first", rows, _acted_otherwise(rows, cut))


def update_ignores_row_t(checked: Checked) -> None:
    """Action, log_prob, reward and discount of row T, which later rows bring, change nothing."""
    rows = checked.varied()
    last = np.zeros_like(rows.is_first)
    last[-1] = True
    other = _terminated(_acted_otherwise(rows, last), checked.num_rows)
    _ignores(checked, "another action, log_prob, reward and discount in row T", rows, other)


def _acted_otherwise(rows: Trajectory, where: Array) -> Trajectory:
    def change(leaf: Array, value: float) -> Array:
        return np.where(spread(where, leaf), np.asarray(value, leaf.dtype), leaf)

    return rows._replace(
        action=change(rows.action, 0), log_prob=change(rows.log_prob, -50.0), reward=change(rows.reward, 1e4)
    )


def _dead(rows: Trajectory, where: Array) -> Trajectory:
    """Return rows of which nothing is to be learned where [T+1, B] says so: waiting, and each a last observation."""
    acts = np.where(spread(where, rows.acts), 0, rows.acts).astype(rows.acts.dtype)
    return rows._replace(acts=acts, is_first=rows.is_first | where)


def update_ignores_next_episode(checked: Checked) -> str | None:
    """Nothing of the next episode's rows, which are masked, changes what is learned of an episode."""
    return _ignores_dead(checked, "of the next episode, which are masked", lambda number, last: number > last)


def update_ignores_episode_before(checked: Checked) -> str | None:
    """Nothing of the rows of the episode before, which are masked, changes what is learned of an episode."""
    return _ignores_dead(checked, "of the episode before, which are masked", lambda number, last: number <= last)


def update_ignores_masked_columns(checked: Checked) -> None:
    """Columns without a row to learn from change nothing."""
    rows = checked.varied()
    where = np.broadcast_to(np.arange(checked.num_envs) % 2 == 1, rows.is_first.shape)
    rows = _dead(rows, where)
    other = other_rows(checked, rows, where)
    odd = where[0]
    core = map_tree(lambda x, y: np.where(spread(odd, x), y, x), rows.core, checked.open_rows().core)
    sampling = map_tree(lambda x: np.where(odd, np.float32(1.0), x), rows.sampling)
    other = other._replace(core=core, sampling=sampling)
    _ignores(checked, "other rows in columns that are masked", rows, other)


def _ignores_dead(checked: Checked, whose: str, choose: Any) -> str | None:
    if checked.num_rows < 2:
        return "needs num_rows of 2 or more"
    lasts = 1 + np.arange(checked.num_envs) % (checked.num_rows - 1)
    rows = checked.rows(lasts, np.arange(checked.num_envs) % 4 < 2)
    where = choose(np.arange(checked.num_rows + 1)[:, None], lasts)
    rows = _dead(rows, where)
    _ignores(checked, f"other rows {whose}", rows, other_rows(checked, rows, where))
    return None


def _ignores(checked: Checked, what: str, rows: Trajectory, other: Trajectory) -> None:
    same(f"update with {what}", checked.learn(rows), checked.learn(other))


def update_resets_core(checked: Checked) -> str | None:
    """The stored core does not matter where row 0 begins an episode; elsewhere it does."""
    rows = checked.open_rows()
    if not jax.tree.leaves(rows.core) or difference(rows.core, checked.open_rows().core) is None:
        return "trajectories carry no core of floats"
    other = rows._replace(core=checked.random_core(checked.num_envs))
    first = np.zeros_like(rows.is_first)
    first[0] = True
    ends = (checked.learn(t._replace(is_first=first)) for t in (rows, other))
    same("update with another core before a row 0 that begins an episode", *ends)
    matters = difference(checked.learn(rows), checked.learn(other)) is not None
    if not matters and difference(checked.learn(rows), checked.learn(rows._replace(reward=rows.reward + 1.0))) is None:
        return "update does not learn from rewards, so cores may be another policy's"
    expect(matters, "update: the core before row 0 changes nothing, even where row 0 goes on with an episode")
    return None


# -- rows that do ------------------------------------------------------------------------------------------------------


def update_bootstraps(checked: Checked) -> str | None:
    """A termination stops the value of what follows; a time limit does not."""
    rows = checked.open_rows()
    begun = checked.learn(rows)

    def matters(other: Trajectory, than: Any = begun) -> bool:
        return difference(than[0], checked.learn(other)[0]) is not None

    last = np.zeros_like(rows.is_first)
    last[-1] = True
    if not matters(rows._replace(reward=rows.reward + 1.0)):
        return "update does not learn from rewards"
    if not matters(other_rows(checked, rows, last)):
        return "update does not read the last observation"
    expect(
        matters(_terminated(rows, checked.num_rows - 1)),
        "update: discount changes nothing, so values pass terminations",
    )
    if checked.num_rows < 2:
        return None
    lasts = 1 + np.arange(checked.num_envs) % (checked.num_rows - 1)
    cut = checked.rows(lasts)
    counts = matters(_terminated(cut, lasts - 1), checked.learn(cut))
    expect(
        counts,
        "update: an episode that ends by a time limit (discount 1) is treated like one that terminates (discount 0)",
    )
    return None


def _terminated(rows: Trajectory, where: Any) -> Trajectory:
    number = np.arange(len(rows.is_first))[:, None] == where
    here = np.broadcast_to(number, rows.is_first.shape)
    return rows._replace(discount=np.where(spread(here, rows.discount), np.float32(0.0), rows.discount))


def update_weighs_columns(checked: Checked) -> str | None:
    """Importance weights of prioritised replay change what an agent with priorities learns."""
    if not checked.priorities:
        return "update returns no priorities"
    rows = checked.open_rows()
    other = rows._replace(sampling=rows.sampling[::-1].copy())
    matters = difference(checked.learn(rows)[0], checked.learn(other)[0]) is not None
    expect(matters, "update returns priorities, but trajectory.sampling, the importance weights, changes nothing")
    return None


# -- devices -----------------------------------------------------------------------------------------------------------


def devices_agree(checked: Checked) -> None:
    """Two devices that see other columns hold one and the same state and metrics."""
    first, second = checked.varied(), checked.varied()
    ours, theirs, _ = _on_two(checked, first, second)
    check_layout("update on 2 devices", checked.trained, ours[0])
    found = _unlike(ours, theirs, _rounding(checked, first))
    expect(found is None, f"update on 2 devices: what device 0 and device 1 hold: {found}")


def devices_sum(checked: Checked) -> None:
    """A second device whose rows are all masked changes nothing: sums and counts are those of all devices."""
    rows = checked.varied()
    where = np.ones_like(rows.is_first)
    ours, _, _ = _on_two(checked, rows, _dead(rows, where))
    rounding = _rounding(checked, rows)
    found = _unlike(ours, checked.learn(rows), rounding)
    if found is None:
        return
    # a right agent may draw otherwise under an axis ...
    state, output = checked.on_devices(checked.trained, _stack(rows), checked.key)
    if _unlike(ours, (_of(state, 0), _of(output.metrics, 0)), rounding) is None:
        return
    # ... or choose by the size of the whole batch: then its columns are the two devices' together
    found = found and _two_and_one(checked, rows, _dead(rows, where))
    what = "update on 2 devices, the second without a row to learn from, and on one"
    expect(found is None, f"{what}: {found}")


def devices_equal_one(checked: Checked) -> str | None:
    """Two devices learn from unlike columns what one learns from all of them, if it is so with equal columns."""
    rows, second = checked.varied(), checked.varied()
    if _two_and_one(checked, rows, rows) is not None:
        return "update draws otherwise on two devices"
    other = second._replace(reward=second.reward + 1.0, sampling=map_tree(lambda x: x / 2, second.sampling))
    found = _two_and_one(checked, rows, other)
    expect(found is None, f"update on 2 devices with unlike columns, and on one with all of them: {found}")
    return None


def _two_and_one(checked: Checked, *shares: Trajectory) -> str | None:
    """Return how two devices with these shares differ from one that has the columns of both."""
    joint = map_trajectory(
        lambda *leaves: np.concatenate(leaves, axis=1), lambda *leaves: np.concatenate(leaves), *shares
    )
    return _unlike(_on_two(checked, *shares)[0], checked.learn(joint), _rounding(checked, joint))


def _columns(rows: Trajectory, columns: Array) -> Trajectory:
    return map_trajectory(lambda leaf: leaf[:, columns], lambda leaf: np.asarray(leaf)[columns], rows)


def devices_draw_apart(checked: Checked) -> str | None:
    """Equal columns on two devices get other noise, if equal columns on one device do."""
    rows = checked.open_rows()
    if not checked.priorities:
        return "update returns no priorities"
    for column in range(checked.num_envs):  # where values are saturated, noise changes nothing
        equal = _columns(rows, np.full(checked.num_envs, column))
        ours, theirs = np.asarray(_on_two(checked, equal, equal)[2])
        if np.ptp(ours) > 1e-4 * np.abs(ours).max():
            apart = not np.allclose(ours, theirs, rtol=1e-4)
            expect(apart, "update on 2 devices: both draw the same noise for their columns")
            return None
    return "update draws no noise for each column"


def _stack(*shares: Trajectory) -> Trajectory:
    return jax.tree.map(lambda *leaves: np.stack(leaves), *shares)


def _of(tree: Tree, device: int) -> Tree:
    return jax.tree.map(lambda x: x[device], tree)


def _on_two(checked: Checked, first: Trajectory, second: Trajectory) -> tuple[Tree, Tree, Tree]:
    """Return state and metrics of device 0, those of device 1, and the priorities of both, [2, B]."""
    state, output = checked.on_devices(checked.trained, _stack(first, second), checked.key)
    ours, theirs = ((_of(state, device), _of(output.metrics, device)) for device in (0, 1))
    return ours, theirs, output.priorities


def _rounding(checked: Checked, rows: Trajectory) -> list[float]:
    """Return for each leaf of state and metrics how far rounding errors of the rewards take it in this update."""
    noise = 1.0 + ROUNDING * checked.rng.choice([-1.0, 1.0], rows.reward.shape)
    jittered = rows._replace(reward=(rows.reward * noise).astype(np.float32))
    pairs = zip(paths(checked.learn(rows)), paths(checked.learn(jittered)), strict=True)
    return [float(np.abs(x - y).max(initial=0.0)) if x.dtype.kind == "f" else 0.0 for (_, x), (_, y) in pairs]


def _unlike(ours: Tree, theirs: Tree, rounding: list[float]) -> str | None:
    """Return how state and metrics differ by more than rounding errors."""
    worst, text = 1.0, None
    for (path, x), (_, y), error in zip(paths(ours), paths(theirs), rounding, strict=True):
        if x.dtype.kind != "f":
            continue
        size = float(np.abs(x).max(initial=0.0))
        off, allowed = float(np.abs(x - y).max(initial=0.0)), TIMES * error + 1e-4 * size + 1e-7
        if not off <= worst * allowed:
            worst, text = off / allowed, f"leaf {path} differs by {off:.3g}, of values up to {size:.3g}"
    return text
