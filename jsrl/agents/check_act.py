"""Checks of `init`, `initial_core` and `act`; the table is in jsrl.agents.check."""

from __future__ import annotations

import math
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jsrl.agents.base import ActOutput, ActParams, AgentState
from jsrl.agents.checking import (
    Checked,
    batch_axis,
    close,
    difference,
    expect,
    finite,
    matches,
    same,
    traced_alike,
)
from jsrl.agents.finite import check_layout
from jsrl.agents.random_rows import action_nums, random_observation
from jsrl.types import Array, ArraySpec, Continuous, Discrete, Tree, map_tree, named_leaves, spec_of, spread

CALLS = 512  # draws of each row's action
UNLIKELY = 8.0  # standard deviations of chi-squared
NEAR, DIGAMMA_NEAR = 4, 1.256  # among neighbours of a draw the one whose distance counts, and digamma(4)
RARER = "act: actions are not as frequent as log_prob says"


def init(checked: Checked) -> None:
    """The state is an AgentState of arrays, the same for the same key."""

    def made(key: Array) -> AgentState:
        state = checked.agent.init(key)
        expect(isinstance(state, AgentState), f"init returned {type(state).__name__}, expected AgentState")
        for name, leaf in named_leaves(jax.tree.map(lambda x: x, state.params)):
            what = f"init: params/{name} is {type(leaf).__name__}"
            expect(hasattr(leaf, "dtype"), f"{what}, expected an array; wrap it in jnp")
        return state

    traced_alike("init", made, checked.key)
    state = checked.state = jax.jit(made)(checked.key)
    right = state.updates.shape == () and state.updates.dtype == jnp.int32 and int(state.updates) == 0
    expect(right, f"init: updates is {state.updates!r}, expected an int32 scalar 0")


def initial_core(checked: Checked) -> None:
    """Core leaves have a leading batch axis and equal rows."""
    core = checked.core = checked.agent.initial_core(checked.num_envs)
    batch_axis(f"initial_core({checked.num_envs})", core, checked.num_envs)
    for name, leaf in named_leaves(core):
        expect(bool((leaf == leaf[:1]).all()), f"initial_core: the rows of leaf {name or 'core'} differ")


def act_outputs(checked: Checked) -> None:
    """Shapes, dtypes and ranges of ActOutput; the core keeps its layout; the same key gives the same action."""
    request = checked.request()
    begin = time.perf_counter()
    output, core = jax.block_until_ready(checked.act(checked.state.params, checked.key, *request))
    between = time.perf_counter()
    again = jax.block_until_ready(checked.act(checked.state.params, checked.key, *request))
    checked.seconds |= {"act_compile_s": between - begin, "act_s": time.perf_counter() - between}
    expect(isinstance(output, ActOutput), f"act returned {type(output).__name__}, expected (ActOutput, core)")
    agents = () if checked.spec.num_agents is None else (checked.spec.num_agents,)
    matches("act: action", output.action, checked.spec.action.array.batched(checked.num_envs, *agents))
    matches("act: log_prob", output.log_prob, ArraySpec((checked.num_envs, *agents), "float32"))
    batch_axis("act: extras", output.extras, checked.num_envs)
    check_layout("act: the new core against initial_core", checked.core, core)
    _in_range(checked, output)
    same("act called twice with one key", (output, core), again)
    checked.extras = map_tree(lambda leaf: ArraySpec(leaf.shape[1:], leaf.dtype), spec_of(output.extras))


def _in_range(checked: Checked, output: ActOutput) -> None:
    finite("act: log_prob", output.log_prob)
    action = np.asarray(output.action)
    if isinstance(checked.spec.action, Continuous):
        finite("act: action", action)
        return
    nums = np.array(action_nums(checked.spec))
    good = bool(((action >= 0) & (action < nums)).all())
    expect(good, f"act: actions from {action.min()} to {action.max()} are not all in 0..{(nums - 1).tolist()}")


