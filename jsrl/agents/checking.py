"""What the checks of an agent share: the agent with its states and random rows, comparisons, and how a check fails."""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jsrl.agents.base import ActParams, Agent, AgentState, UpdateOutput
from jsrl.agents.random_rows import changed, random_observation, random_trajectory, with_ends
from jsrl.types import Array, ArraySpec, EnvSpec, Trajectory, Tree, map_tree, named_leaves

QUICK = {"xla_backend_optimization_level": 0}  # compiling takes longer than all calls


class Broken(Exception):
    """What an agent did that a check does not allow."""


def expect(holds: Any, detail: str) -> None:
    if not holds:
        raise Broken(detail)


class Checked:
    """The agent that is checked, compiled once, and what the checks learn about it.

    Attributes:
      state: fresh. core: initial, of all columns. extras: schema of an action's extras for one environment.
      trained: a state after a few updates, whose next update changes the policy; its matrices are shifted at random, so that
        values are not 0 and policies not uniform.
      priorities: whether update returns them. shuffles: whether it draws permutations. seconds: of first and later calls.
    """

    def __init__(self, agent: Agent, spec: EnvSpec, num_rows: int, num_envs: int, seed: int):
        self.agent, self.spec, self.num_rows, self.num_envs = agent, spec, num_rows, num_envs
        self.rng, self.key = np.random.default_rng(seed), jax.random.key(seed)
        self.seconds: dict[str, float] = {}
        self.act = jax.jit(agent.act, static_argnames="greedy", compiler_options=QUICK)
        self.update = jax.jit(agent.update, compiler_options=QUICK)
        self.state: Any = None
        self.trained: Any = None
        self.core: Tree = ()
        self.extras: Tree = ()
        self.priorities = self.shuffles = False

    @property
    def policies(self) -> tuple[ActParams, ActParams]:
        """Return what acts: the fresh params and the trained ones."""
        return self.state.params, self.trained.params

    def request(self) -> tuple[Tree, Array, Tree]:
        """Return random observations [B, ...], is_first in every second row, and random cores."""
        observation = random_observation(self.spec, self.rng, self.num_envs)
        return observation, np.arange(self.num_envs) % 2 == 0, self.random_core()

    def random_core(self) -> Tree:
        """Return a core whose numbers are normal; integers and flags are the initial ones."""

        def draw(leaf: Array) -> Array:
            leaf = np.asarray(leaf)
            return self.rng.normal(size=leaf.shape).astype(leaf.dtype) if leaf.dtype.kind == "f" else leaf

        return map_tree(draw, self.agent.initial_core(self.num_envs))

    def rows(self, lasts: Array, terminated: Array | bool = False) -> Trajectory:
        """Return random rows whose episodes end as `with_ends` says."""
        rows = random_trajectory(
            self.spec,
            self.rng,
            num_rows=self.num_rows,
            num_envs=self.num_envs,
            extras=self.extras,
            core=self.random_core() if self.agent.store_core else (),
            weighted=self.priorities,
        )
        return with_ends(rows, lasts, terminated)

    def varied(self) -> Trajectory:
        """Return rows with ends at all places, row 0 included; every second episode ends by a termination."""
        lasts = np.array([self.num_rows + 1, *range(self.num_rows + 1)])
        return self.rows(np.resize(lasts, self.num_envs), np.arange(self.num_envs) % 4 < 2)

    def open_rows(self) -> Trajectory:
        """Return rows in which no episode begins or ends."""
        return self.rows(np.full(self.num_envs, self.num_rows + 1))

    def acted(self, params: ActParams, trajectory: Trajectory) -> Trajectory:
        """Return the rows with the actions and log-probabilities that the agent samples there."""
        core = trajectory.core if self.agent.store_core else self.agent.initial_core(self.num_envs)
        chosen = []
        for row, is_first in enumerate(trajectory.is_first):
            observation = map_tree(operator.itemgetter(row), trajectory.observation)
            key = jax.random.fold_in(self.key, row)
            output, core = self.act(params, key, observation, is_first, core)
            chosen.append(output)
        action, log_prob = (np.stack([getattr(one, name) for one in chosen]) for name in ("action", "log_prob"))
        return trajectory._replace(action=action, log_prob=log_prob)

    def learn(self, trajectory: Trajectory) -> tuple[AgentState, dict[str, Array]]:
        """Return the trained state after an update with these rows, and the metrics."""
        state, output = self.update(self.trained, trajectory, self.key)
        return state, output.metrics

    def learn_joint(self, trajectory: Trajectory) -> tuple[AgentState, dict[str, Array]]:
        """Return what one device learns from the columns of two."""
        state, output = self._on_one(self.trained, trajectory, self.key)
        return state, output.metrics

    def learn_apart(self, *shares: Trajectory) -> tuple[list[tuple[AgentState, dict[str, Array]]], Array]:
        """Return what each of several devices learns from its share of the columns, and all priorities [D, B]."""
        stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *shares)
        state, output = self._on_devices(self.trained, stacked, self.key)
        ends = [jax.tree.map(operator.itemgetter(d), (state, output.metrics)) for d in range(len(shares))]
        return ends, output.priorities

    @cached_property
    def _on_one(self) -> Callable[..., tuple[AgentState, UpdateOutput]]:
        return jax.jit(self._with_fixed_shuffles(2), compiler_options=QUICK)

    @cached_property
    def _on_devices(self) -> Callable[..., tuple[AgentState, UpdateOutput]]:
        """The update with an axis of devices, leaves [D, ...]; one device is enough for it."""
        on_each = functools.partial(self._with_fixed_shuffles(1), axis_name="devices")
        return jax.jit(jax.vmap(on_each, (None, 0, None), axis_name="devices"), compiler_options=QUICK)

    def _with_fixed_shuffles(self, devices: int) -> Callable[..., tuple[AgentState, UpdateOutput]]:
        """Return the update with a fixed order of rows in place of each shuffle, for the columns of one or two devices.

        A minibatch of two devices' columns then consists of the minibatches of the same number of each device.
        """
        units = self.num_envs * (self.spec.num_agents or 1), self.num_envs

        def order(key: Array, x: Any, axis: int = 0, *_: Any, **__: Any) -> Array:
            self.shuffles = True
            given = jnp.arange(x) if jnp.ndim(x) == 0 else jnp.asarray(x)
            number = given.shape[axis]
            unit = next((unit for unit in units if number % (devices * unit) == 0), 0)
            if not unit:  # not of rows
                return given
            return jnp.take(given, np.arange(number).reshape(-1, devices, unit).swapaxes(1, 2).ravel(), axis)

        def update(*arguments: Any, **axis: Any) -> tuple[AgentState, UpdateOutput]:
            shuffle = jax.random.permutation  # by which agents shuffle: one device and two must do it alike
            jax.random.permutation = order
            try:
                return self.agent.update(*arguments, **axis)
            finally:
                jax.random.permutation = shuffle

        return update

    def forget(self) -> None:
        """Forget what was traced in a fixed order, so that it is not used elsewhere."""
        if self.shuffles:
            jax.clear_caches()


