"""Checks of the agent contract: `check_agent(agent, spec)` raises the first broken rule within seconds, or returns."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jsrl.agents.base import ActOutput, Agent, AgentState, UpdateOutput
from jsrl.agents.finite import check_names
from jsrl.agents.random_rows import action_nums, random_observation, random_trajectory
from jsrl.errors import AgentFault
from jsrl.parallel import data_parallel, replicas, split_devices
from jsrl.types import Array, ArraySpec, Continuous, Discrete, EnvSpec, Tree, map_tree, named_leaves, spec_of, spread


@dataclass(frozen=True)
class CheckReport:
    """Which checks passed, and how long act and update took.

    Attributes:
      checks: names of the checks that passed. skipped: name and reason of those that do not apply.
      act_compile_s, update_compile_s: first call. act_s, update_s: a later call (with the batch of `check_agent`).
    """

    checks: tuple[str, ...]
    skipped: tuple[str, ...]
    act_compile_s: float
    update_compile_s: float
    act_s: float
    update_s: float


def check_agent(agent: Agent, spec: EnvSpec, *, num_rows: int = 8, num_envs: int = 8, seed: int = 0) -> CheckReport:
    """Check an agent against the contract of jsrl.agents.base, with random trajectories of `spec`.

    Args:
      agent: the agent.
      spec: the environment's spec that it was made for.
      num_rows: T. num_envs: B; even to compare two devices, and divisible by the agent's minibatches.
      seed: of weights and rows.

    Raises:
      AgentFault: the first broken rule: what the agent did, what was expected, what to do next.
    """
    checking = _Check(agent, spec, num_rows, num_envs, seed)
    passed = []
    for check in (
        checking.init,
        checking.initial_core,
        checking.act_outputs,
        checking.act_batch_sizes,
        checking.act_greedy,
        checking.act_resets_core,
        checking.act_obeys_mask,
        checking.update_contract,
        checking.update_without_trained_rows,
        checking.update_ignores_masked_rows,
        checking.devices,
    ):
        check()
        passed.append(check.__name__)
    skipped = {line.split(":")[0] for line in checking.skipped}
    return CheckReport(
        tuple(name for name in passed if name not in skipped), tuple(checking.skipped), **checking.seconds
    )


class _Check:
    """One run of the suite; each check is a method that raises AgentFault."""

    def __init__(self, agent: Agent, spec: EnvSpec, num_rows: int, num_envs: int, seed: int):
        self.agent, self.spec, self.num_rows, self.num_envs = agent, spec, num_rows, num_envs
        self.rng, self.key = np.random.default_rng(seed), jax.random.key(seed)
        self.skipped: list[str] = []
        self.seconds: dict[str, float] = {}
        self.act = jax.jit(agent.act, static_argnames="greedy")
        self.update = jax.jit(agent.update)

    # -- init and core ----------------------------------------------------------------------------------------------

    def init(self) -> None:
        """The state is an AgentState of arrays, the same for the same key."""
        state = self.state = self.agent.init(self.key)
        _expect(isinstance(state, AgentState), f"init returned {type(state).__name__}, expected AgentState")
        for name, leaf in named_leaves(jax.tree.map(lambda x: x, state.params)):
            _expect(
                hasattr(leaf, "dtype"),
                f"init: params/{name} is {type(leaf).__name__}, expected an array; wrap it in jnp",
            )
        updates = jnp.asarray(state.updates)
        _expect(
            updates.shape == () and updates.dtype == jnp.int32 and int(updates) == 0,
            f"init: updates is {updates!r}, expected an int32 scalar 0",
        )
        _same("init called twice with one key", state, self.agent.init(self.key))
        _same_layout("jitted init", state, jax.eval_shape(self.agent.init, self.key))

    def initial_core(self) -> None:
        """Core leaves have a leading batch axis and equal rows."""
        self.core = self.agent.initial_core(self.num_envs)
        for name, leaf in named_leaves(self.core):
            _expect(
                leaf.shape[:1] == (self.num_envs,),
                f"initial_core({self.num_envs}): leaf {name or 'core'} has shape {leaf.shape}, expected the batch axis "
                f"({self.num_envs}) first",
            )
            _expect(bool((leaf == leaf[:1]).all()), f"initial_core: the rows of leaf {name or 'core'} differ")

    # -- act --------------------------------------------------------------------------------------------------------

    def act_outputs(self) -> None:
        """Shapes, dtypes and ranges of ActOutput; the core keeps its layout; the same key gives the same action."""
        request = self._request(self.num_envs)
        begin = time.perf_counter()
        output, core = jax.block_until_ready(self.act(self.state.params, self.key, *request))
        between = time.perf_counter()
        again = jax.block_until_ready(self.act(self.state.params, self.key, *request))
        self.seconds |= {"act_compile_s": between - begin, "act_s": time.perf_counter() - between}
        _expect(isinstance(output, ActOutput), f"act returned {type(output).__name__}, expected (ActOutput, core)")
        agents = () if self.spec.num_agents is None else (self.spec.num_agents,)
        wanted = self.spec.action.array.batched(self.num_envs, *agents)
        _matches("act: action", output.action, wanted)
        _matches("act: log_prob", output.log_prob, ArraySpec((self.num_envs, *agents), "float32"))
        _expect(bool(np.isfinite(output.log_prob).all()), f"act: log_prob is not finite: {np.asarray(output.log_prob)}")
        self._in_range(np.asarray(output.action))
        for name, leaf in named_leaves(output.extras):
            _expect(
                leaf.shape[:1] == (self.num_envs,),
                f"act: extras leaf {name or 'extras'} has shape {leaf.shape}, expected the batch axis first",
            )
        _same_layout("act: the new core against initial_core", self.core, core)
        _same("act called twice with one key", (output, core), again)
        self.extras = map_tree(lambda leaf: ArraySpec(leaf.shape[1:], leaf.dtype), spec_of(output.extras))

    def _in_range(self, action: np.ndarray) -> None:
        if isinstance(self.spec.action, Continuous):
            _expect(bool(np.isfinite(action).all()), f"act: actions are not finite: {action}")
            return
        nums = np.array(action_nums(self.spec))
        good = bool(((action >= 0) & (action < nums)).all())
        _expect(good, f"act: actions {action.tolist()} are not all in 0..{(nums - 1).tolist()}")

    def act_batch_sizes(self) -> None:
        """Any batch size works, and a row's log-probability does not depend on its neighbours (to rounding)."""
        request = self._request(self.num_envs)
        whole, _ = self.act(self.state.params, self.key, *request, greedy=True)
        for rows in (1, 3):
            part = jax.tree.map(lambda x, n=rows: x[:n], request)
            output, _ = self.act(self.state.params, self.key, *part, greedy=True)
            expected = jax.tree.map(lambda x, n=rows: x[:n], whole.log_prob)
            _close(f"act: greedy log_prob of the first {rows} rows alone and in a batch", output.log_prob, expected)

    def act_greedy(self) -> None:
        """Greedy actions do not depend on the key."""
        request = self._request(self.num_envs)
        keys = jax.random.split(self.key)
        first, second = (self.act(self.state.params, key, *request, greedy=True)[0].action for key in keys)
        _same("act(greedy=True) with two keys", first, second)

    def act_resets_core(self) -> None:
        """Where is_first is set, the incoming core does not matter; elsewhere it does."""
        if not jax.tree.leaves(self.core):
            self.skipped.append("act_resets_core: feed-forward, there is no core")
            return
        observation, _, core = self._request(self.num_envs)
        other = jax.tree.map(lambda x: x + jnp.asarray(0.5, x.dtype), core)
        for first in (True, False):
            is_first = np.full(self.num_envs, first)
            ends = [
                self.act(self.state.params, self.key, observation, is_first, c, greedy=True)[1] for c in (core, other)
            ]
            if first:
                _same("act: the core after is_first, from two different cores", *ends)
            else:
                unequal = any(
                    (np.asarray(x) != np.asarray(y)).any() for x, y in zip(*map(jax.tree.leaves, ends), strict=True)
                )
                _expect(unequal, "act: the core that comes in changes nothing without is_first; carry it on")

    def act_obeys_mask(self) -> None:
        """Actions that `action_mask` forbids are never chosen."""
        if not (isinstance(self.spec.observation, dict) and "action_mask" in self.spec.observation):
            self.skipped.append("act_obeys_mask: the observation has no action_mask")
            return
        observation, is_first, core = self._request(self.num_envs)
        nums = action_nums(self.spec)
        allowed = [int(self.rng.integers(num)) for num in nums]
        mask = np.concatenate([np.arange(num) == only for num, only in zip(nums, allowed, strict=True)])
        like = observation["action_mask"]
        observation = {**observation, "action_mask": np.broadcast_to(mask, like.shape).astype(like.dtype)}
        output, _ = self.act(self.state.params, self.key, observation, is_first, core)
        wanted = allowed[0] if isinstance(self.spec.action, Discrete) else np.array(allowed)
        action = np.asarray(output.action)
        _expect(bool((action == wanted).all()), f"act: only {wanted} was allowed by action_mask, got {action}")

    # -- update -----------------------------------------------------------------------------------------------------

    def update_contract(self) -> None:
        """The state keeps its layout and stays finite; metrics are flat finite scalars; same inputs, same outputs."""
        before = jax.tree.map(np.array, self.state)
        core = self.core if self.agent.store_core else ()
        trajectory = random_trajectory(
            self.spec, self.rng, num_rows=self.num_rows, num_envs=self.num_envs, extras=self.extras, core=core
        )
        self.trajectory = trajectory
        begin = time.perf_counter()
        state, output = jax.block_until_ready(self.update(self.state, trajectory, self.key))
        between = time.perf_counter()
        again, _ = jax.block_until_ready(self.update(self.state, trajectory, self.key))
        self.seconds |= {"update_compile_s": between - begin, "update_s": time.perf_counter() - between}
        _expect(isinstance(output, UpdateOutput), f"update returned {type(output).__name__}, expected UpdateOutput")
        _same_layout("update: the new state", before, state)
        _finite("update: the new state", state)
        _expect(
            isinstance(output.metrics, dict), f"update: metrics is {type(output.metrics).__name__}, expected a dict"
        )
        for name, value in output.metrics.items():
            _expect(
                isinstance(name, str) and jnp.shape(value) == (),
                f"update: metric {name!r} has shape {jnp.shape(value)}, expected a scalar; average it over rows",
            )
            _expect(bool(np.isfinite(value)), f"update: metric {name!r} is {value}, expected a finite number")
        check_names(output.metrics)
        updates = int(state.updates)
        _expect(updates == 1, f"update: updates is {updates} after the first update, expected 1")
        _same("update called twice with the same arguments", state, again)
        _same("the state handed to update", before, self.state)
        pairs = zip(*map(jax.tree.leaves, (before.params, state.params)), strict=True)
        changed = [(np.asarray(x) != np.asarray(y)).any() for x, y in pairs]
        _expect(any(changed), "update: params are what they were; nothing was learned from a random trajectory")

    def update_without_trained_rows(self) -> None:
        """A batch of zeros in which no row is trained on gives no NaN."""
        empty = self.trajectory._replace(
            acts=np.zeros_like(self.trajectory.acts),
            observation=map_tree(np.zeros_like, self.trajectory.observation),
            reward=np.zeros_like(self.trajectory.reward),
        )
        state, output = self.update(self.state, empty, self.key)
        _finite("update with mask 0 everywhere", (state, output.metrics))

    def update_ignores_masked_rows(self) -> None:
        """Action, log_prob and reward of a last observation's row (the next row is_first) change nothing."""
        cut = np.concatenate([self.trajectory.is_first[1:], np.zeros((1, self.num_envs), bool)])

        def change(leaf: np.ndarray, value: float) -> np.ndarray:
            return np.where(spread(cut, leaf), np.asarray(value, leaf.dtype), leaf)

        other = self.trajectory._replace(
            action=change(self.trajectory.action, 0),
            log_prob=change(self.trajectory.log_prob, -50.0),
            reward=change(self.trajectory.reward, 1e4),
        )
        ends = (self.update(self.state, t, self.key)[0].params for t in (self.trajectory, other))
        _same("update with other actions, log_probs and rewards in rows before is_first", *ends)

    def devices(self) -> None:
        """Two devices that see half of the environments each hold one and the same state, with the same layout."""
        if jax.local_device_count() < 2 or self.num_envs % 2:
            self.skipped.append(f"devices: needs 2 devices and an even num_envs, has {jax.local_device_count()}")
            return

        spread = data_parallel(self.agent.update, jax.local_devices()[:2], donate=False)
        state, output = spread(spread.place(self.state), split_devices(self.trajectory, 2), self.key)
        first, second = replicas((state, output.metrics))
        _same_layout("update on 2 devices", first[0], self.state)
        _same(
            "update: state and metrics of device 0 and device 1 (sum gradients and moments over axis_name)",
            first,
            second,
        )

    def _request(self, rows: int) -> tuple[Tree, Array, Tree]:
        observation = random_observation(self.spec, self.rng, rows)
        return observation, np.arange(rows) % 2 == 0, self.agent.initial_core(rows)