def act_keeps_nothing(checked: Checked) -> None:
    """`act` changes no argument and keeps no value between its calls: not in a closure, and not in params."""
    request, given = checked.request(), checked.state.params
    copies = []

    def act(key: Any, *request: Any) -> Any:
        copies.append(jax.tree.map(lambda leaf: leaf, given))  # the same leaves in containers of its own
        return checked.agent.act(copies[-1], key, *request)

    traced_alike("act", act, checked.key, *request)
    before, after = (dict(jax.tree_util.tree_leaves_with_path(params)) for params in (given, copies[-1]))
    changed = [path for path in before | after if before.get(path) is not after.get(path)]
    expect(not changed, f"act writes to params: leaf {jax.tree_util.keystr(changed[0]) if changed else ''} is replaced")


def act_after_updates(checked: Checked) -> None:
    """`act` gives finite actions and log-probabilities with the params after updates, too."""
    for greedy in (False, True):
        output, core = checked.act(checked.trained.params, checked.key, *checked.request(), greedy=greedy)
        _in_range(checked, output)
        finite("act: the new core", core)


def act_batch_sizes(checked: Checked) -> None:
    """Any batch size works, and a row alone gives what it gives in a batch (to rounding)."""
    request = checked.request()
    params = checked.trained.params
    whole, _ = checked.act(params, checked.key, *request, greedy=True)
    alone, _ = checked.act(params, checked.key, *(jax.tree.map(lambda x: x[:1], part) for part in request), greedy=True)
    close("act: greedy log_prob of the first row alone and in a batch", alone.log_prob, whole.log_prob[:1])
    three = jax.tree.map(lambda x: x[:3], request)
    shape = jax.eval_shape(checked.agent.act, params, checked.key, *three)[0].action.shape
    expect(shape[0] == len(request[1][:3]), f"act: of 3 rows, action has shape {shape}")


def act_rows_apart(checked: Checked) -> None:
    """Actions, log-probabilities and cores do not depend on the other rows, whether sampled or greedy."""
    request, other = checked.request(), checked.request()
    keep = np.arange(checked.num_envs) // 2 % 2 == 0  # of rows that begin an episode and of others
    mixed = tuple(
        map_tree(lambda x, y: np.where(spread(keep, np.asarray(x)), x, y), a, b)
        for a, b in zip(request, other, strict=True)
    )
    for params in checked.policies:
        for greedy in (False, True):
            ends = [checked.act(params, checked.key, *rows, greedy=greedy) for rows in (request, mixed)]
            ends = [jax.tree.map(lambda x: np.asarray(x)[keep], end) for end in ends]
            close(f"act(greedy={greedy}) with other observations in the other rows", *ends)


def act_greedy(checked: Checked) -> None:
    """Greedy actions do not depend on the key, where two actions are nearly equal neither."""
    keys = jax.random.split(checked.key, 8)
    for params in checked.policies:
        request = checked.request()
        for rows in (request, _near_ties(checked, params, request)):
            actions = [checked.act(params, key, *rows, greedy=True)[0].action for key in keys]
            for action in actions[1:]:
                same("act(greedy=True) with two keys", actions[0], action)


def _near_ties(checked: Checked, params: ActParams, request: Any) -> Any:
    """Return the request with observations between two that choose unlike actions, as near to the change as floats are."""
    low, is_first, core = request
    high = random_observation(checked.spec, checked.rng, checked.num_envs)

    def choose(observation: Tree) -> np.ndarray:
        action = checked.act(params, checked.key, observation, is_first, core, greedy=True)[0].action
        return np.asarray(action).reshape(checked.num_envs, -1)

    if isinstance(checked.spec.action, Continuous):
        return request
    first = choose(low)
    for _ in range(24):
        middle = map_tree(lambda x, y: x + (y - x) / 2 if x.dtype.kind == "f" else x, low, high)
        alike = (choose(middle) == first).all(axis=1)
        low = map_tree(lambda x, m, a=alike: np.asarray(np.where(spread(a, x), m, x), x.dtype), low, middle)
        high = map_tree(lambda x, m, a=alike: np.asarray(np.where(spread(a, x), x, m), x.dtype), high, middle)
    return low, is_first, core