def other_rows(checked: Checked, rows: Trajectory, where: Array) -> Trajectory:
    """Return the rows with other observations, states, actions, rewards and log-probabilities where [T+1, B] says so."""
    new = checked.open_rows()
    names = ("observation", "state", "action", "reward")
    leaves = {
        name: map_tree(lambda x, y: changed(x, where, y), getattr(rows, name), getattr(new, name)) for name in names
    }
    return rows._replace(**leaves, log_prob=changed(rows.log_prob, where, -3.0))


def row(checked: Checked, number: Array | int) -> np.ndarray:
    """Return which rows [T+1, B] have this number, [B] or one for all."""
    return np.broadcast_to(np.arange(checked.num_rows + 1)[:, None] == number, (checked.num_rows + 1, checked.num_envs))


def shifted(tree: Tree, rng: np.random.Generator) -> Tree:
    """Return the tree with random numbers added to its matrices, so that heads that begin at 0 give something."""

    def shift(leaf: Any) -> Any:
        if not jnp.issubdtype(leaf.dtype, jnp.floating) or leaf.ndim < 2:
            return leaf
        old = np.asarray(leaf)
        noise = rng.normal(size=old.shape)
        if (old > 0).all():  # variances
            return jnp.asarray(old * np.exp(0.1 * noise), leaf.dtype)
        fan_in = np.prod(old.shape[-4:-1]) if old.ndim > 3 else old.shape[-2]
        return jnp.asarray(old + 0.5 * noise / np.sqrt(fan_in), leaf.dtype)

    return jax.tree.map(shift, tree)


