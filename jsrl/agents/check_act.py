"""Checks of `init`, `initial_core` and `act`; the table is in jsrl.agents.check."""

from __future__ import annotations

import itertools
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
    schema_of,
    traced_alike,
)
from jsrl.agents.finite import check_layout
from jsrl.agents.random_rows import action_nums, random_observation
from jsrl.types import Array, ArraySpec, Continuous, Discrete, Tree, map_tree, named_leaves, spread

CALLS = 512  # draws of each row's action
LEAST_EXPECTED = 5.0  # draws of an action, to be compared
UNLIKELY = 8.0  # standard deviations of chi-squared
RARER = "act: actions are not as frequent as log_prob says"
FLAT = 2  # in more dimensions too few draws are in one part
DEEP = 6  # actions of more dimensions have no near neighbours


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
    request = checked.request(checked.num_envs)
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
    checked.extras = schema_of(output.extras)


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
    request, given = checked.request(checked.num_envs), checked.state.params
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
    for params in (checked.learned.params, checked.trained.params):
        for greedy in (False, True):
            output, core = checked.act(params, checked.key, *checked.request(checked.num_envs), greedy=greedy)
            _in_range(checked, output)
            finite("act: the new core", core)


def act_batch_sizes(checked: Checked) -> None:
    """Any batch size works, and a row alone gives what it gives in a batch (to rounding)."""
    request = checked.request(checked.num_envs)
    params = checked.trained.params
    whole, _ = checked.act(params, checked.key, *request, greedy=True)
    alone, _ = checked.act(params, checked.key, *(jax.tree.map(lambda x: x[:1], part) for part in request), greedy=True)
    close("act: greedy log_prob of the first row alone and in a batch", alone.log_prob, whole.log_prob[:1])
    three = jax.tree.map(lambda x: x[:3], request)
    shape = jax.eval_shape(checked.agent.act, params, checked.key, *three)[0].action.shape
    expect(shape[0] == len(request[1][:3]), f"act: of 3 rows, action has shape {shape}")


def act_rows_apart(checked: Checked) -> None:
    """Actions, log-probabilities and cores do not depend on the other rows, whether sampled or greedy."""
    request, other = checked.request(checked.num_envs), checked.request(checked.num_envs)
    keep = np.arange(checked.num_envs) // 2 % 2 == 0  # of rows that begin an episode and of others
    mixed = tuple(
        map_tree(lambda x, y: np.where(spread(keep, np.asarray(x)), x, y), a, b)
        for a, b in zip(request, other, strict=True)
    )
    for params in (checked.state.params, checked.trained.params):
        for greedy in (False, True):
            ends = [checked.act(params, checked.key, *rows, greedy=greedy) for rows in (request, mixed)]
            ends = [jax.tree.map(lambda x: np.asarray(x)[keep], end) for end in ends]
            close(f"act(greedy={greedy}) with other observations in the other rows", *ends)


def act_greedy(checked: Checked) -> None:
    """Greedy actions do not depend on the key, where two actions are nearly equal neither."""
    keys = jax.random.split(checked.key, 8)
    for params in (checked.state.params, checked.trained.params):
        request = checked.request(checked.num_envs)
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
    observation, _, core = checked.request(checked.num_envs)
    other = checked.random_core(checked.num_envs)
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
        observation, is_first, core = checked.request(checked.num_envs)
        like = observation["action_mask"]
        agents = like.shape[:-1]
        allowed = [checked.rng.integers(num, size=agents) for num in nums]
        mask = np.concatenate(
            [np.arange(num) == only[..., None] for num, only in zip(nums, allowed, strict=True)], axis=-1
        )
        observation = {**observation, "action_mask": mask.astype(like.dtype)}
        key = jax.random.fold_in(checked.key, number)
        for params in (checked.state.params, checked.trained.params):
            output, _ = checked.act(params, key, observation, is_first, core, greedy=number % 2 == 1)
            wanted = allowed[0] if isinstance(checked.spec.action, Discrete) else np.stack(allowed, axis=-1)
            wrong = int((np.asarray(output.action) != wanted).sum())
            expect(not wrong, f"act: action_mask allowed one action in each row, and {wrong} other actions were chosen")
    return None


def _going_on(checked: Checked, params: ActParams) -> Any:
    """Return a request in episodes that go on, with the cores of their first rows: what a core draws anew is drawn there."""
    before, after = checked.request(checked.num_envs), checked.request(checked.num_envs)
    _, core = checked.act(params, checked.key, before[0], np.ones(checked.num_envs, bool), before[2])
    return after[0], np.zeros(checked.num_envs, bool), core


def act_log_prob(checked: Checked) -> str | None:
    """Actions are as frequent as exp(log_prob) says, before the first update and later."""
    for params in (checked.state.params, checked.trained.params):
        request = _going_on(checked, params)
        action, log_prob = [], []
        for key in jax.random.split(checked.key, CALLS):
            output, _ = checked.act(params, key, *request)
            action.append(np.asarray(output.action))
            log_prob.append(np.asarray(output.log_prob, np.float64))
        logs = np.stack(log_prob).reshape(CALLS, -1)
        if not logs.any():
            continue
        actions = np.stack(action).reshape(*logs.shape, -1)
        if isinstance(checked.spec.action, Continuous):
            _density(actions.astype(np.float64), logs, squash=checked.spec.action.transform == "squash")
        else:
            nums = action_nums(checked.spec)
            _frequencies(np.ravel_multi_index(tuple(np.moveaxis(actions, -1, 0)), nums), logs)
    return None if logs.any() else "log_prob is 0 everywhere"