def act_resets_core(checked: Checked) -> str | None:
    """Where is_first is set, the incoming core does not matter; elsewhere it does."""
    if not jax.tree.leaves(checked.core):
        return "feed-forward, there is no core"
    observation, _, core = checked.request()
    other = checked.random_core()
    if difference(core, other) is None:
        return "the core holds no floats"
    params = checked.trained.params
    for first in (True, False):
        is_first = np.full(checked.num_envs, first)
        ends = [checked.act(params, checked.key, observation, is_first, c) for c in (core, other)]
        if first:
            same("act: the core after is_first, from two different cores", ends[0][1], ends[1][1])
            same("act: the action of a row with is_first, from two different cores", ends[0][0], ends[1][0])
        else:
            unequal = difference(ends[0], ends[1]) is not None
            expect(unequal, "act: the core that comes in changes nothing without is_first; carry it on")
    return None


def act_obeys_mask(checked: Checked) -> str | None:
    """Actions that `action_mask` forbids are never chosen."""
    if not (isinstance(checked.spec.observation, dict) and "action_mask" in checked.spec.observation):
        return "the observation has no action_mask"
    nums = action_nums(checked.spec)
    for number in range(8):
        observation, is_first, core = checked.request()
        given = observation["action_mask"]
        allowed = [checked.rng.integers(num, size=given.shape[:-1]) for num in nums]
        mask = np.concatenate([np.eye(num)[only] for num, only in zip(nums, allowed, strict=True)], axis=-1)
        observation = {**observation, "action_mask": mask.astype(given.dtype)}
        wanted = allowed[0] if isinstance(checked.spec.action, Discrete) else np.stack(allowed, axis=-1)
        key = jax.random.fold_in(checked.key, number)
        for params in checked.policies:
            output, _ = checked.act(params, key, observation, is_first, core, greedy=number % 2 == 1)
            wrong = int((np.asarray(output.action) != wanted).sum())
            expect(not wrong, f"act: action_mask allowed one action in each row, and {wrong} other actions were chosen")
    return None


def _going_on(checked: Checked, params: ActParams) -> Any:
    """Return a request in episodes that go on, with the cores of their first rows: what a core draws anew is drawn there."""
    before, after = checked.request(), checked.request()
    _, core = checked.act(params, checked.key, before[0], np.ones(checked.num_envs, bool), before[2])
    return after[0], np.zeros(checked.num_envs, bool), core