# -- comparisons ------------------------------------------------------------------------------------------------------


def paths(tree: Tree) -> list[tuple[str, np.ndarray]]:
    named = jax.tree_util.tree_leaves_with_path(tree)
    return [(jax.tree_util.keystr(path).lstrip("."), np.asarray(leaf)) for path, leaf in named]


def difference(a: Tree, b: Tree) -> str | None:
    """Return which leaf differs most and by how much; None: all are equal, bit by bit."""
    worst, where = 0.0, None
    for (path, x), (_, y) in zip(paths(a), paths(b), strict=True):
        if np.array_equal(x, y, equal_nan=x.dtype.kind == "f"):
            continue
        largest = float(np.nanmax(np.abs(x.astype(np.float64) - y.astype(np.float64)), initial=0.0))
        if where is None or largest > worst:
            worst, where = largest, path
    return None if where is None else f"{'leaf ' + where if where else 'it'} differs by up to {worst:.3g}"


def same(what: str, a: Tree, b: Tree) -> None:
    """Expect trees that are equal, bit by bit."""
    found = difference(a, b)
    expect(found is None, f"{what}: {found}")


def close(what: str, a: Tree, b: Tree) -> None:
    """Expect trees that are equal up to rounding."""
    for (path, x), (_, y) in zip(paths(a), paths(b), strict=True):
        near = np.allclose(x, y, rtol=1e-3, atol=1e-4, equal_nan=True)
        expect(near, f"{what}: {difference({path: x}, {path: y})}")


def finite(what: str, tree: Tree) -> None:
    for path, leaf in paths(tree):
        bad = 0 if leaf.dtype.kind != "f" else int((~np.isfinite(leaf)).sum())
        where = f" of leaf {path}" if path else ""
        expect(not bad, f"{what} has NaN or infinity in {bad} of {leaf.size} numbers{where}")


def matches(what: str, leaf: Array, wanted: ArraySpec) -> None:
    got = ArraySpec(tuple(jnp.shape(leaf)), str(jnp.result_type(leaf)))
    expect(got == wanted, f"{what} is {got.dtype}{list(got.shape)}, expected {wanted.dtype}{list(wanted.shape)}")


def batch_axis(what: str, tree: Tree, rows: int) -> None:
    """Expect a leading axis of `rows` on all leaves."""
    for name, leaf in named_leaves(tree):
        shape = jnp.shape(leaf)
        expect(
            shape[:1] == (rows,),
            f"{what}: leaf {name or 'it'} has shape {shape}, expected the batch axis ({rows}) first",
        )


def traced_alike(what: str, function: Callable[..., Any], *arguments: Any) -> None:
    """Trace a function twice and expect one and the same program: else it keeps something between its calls."""
    programs = []
    try:
        for _ in range(2):
            fresh = functools.partial(function)  # jax keeps what it has traced by the function's identity
            program = jax.make_jaxpr(fresh)(*arguments)
            constants = [np.asarray(x).tobytes() for x in program.consts if isinstance(x, np.ndarray | jax.Array)]
            programs.append((re.sub(r"0x[0-9a-f]+", "", str(program.jaxpr)), constants))
    except jax.errors.UnexpectedTracerError:
        raise Broken(f"{what} keeps a value of one call for the next one") from None
    expect(programs[0] == programs[1], f"{what} is another function when it is called again")