def _frequencies(actions: np.ndarray, logs: np.ndarray) -> None:
    """Compare draws of discrete actions [n, R] with their log-probabilities, by chi-squared over all rows."""
    total, cells = 0.0, 0
    worst, where = 0.0, ""
    for row in range(actions.shape[1]):
        left = 1.0
        for action in np.unique(actions[:, row]):
            drawn = actions[:, row] == action
            of_action = logs[drawn, row]
            spread_ = float(np.ptp(of_action))
            expect(
                spread_ < 1e-2, f"act: log_prob of one action in one state differs by up to {spread_:.3g} between keys"
            )
            p = float(np.exp(of_action.mean()))
            left -= p
            expected = len(drawn) * p
            if min(expected, len(drawn) - expected) >= LEAST_EXPECTED:
                total, cells = total + (drawn.sum() - expected) ** 2 / (expected * (1 - p)), cells + 1
            if abs(drawn.mean() - p) > worst:
                worst, where = (
                    abs(drawn.mean() - p),
                    f"chosen in {drawn.mean():.2f} of its draws, exp(log_prob) is {p:.2f}",
                )
        expect(left > -0.01, f"act: probabilities exp(log_prob) of the actions of one state sum to {1 - left:.3f}")
    far = worst > 0.2 or total - cells > UNLIKELY * np.sqrt(2.0 * max(cells, 1))
    expect(not far, f"{RARER}: one is {where}")


def _density(actions: np.ndarray, logs: np.ndarray, *, squash: bool) -> None:
    """Compare draws of real actions [n, R, A] with their densities: the mean of 1 / density in a box is its volume."""
    if squash:  # log_prob is that of tanh(action)
        logs = logs + (2.0 * (np.log(2.0) - actions - np.logaddexp(0.0, -2.0 * actions))).sum(axis=-1)
    size = actions.shape[-1]
    still = (actions.std(axis=0) <= 1e-6 * (1.0 + np.abs(actions).max(axis=0))).any(axis=-1)  # up to rounding
    random = bool((logs[:, still].mean(axis=0) < 5.0).any())  # a density of an action that hardly varies is high
    expect(not random, "act: with other keys the sampled action is the same, but log_prob is that of a random action")
    if still.all():
        return
    actions, logs = actions[:, ~still], logs[:, ~still]
    first, share = len(actions) // 4, 0.9 if size <= FLAT else 0.3 ** (1.0 / size)
    edges = np.quantile(actions[:first], np.linspace((1.0 - share) / 2.0, (1.0 + share) / 2.0, 5), axis=0)  # [5, R, A]
    actions, logs, low, high = actions[first:], logs[first:], edges[0], edges[-1]
    inside = ((actions >= low) & (actions <= high)).all(axis=-1)
    volume = np.log(high - low)
    weights = np.where(inside, np.exp(np.minimum(-logs - volume.sum(axis=-1), 300.0)), 0.0)
    # 1 if densities are right; less in many dimensions, where few draws have most of the weight
    found = float(np.median(weights.mean(axis=0)))
    expect(found < 3.0, f"{RARER}: densities exp(log_prob) are {found:.2g} times too low")
    if size <= FLAT:
        _quarters(actions, edges, weights, high - low)
    if size <= DEEP:
        unlike = _unlike_neighbours(actions, logs)
        expect(unlike < 0.9, "act: log_prob is not a function of the action: that of nearly equal actions differs")


def _quarters(actions: np.ndarray, edges: np.ndarray, weights: np.ndarray, widths: np.ndarray) -> None:
    """Compare the mean of the weights [n, R] in each quarter of the box, along each axis, with 1, by chi-squared."""
    for axis in range(actions.shape[-1]):
        total, cells, ratios = 0.0, 0, []
        for below, above in itertools.pairwise(edges[..., axis]):
            here = (actions[..., axis] >= below) & (actions[..., axis] < above)
            share = here * weights * widths[:, axis] / (above - below)
            ratios.append(share.mean(axis=0))
            error = np.maximum(share.std(axis=0) / np.sqrt(len(share)), 0.02)
            total, cells = total + float(np.square((ratios[-1] - 1.0) / error).sum()), cells + error.size
        far = float(np.exp(np.abs(np.log(np.maximum(ratios, 1e-9)))).max())
        close_to = total - cells <= UNLIKELY * np.sqrt(2.0 * cells)
        expect(close_to, f"{RARER}: densities exp(log_prob) are off by up to {far:.2g} times")


def _unlike_neighbours(actions: np.ndarray, logs: np.ndarray) -> float:
    """Return how much log-probabilities [n, R] of nearest neighbours differ, as a share of that of any two actions."""
    near, far = [], []
    for row in range(actions.shape[1]):
        scaled = actions[:, row] / actions[:, row].std(axis=0)
        distance = ((scaled[:, None] - scaled[None]) ** 2).sum(axis=-1)
        np.fill_diagonal(distance, np.inf)
        near.append(np.abs(logs[:, row] - logs[distance.argmin(axis=1), row]))
        far.append(np.abs(logs[:, row] - np.roll(logs[:, row], 1)))
    typical = float(np.median(far))
    return float(np.median(near)) / typical if typical > 1e-3 else 0.0