# -- comparisons ------------------------------------------------------------------------------------------------------


def _expect(holds: bool, message: str) -> None:
    if not holds:
        raise AgentFault(message)


def _matches(what: str, leaf: Array, wanted: ArraySpec) -> None:
    got = ArraySpec(tuple(leaf.shape), str(leaf.dtype))
    _expect(got == wanted, f"{what} is {got.dtype}{list(got.shape)}, expected {wanted.dtype}{list(wanted.shape)}")


def _paths(tree: Tree) -> list[tuple[str, Any]]:
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]


def _same_layout(what: str, a: Tree, b: Tree) -> None:
    structures = jax.tree.structure(a), jax.tree.structure(b)
    _expect(
        str(structures[0]) == str(structures[1]), f"{what}: the tree changed from {structures[0]} to {structures[1]}"
    )
    for (path, x), (_, y) in zip(_paths(a), _paths(b), strict=True):
        ours, theirs = (f"{leaf.dtype}{list(leaf.shape)}" for leaf in (x, y))
        _expect(
            ours == theirs, f"{what}: leaf {path} changed from {ours} to {theirs}; it would be compiled again each time"
        )


def _same(what: str, a: Tree, b: Tree) -> None:
    for (path, x), (_, y) in zip(_paths(a), _paths(b), strict=True):
        x, y = np.asarray(x), np.asarray(y)
        _expect(bool(np.array_equal(x, y, equal_nan=x.dtype.kind == "f")), f"{what}: leaf {path} differs: {x} and {y}")


def _close(what: str, a: Array, b: Array) -> None:
    a, b = np.asarray(a), np.asarray(b)
    _expect(bool(np.allclose(a, b, rtol=1e-3, atol=1e-4)), f"{what} differ: {a} and {b}; rows must not mix")


def _finite(what: str, tree: Tree) -> None:
    for path, leaf in _paths(tree):
        leaf = np.asarray(leaf)
        if leaf.dtype.kind == "f":
            _expect(bool(np.isfinite(leaf).all()), f"{what}: leaf {path} is not finite: {leaf}")