def _draws(checked: Checked, params: ActParams, *request: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return log-probabilities [n, R] and actions [n, R, A] of n keys."""
    outputs = [checked.act(params, key, *request)[0] for key in jax.random.split(checked.key, CALLS)]
    logs = np.stack([np.asarray(output.log_prob, np.float64) for output in outputs]).reshape(CALLS, -1)
    return logs, np.stack([np.asarray(output.action) for output in outputs]).reshape(*logs.shape, -1)


def act_log_prob(checked: Checked) -> str | None:
    """Actions are as frequent as exp(log_prob) says, before the first update and later."""
    action = checked.spec.action
    for params in checked.policies:
        observation, is_first, core = _going_on(checked, params)
        logs, actions = _draws(checked, params, observation, is_first, core)
        if not logs.any():
            continue
        if not checked.agent.store_core and (actions == actions[:1]).all():  # the core holds the noise
            logs, actions = _draws(checked, params, observation, ~is_first, core)
        if isinstance(action, Continuous):
            _density(*_unbounded(actions.astype(np.float64), logs, action))
        else:
            _frequencies(np.ravel_multi_index(tuple(np.moveaxis(actions, -1, 0)), action_nums(checked.spec)), logs)
    return None if logs.any() else "log_prob is 0 everywhere"


def _frequencies(actions: np.ndarray, logs: np.ndarray) -> None:
    """Compare draws of discrete actions [n, R] with their log-probabilities, by chi-squared over all rows."""
    number, errors, cells = len(actions), [], []
    for row in range(actions.shape[1]):
        total = 0.0
        for action in np.unique(actions[:, row]):
            drawn = actions[:, row] == action
            off = float(np.ptp(logs[drawn, row]))
            expect(off < 1e-2, f"act: log_prob of one action in one state differs by up to {off:.3g} between keys")
            p = float(np.exp(logs[drawn, row].mean()))
            total += p
            errors.append((drawn.sum() - number * p) ** 2 / (number * p * max(1.0 - p, 0.0) + 1.0))
            cells.append((drawn.mean(), p))
        expect(total < 1.01, f"act: probabilities exp(log_prob) of the actions of one state sum to {total:.3f}")
    drawn, p = max(cells, key=lambda cell: abs(cell[0] - cell[1]))
    far = sum(errors) - len(errors) > UNLIKELY * np.sqrt(2.0 * len(errors))
    expect(not far, f"{RARER}: one is chosen in {drawn:.2f} of its draws, exp(log_prob) is {p:.2f}")


def _unbounded(actions: np.ndarray, logs: np.ndarray, spec: Continuous) -> tuple[np.ndarray, np.ndarray]:
    """Return real actions in their bounds before tanh, where no density is infinite, and log-probabilities of these."""
    if not spec.bounded:
        return actions, logs
    if spec.transform != "squash":
        low, high = (-1.0, 1.0) if spec.transform == "rescale" else spec.bounds
        half = (np.asarray(high) - low) / 2
        unit = (actions - low) / half - 1.0
        if not (np.abs(unit) <= 1.0).all():
            return actions, logs
        actions, logs = np.arctanh(unit * (1.0 - 1e-6)), logs + np.log(half).sum()
    slope = 2.0 * (
        np.log(2.0) - actions - np.logaddexp(0.0, -2.0 * actions)
    )  # of tanh; log_prob is that of tanh(action)
    return actions, logs + slope.sum(axis=-1)


def _density(actions: np.ndarray, logs: np.ndarray) -> None:
    """Compare log-probabilities [n, R] of draws of real actions [n, R, A] with how near the other draws are to each.

    Source: Loftsgaarden and Quesenberry, "A nonparametric estimate of a multivariate density function" (1965).
    """
    size, width = actions.shape[-1], actions.std(axis=0)
    still = (width <= 1e-5 * (1.0 + np.abs(actions).max(axis=0))).any(axis=-1)  # up to rounding
    random = bool((logs[:, still].mean(axis=0) < 5.0).any())  # a density of an action that hardly varies is high
    expect(not random, "act: with other keys the sampled action is the same, but log_prob is that of a random action")
    if still.all():
        return
    off = [
        _times_off(actions[:, row] / width[row], logs[:, row] + np.log(width[row]).sum()) for row in np.where(~still)[0]
    ]
    far = min(float(np.sqrt(np.mean(np.square(off), axis=0)).max()), 300.0)
    # of right policies, normal, squashed and of two modes, it is half of this at most
    expect(
        far < 0.15 + 0.1 * size + 0.01 * size**2, f"{RARER}: densities exp(log_prob) are off by {np.exp(far):.2g} times"
    )


def _times_off(actions: np.ndarray, logs: np.ndarray) -> list[float]:
    """Return the log of how many times densities exp(log_prob) are too high, in parts of the draws [n, A] of one row.

    The parts are quarters along each axis, and along log_prob: one that is no function of the action differs in these.
    """
    number, size = actions.shape
    squares = np.square(actions).sum(axis=-1)
    apart = squares[:, None] + squares - 2.0 * actions @ actions.T
    reach = np.sqrt(np.maximum(np.partition(apart, NEAR, axis=1)[:, NEAR], 1e-30))
    ball = size / 2 * np.log(np.pi) - math.lgamma(size / 2 + 1)  # log of its volume
    off = logs - (DIGAMMA_NEAR - np.log(number - 1) - ball - size * np.log(reach))
    for axis in actions.T:  # what was clipped has no density
        _, place, count = np.unique(axis, return_inverse=True, return_counts=True)
        off[count[place] > 1] = np.nan
    parts = [part for along in (*actions.T, logs) for part in np.array_split(np.argsort(along), 4)]
    return [float(np.nanmedian(off[part])) if np.isfinite(off[part]).sum() > NEAR else 0.0 for part in parts]
