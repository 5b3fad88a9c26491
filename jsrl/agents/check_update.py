"""Checks of `update` on one device; the table is in jsrl.agents.check."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jsrl.agents.checking import (
    Broken,
    Checked,
    difference,
    expect,
    finite,
    matches,
    other_rows,
    paths,
    row,
    same,
    shifted,
    traced_alike,
)
from jsrl.agents.finite import with_output_check
from jsrl.agents.random_rows import acted_otherwise, changed, dead, terminated
from jsrl.types import Array, ArraySpec, Trajectory, Tree, map_tree

LONGEST_DELAY = 64  # updates until the policy changes
WARM = 3  # updates before the other checks


def update_traces(checked: Checked) -> None:
    """`update` can be traced, with importance weights and without, and is the same function each time."""
    state, rows = checked.state, checked.open_rows()
    before = [id(leaf) for leaf in jax.tree.leaves(state)]

    update = functools.partial(with_output_check(checked.agent.update, ()), state)
    traced_alike("update", update, rows, checked.key)
    expect(before == [id(leaf) for leaf in jax.tree.leaves(state)], "update writes to the state that it is given")
    weighted = rows._replace(sampling=np.ones(checked.num_envs, np.float32))
    _, output = jax.eval_shape(update, weighted, checked.key)
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
    zeros = {name: map_tree(np.zeros_like, getattr(rows, name)) for name in ("acts", "observation", "reward")}
    finite("update with mask 0 everywhere", checked.learn(rows._replace(**zeros)))


# -- rows that do not matter ------------------------------------------------------------------------------------------


def update_ignores_masked_rows(checked: Checked) -> None:
    """Action, log_prob and reward of a last observation's row (the next row is_first) change nothing."""
    rows = checked.varied()
    cut = np.concatenate([rows.is_first[1:], np.zeros((1, checked.num_envs), bool)])
    _ignores(checked, "other actions, log_probs and rewards in rows before is_first", rows, acted_otherwise(rows, cut))


def update_ignores_row_t(checked: Checked) -> None:
    """Action, log_prob, reward and discount of row T, which later rows bring, change nothing."""
    rows, last = checked.varied(), row(checked, checked.num_rows)
    other = terminated(acted_otherwise(rows, last), last)
    _ignores(checked, "another action, log_prob, reward and discount in row T", rows, other)


def update_ignores_next_episode(checked: Checked) -> str | None:
    """Nothing of the next episode's rows, which are masked, changes what is learned of an episode."""
    return _ignores_dead(checked, "of the next episode, which are masked", lambda number, last: number > last)


def update_ignores_episode_before(checked: Checked) -> str | None:
    """Nothing of the rows of the episode before, which are masked, changes what is learned of an episode."""
    return _ignores_dead(checked, "of the episode before, which are masked", lambda number, last: number <= last)


def update_ignores_masked_columns(checked: Checked) -> None:
    """Columns without a row to learn from change nothing."""
    odd = np.arange(checked.num_envs) % 2 == 1
    rows, where = checked.varied(), np.broadcast_to(odd, (checked.num_rows + 1, checked.num_envs))
    rows, new = dead(rows, where), checked.open_rows()
    other = other_rows(checked, rows, where)._replace(
        core=map_tree(lambda x, y: changed(x, odd, y), rows.core, new.core),
        sampling=map_tree(lambda x: changed(x, odd, 1.0), rows.sampling),
    )
    _ignores(checked, "other rows in columns that are masked", rows, other)


def _ignores_dead(checked: Checked, whose: str, choose: Callable[[Array, Array], Array]) -> str | None:
    if checked.num_rows < 2:
        return "needs num_rows of 2 or more"
    lasts = _inner_lasts(checked)
    where = choose(np.arange(checked.num_rows + 1)[:, None], lasts)
    rows = dead(checked.rows(lasts, np.arange(checked.num_envs) % 4 < 2), where)
    _ignores(checked, f"other rows {whose}", rows, other_rows(checked, rows, where))
    return None


def _inner_lasts(checked: Checked) -> np.ndarray:
    """Return last observations [B] after row 0 and before row T, at all places."""
    lasts: np.ndarray = 1 + np.arange(checked.num_envs) % (checked.num_rows - 1)
    return lasts


def _ignores(checked: Checked, what: str, rows: Trajectory, other: Trajectory) -> None:
    same(f"update with {what}", checked.learn(rows), checked.learn(other))


def update_resets_core(checked: Checked) -> str | None:
    """The stored core does not matter where row 0 begins an episode; elsewhere it does."""
    rows = checked.open_rows()
    if not jax.tree.leaves(rows.core) or difference(rows.core, checked.open_rows().core) is None:
        return "trajectories carry no core of floats"
    other = rows._replace(core=checked.random_core())
    begun = (t._replace(is_first=row(checked, 0)) for t in (rows, other))
    _ignores(checked, "another core before a row 0 that begins an episode", *begun)
    if not _matters(checked, rows, other) and not _matters(checked, rows, rows._replace(reward=rows.reward + 1.0)):
        return "update does not learn from rewards, so cores may be another policy's"
    where = "the core before row 0 changes nothing, even where row 0 goes on with an episode"
    expect(_matters(checked, rows, other), f"update: {where}")
    return None


# -- rows that do ------------------------------------------------------------------------------------------------------


def _matters(checked: Checked, rows: Trajectory, other: Trajectory) -> bool:
    return difference(checked.learn(rows)[0], checked.learn(other)[0]) is not None


def update_bootstraps(checked: Checked) -> str | None:
    """A termination stops the value of what follows; a time limit does not."""
    rows, last = checked.open_rows(), checked.num_rows
    if not _matters(checked, rows, rows._replace(reward=rows.reward + 1.0)):
        return "update does not learn from rewards"
    if not _matters(checked, rows, other_rows(checked, rows, row(checked, last))):
        return "update does not read the last observation"
    stops = _matters(checked, rows, terminated(rows, row(checked, last - 1)))
    expect(stops, "update: discount changes nothing, so values pass terminations")
    if last < 2:
        return None
    lasts = _inner_lasts(checked)
    cut = checked.rows(lasts)
    expect(
        _matters(checked, cut, terminated(cut, row(checked, lasts - 1))),
        "update: an episode that ends by a time limit (discount 1) is treated like one that terminates (discount 0)",
    )
    return None


def update_weighs_columns(checked: Checked) -> str | None:
    """Importance weights of prioritised replay change what an agent with priorities learns."""
    if not checked.priorities:
        return "update returns no priorities"
    rows = checked.open_rows()
    weighs = _matters(checked, rows, rows._replace(sampling=rows.sampling[::-1].copy()))
    expect(weighs, "update returns priorities, but trajectory.sampling, the importance weights, changes nothing")
    return None
