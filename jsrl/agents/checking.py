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
from jsrl.agents.random_rows import random_observation, random_trajectory
from jsrl.types import Array, ArraySpec, EnvSpec, Trajectory, Tree, map_tree, named_leaves, spec_of, spread

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
        values are not 0 and policies not uniform. learned: the same before the shift.
      priorities: whether update returns them. seconds: of first and later calls.
    """

    def __init__(self, agent: Agent, spec: EnvSpec, num_rows: int, num_envs: int, seed: int):
        self.agent, self.spec, self.num_rows, self.num_envs = agent, spec, num_rows, num_envs
        self.rng, self.key = np.random.default_rng(seed), jax.random.key(seed)
        self.seconds: dict[str, float] = {}
        self.act = jax.jit(agent.act, static_argnames="greedy", compiler_options=QUICK)
        self.update = jax.jit(agent.update, compiler_options=QUICK)
        self.state: Any = None
        self.learned: Any = None
        self.trained: Any = None
        self.core: Tree = ()
        self.extras: Tree = ()
        self.priorities = False

    @cached_property
    def on_devices(self) -> Callable[[AgentState, Trajectory, Array], tuple[AgentState, UpdateOutput]]:
        """The update with the axis of two devices, leaves [2, ...]; one device is enough for it."""

        def on_each(state: AgentState, trajectory: Trajectory, key: Array) -> tuple[AgentState, UpdateOutput]:
            return self.agent.update(state, trajectory, key, axis_name="devices")

        return jax.jit(jax.vmap(on_each, (None, 0, None), axis_name="devices"), compiler_options=QUICK)

    def request(self, rows: int) -> tuple[Tree, Array, Tree]:
        """Return random observations, is_first in every second row, and random cores."""
        return random_observation(self.spec, self.rng, rows), np.arange(rows) % 2 == 0, self.random_core(rows)

    def random_core(self, rows: int) -> Tree:
        """Return a core whose numbers are normal; integers and flags are the initial ones."""

        def draw(leaf: Array) -> Array:
            leaf = np.asarray(leaf)
            return self.rng.normal(size=leaf.shape).astype(leaf.dtype) if leaf.dtype.kind == "f" else leaf

        return map_tree(draw, self.agent.initial_core(rows))

    def rows(self, lasts: Array, terminated: Array | bool = False) -> Trajectory:
        """Return random rows whose episodes end; column b's last observation is row lasts[b] (T + 1: it goes on).

        Args:
          terminated: [B]: the episode ends by a termination; else by a time limit.
        """
        t = random_trajectory(
            self.spec,
            self.rng,
            num_rows=self.num_rows,
            num_envs=self.num_envs,
            extras=self.extras,
            core=self.random_core(self.num_envs) if self.agent.store_core else (),
            weighted=self.priorities,
        )
        number, lasts = np.arange(self.num_rows + 1)[:, None], np.asarray(lasts)
        ends = (number == lasts - 1) & np.asarray(terminated)
        return t._replace(
            is_first=number == lasts + 1,
            reward=np.where(spread(number == lasts, t.reward), np.float32(0.0), t.reward),
            discount=np.where(spread(ends, t.discount), np.float32(0.0), np.float32(1.0)) + np.zeros_like(t.discount),
        )

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
        for row, is_first in enumerate(trajectory.is_first[: len(trajectory.log_prob)]):
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


def other_rows(checked: Checked, trajectory: Trajectory, where: Array) -> Trajectory:
    """Return the rows with other observations, states, actions, rewards and log-probabilities where [T+1, B] says so."""
    new = checked.open_rows()

    def change(leaf: Array, other: Array) -> Array:
        return np.where(spread(where, leaf), other, leaf)

    changed = {
        name: map_tree(change, getattr(trajectory, name), getattr(new, name))
        for name in ("observation", "state", "action", "reward")
    }
    log_prob = change(trajectory.log_prob, np.float32(-3.0))
    return trajectory._replace(**changed, log_prob=log_prob)


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


def schema_of(tree: Tree) -> Tree:
    """Return the schema of one row of a tree [B, ...]."""
    return map_tree(lambda leaf: ArraySpec(leaf.shape[1:], leaf.dtype), spec_of(tree))


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
