"""Arrays, specs and trajectories: the types that all parts of jsrl share. Imports numpy, never jax.

Letters, fixed once: T rows, B environments, N agents, A actions, D devices, H core size. Trajectories are time-major.

The row table (next-step auto-reset, as Gymnasium >= 1.0 vector environments do it); rows stay as they arrive:

| row | observation | is_first | reward   | discount | mask | |
|-----|-------------|----------|----------|----------|------|-|
| 0   | o0          | 1        | r(o0,a0) | 1        | 1    | |
| 1   | o1          | 0        | r(o1,a1) | 0 or 1   | 1    | 0: terminated; 1: truncated or going on |
| 2   | o2 (last)   | 0        | 0        | 1        | 0    | action ignored; v(o2) bootstraps a truncation |
| 3   | o3          | 1        | ...      | 1        | 1    | the core is reset before this row is read |

`mask_t = (acts_t > 0) * (1 - is_first_{t+1})`. `discount` is the environment's own (gamma belongs to the algorithm).

Kinds of rows, per agent (a single agent acts on every row):

| acts |            | policy  | value               | the recursions of returns                                  |
|------|------------|---------|---------------------|------------------------------------------------------------|
| 1    | acting     | trained | trained, bootstraps | count it for gamma and lambda                              |
| 0    | waiting    | -       | -                   | add its reward to the row before; pass on what comes behind |
| 2    | value-only | -       | trained, bootstraps | count it for gamma and lambda; no advantage                |

Waiting: it is another's turn, the seat is empty, or a player acts there that this policy does not train. Value-only: dead in a
team game; the team's rewards go on. A row whose bootstrap would be the value of a waiting row has no target and is not
trained on (jsrl.agents.rows has the masks).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from jsrl.errors import ConfigError

Array: TypeAlias = Any  # numpy.ndarray or jax.Array
Tree: TypeAlias = Any  # Array | dict[str, Tree] | tuple[Tree, ...] (NamedTuples included); () and None have no leaves


@dataclass(frozen=True)
class ArraySpec:
    """Shape and dtype of one array; a tree of these is the schema of a tree of arrays."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def size_bytes(self) -> int:
        """Return the bytes that one such array takes."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def zeros(self) -> np.ndarray:
        """Return an array of this shape and dtype, filled with zeros."""
        return np.zeros(self.shape, self.dtype)

    def batched(self, *leading: int) -> ArraySpec:
        """Return this spec with `leading` axes put before its own."""
        return ArraySpec((*leading, *self.shape), self.dtype)


@dataclass(frozen=True)
class Discrete:
    """One of `num_actions` actions; actions are int32 [...] from 0.

    start: number of the first action in the environment; a tuple, one for each seat, if the seats differ in it.
    """

    num_actions: int
    start: int | tuple[int, ...] = field(default=0, repr=False, compare=False)

    @property
    def array(self) -> ArraySpec:
        """Return the spec of one action."""
        return ArraySpec((), "int32")


@dataclass(frozen=True)
class MultiDiscrete:
    """Several independent choices; actions are int32 [..., len(nums)] from 0. `starts`: as of Discrete; empty: all are 0."""

    nums: tuple[int, ...]
    starts: tuple[Any, ...] = field(default=(), repr=False, compare=False)

    @property
    def array(self) -> ArraySpec:
        """Return the spec of one action."""
        return ArraySpec((len(self.nums),), "int32")


@dataclass(frozen=True)
class Continuous:
    """A real vector; actions are float32 [..., A]. `low` and `high` have A entries each and may be infinite.

    Agents emit and store unclipped actions `a`; `to_environment` turns them into what the environment gets:

    * `clip`: `a` clipped to [low, high];
    * `rescale`: `a` clipped to [-1, 1], then scaled to [low, high];
    * `squash`: tanh(a), scaled to [low, high]. The policy is then a tanh-squashed Gaussian; the action stored in a row
      is `a` (before tanh) and its log_prob is that of tanh(a).

    `rescale` and `squash` need finite bounds. Bounds so wide that float32 cannot hold their range count as infinite.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]
    transform: Literal["clip", "rescale", "squash"] = "clip"

    def __post_init__(self) -> None:
        """Check that the bounds allow the transform.

        Raises:
          ConfigError: unknown transform, bounds of different length, or infinite bounds to be scaled to.
        """
        if self.transform not in ("clip", "rescale", "squash"):
            raise ConfigError(f"unknown action transform {self.transform!r}; choose clip, rescale or squash")
        if len(self.low) != len(self.high):
            raise ConfigError(
                f"action bounds differ in length: {len(self.low)} low, {len(self.high)} high; give one of each per dimension"
            )
        if self.transform != "clip" and not self.bounded:
            raise ConfigError(
                f"action transform {self.transform!r} needs finite bounds, got low={self.low}, high={self.high}; "
                "use transform='clip'"
            )

    @property
    def array(self) -> ArraySpec:
        """Return the spec of one action."""
        return ArraySpec((len(self.low),), "float32")

    @cached_property
    def bounded(self) -> bool:
        """Return whether actions can be scaled to the bounds in float32: [0, largest float] is too wide, as is [0, inf]."""
        widest = float(np.finfo(np.float32).max) / 2
        return all(high - low < widest for low, high in zip(self.low, self.high, strict=True))

    @cached_property
    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Return low and high [A] as float32, rounded inwards: environments with bounds of float64 refuse what is outside."""
        with np.errstate(over="ignore"):  # bounds of float64 beyond float32 are infinite
            low, high = np.array(self.low, np.float32), np.array(self.high, np.float32)
        up, down = np.nextafter(low, np.float32(np.inf)), np.nextafter(high, np.float32(-np.inf))
        return np.where(low < np.array(self.low), up, low), np.where(high > np.array(self.high), down, high)


ActionSpec: TypeAlias = Discrete | MultiDiscrete | Continuous


def to_environment(spec: ActionSpec, action: Any, xp: Any = np) -> Any:
    """Turn stored actions [..., A] into those the environment gets; see `Continuous` for the transforms.

    Args:
      xp: numpy, or jax.numpy where the actions are JAX's.
    """
    if isinstance(spec, Discrete):
        return action + np.asarray(spec.start, np.int32) if spec.start else action
    if isinstance(spec, MultiDiscrete):
        return action + np.asarray(spec.starts, np.int32) if any(spec.starts) else action
    low, high = spec.bounds
    if spec.transform == "clip":
        return xp.clip(action, low, high)
    unit = xp.tanh(action) if spec.transform == "squash" else xp.clip(action, -1.0, 1.0)
    return xp.clip(low + (unit + 1.0) * 0.5 * (high - low), low, high)


@dataclass(frozen=True)
class EnvSpec:
    """The spec of an environment, as an agent needs it.

    Attributes:
      observation: schema of one environment's observation (no batch axis): ArraySpec or a dict of them. A dict with the
        key `action_mask` (bool or uint8, [A]; for MultiDiscrete the concatenation over its parts) masks actions.
      action: the action spec.
      name: of the environment, for messages.
      action_repeat: game frames per env step (brackets in Atari tables only; everything is counted in env steps).
      num_agents: N where several agents act in one environment and share a policy group, None for a single agent.
      frames: number of frames stacked on the last axis, newest last, where the observation is one such array. The older frames
        of a row are those of the rows before it. With is_first they may be black (0) instead; on Atari they are not after a
        lost life. Replay then keeps each frame once, and streams between hosts send it once. None: any other observation.
      state: schema of the global state that only the learner sees, in environments that have one (no batch axis).
      notes: sentences for the user about how the environment was read; a run and check_env show them.
    """

    observation: Tree
    action: ActionSpec
    name: str = "environment"
    action_repeat: int = 1
    num_agents: int | None = None
    frames: int | None = None
    state: Tree | None = None
    notes: tuple[str, ...] = field(default=(), repr=False, compare=False)


@dataclass(frozen=True)
class Seat:
    """One agent's place in an environment with several.

    Attributes:
      name: unique in its environment. observation, action: as in EnvSpec, of this seat alone.
      side: seats of one side win and lose together; empty: the seat is a side of its own.
    """

    name: str
    observation: Tree
    action: ActionSpec
    side: str = ""


@dataclass(frozen=True)
class GameSpec:
    """An environment with several seats, in a fixed order.

    Attributes:
      seats: all seats; absent and dead agents keep theirs. name: of the environment, for messages.
      state: schema of the global state for central critics, None: there is none.
      action_repeat: as in EnvSpec.
      symmetric: seats may be exchanged without changing the game.
      zero_sum: one side's gain is the others' loss, so the mean return of players that play each other means nothing.
      notes: as in EnvSpec.
      death: what a seat's death before the end of the episode means. `ends`: its episode terminates, and it is absent from
        then on. `team`: it goes on receiving its team's rewards, so that its rows still train the value function.
    """

    seats: tuple[Seat, ...]
    name: str = "environment"
    state: Tree | None = None
    action_repeat: int = 1
    symmetric: bool = False
    death: Literal["ends", "team"] = "ends"
    zero_sum: bool = False
    notes: tuple[str, ...] = field(default=(), repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check that there are seats and that their names differ."""
        names = [seat.name for seat in self.seats]
        if not names or len(set(names)) < len(names):
            raise ConfigError(
                f"environment {self.name!r} has the seats {names}; give at least one, each with a unique name"
            )

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the seats, in their order."""
        return tuple(seat.name for seat in self.seats)

    @property
    def sides(self) -> tuple[int, ...]:
        """Return the number of each seat's side; sides are counted in the order of their first seats."""
        names = [seat.side or f"the seat {seat.name}" for seat in self.seats]
        order = list(dict.fromkeys(names))
        return tuple(order.index(name) for name in names)

    def index(self, names: Sequence[str]) -> tuple[int, ...]:
        """Return the positions of seats in the order of all seats."""
        known = self.names
        return tuple(known.index(name) for name in names)

    def view(self, names: Sequence[str]) -> EnvSpec:
        """Return the spec for a policy that plays these N seats: observations [B, N, ...], actions [B, N, ...].

        Raises:
          ConfigError: their observations or actions differ; names the seats and the leaf.
        """
        seats = [self.seats[i] for i in self.index(names)]
        first = seats[0]
        for seat in seats[1:]:
            if difference := _unlike(first, seat):
                raise ConfigError(
                    f"the seats {first.name} and {seat.name} of {self.name!r} cannot be played by one policy: {difference}. "
                    "Give them policies of their own"
                )
        observation = map_tree(lambda spec: spec.batched(len(seats)), first.observation)
        action = _with_starts([seat.action for seat in seats])
        return EnvSpec(
            observation, action, self.name, self.action_repeat, len(seats), state=self.state, notes=self.notes
        )


def is_image(leaf: ArraySpec) -> bool:
    """Return whether a leaf of one agent's observation is an image, or a stack of images [k, ...].

    Other uint8 leaves are bytes, and flags are bool.
    """
    return leaf.dtype == "uint8" and len(leaf.shape) in (3, 4)


def has_channels_first(shape: tuple[int, ...]) -> bool:
    """Return whether images of this shape are [C, H, W]: their first axis is the shortest; else they are [H, W, C]."""
    return shape[-3] < min(shape[-2:])


def own_leaves(spec: EnvSpec) -> list[tuple[str, ArraySpec]]:
    """Return (path, schema) of the leaves of one agent's observation, without the axis of several seats."""
    axes = 0 if spec.num_agents is None else 1
    return [(path, ArraySpec(tuple(leaf.shape[axes:]), leaf.dtype)) for path, leaf in named_leaves(spec.observation)]


def _with_starts(actions: Sequence[ActionSpec]) -> ActionSpec:
    """Return the spec of equal actions of several seats, whose first ones may have different numbers."""
    first = actions[0]
    if isinstance(first, Discrete):
        start: tuple[Any, ...] = tuple(action.start for action in actions if isinstance(action, Discrete))
        return replace(first, start=start) if len(set(start)) > 1 else first
    if isinstance(first, MultiDiscrete):
        blank = (0,) * len(first.nums)
        starts = tuple(action.starts or blank for action in actions if isinstance(action, MultiDiscrete))
        return replace(first, starts=starts) if len(set(starts)) > 1 else first
    return first


def spec_for_one(spec: EnvSpec | GameSpec) -> EnvSpec:
    """Return the spec for one policy that plays all seats of an environment, or its only agent."""
    return spec.view(spec.names) if isinstance(spec, GameSpec) else spec


def _unlike(one: Seat, other: Seat) -> str:
    """Return the first leaf in which two seats differ, and how; empty: they do not differ."""
    left, right = (
        dict(named_leaves(one.observation, "observation")),
        dict(named_leaves(other.observation, "observation")),
    )
    for path in dict.fromkeys((*left, *right)):
        if left.get(path) != right.get(path):
            return f"{path} is {_words(left.get(path))} and {_words(right.get(path))}"
    return "" if one.action == other.action else f"action is {one.action} and {other.action}"


def _words(leaf: ArraySpec | None) -> str:
    return "missing" if leaf is None else f"{leaf.dtype} of shape {leaf.shape}"


FRESH, REPLAY, EITHER = "fresh", "replay", "either"  # what an agent learns from: the values of `learns_from`
WAITING, ACTING, VALUE_ONLY = 0, 1, 2  # kinds of rows: the values of `acts`


class Trajectory(NamedTuple):
    """T rows of B environments and a bootstrap row; leaves have leading axes [T+1, B], `core` and `sampling` only [B].

    Row T carries observation, is_first and acts; its other leaves are zero and unused. It is the next trajectory's row 0.

    Attributes:
      observation: tree of [T+1, B, ...].
      is_first: bool [T+1, B]; the environment's.
      action: [T+1, B, ...]; unclipped.
      reward: float32 [T+1, B] ([T+1, B, N] where agents exist).
      discount: float32, like reward: 0 on termination, else 1.
      acts: uint8, like reward: the kind of the row (always 1 for a single agent), row T included.
      log_prob: float32, like reward: behaviour log-probability of the stored action.
      extras: tree of values of `act` that `update` needs.
      version: int64, like reward: version of the params that chose the action.
      core: tree of [B, ...]: the recurrent state before row 0 acted; () when feed-forward.
      sampling: () as actors send it and from uniform replay; from prioritised replay float32 [B], the importance weight (at
        most 1) of each column's loss in an off-policy agent.
      state: tree of [T+1, B, ...], the environment's global state, which only the learner sees; () where there is none. Row T
        carries it.
      game: int32 [T+1, B], the number of the game that a director assigned, where the director uses scores of games; else ().
        ONLY_SCORED - number: its rows are scored, but train nothing. Row T carries it.
    """

    observation: Tree
    is_first: Array
    action: Array
    reward: Array
    discount: Array
    acts: Array
    log_prob: Array
    extras: Tree
    version: Array
    core: Tree
    sampling: Any = ()
    state: Tree = ()
    game: Any = ()


ONLY_SCORED = -2  # Trajectory.game of a game that is only scored is this less its number; -1: no game
PER_COLUMN = ("core", "sampling")  # fields of a Trajectory whose leaves are [B, ...]


def spread(mask: Array, leaf: Array) -> Array:
    """Return a mask of leading axes with axes of size 1 behind them, so that it broadcasts over a leaf; NumPy or JAX."""
    return mask.reshape(*mask.shape, *(1,) * (leaf.ndim - mask.ndim))


def map_trajectory(
    rows: Callable[..., Any], columns: Callable[..., Any], trajectory: Trajectory, *rest: Trajectory
) -> Trajectory:
    """Apply `rows` to every leaf [T+1, B, ...] of a trajectory and `columns` to those that have only [B, ...].

    Args:
      rows: for leaves [T+1, B, ...], called as by `map_tree`. columns: for leaves [B, ...].
      trajectory: with arrays or specs as leaves. rest: further ones of the same structure.
    """
    mapped = (
        map_tree(columns if name in PER_COLUMN else rows, *(getattr(t, name) for t in (trajectory, *rest)))
        for name in Trajectory._fields
    )
    return Trajectory(*mapped)


def with_columns(spec: Trajectory, columns: int) -> Trajectory:
    """Return the schema of trajectories like these with another number of columns B."""
    return map_trajectory(
        lambda leaf: ArraySpec((leaf.shape[0], columns, *leaf.shape[2:]), leaf.dtype),
        lambda leaf: ArraySpec((columns, *leaf.shape[1:]), leaf.dtype),
        spec,
    )


def make_trajectory_spec(
    env: EnvSpec,
    extras: Tree,
    core: Tree,
    *,
    num_rows: int,
    num_envs: int,
    weighted: bool = False,
    scored: bool = False,
) -> Trajectory:
    """Return the schema (ArraySpec leaves) of a trajectory.

    Args:
      env: the environment's spec.
      extras: schema of `ActOutput.extras` for one environment (no batch axis).
      core: schema of the core for one environment (no batch axis).
      num_rows: T. num_envs: B. weighted: with importance weights, as prioritised replay gives them.
      scored: with the games of the rows.
    """
    agents = () if env.num_agents is None else (env.num_agents,)

    def rows(spec: ArraySpec) -> ArraySpec:
        return spec.batched(num_rows + 1, num_envs)

    scalar = ArraySpec(agents, "float32")
    return Trajectory(
        observation=map_tree(rows, env.observation),
        is_first=rows(ArraySpec((), "bool")),
        action=rows(env.action.array.batched(*agents)),
        reward=rows(scalar),
        discount=rows(scalar),
        acts=rows(ArraySpec(agents, "uint8")),
        log_prob=rows(scalar),
        extras=map_tree(rows, extras),
        version=rows(ArraySpec(agents, "int64")),
        core=map_tree(lambda spec: spec.batched(num_envs), core),
        sampling=ArraySpec((num_envs,), "float32") if weighted else (),
        state=() if env.state is None else map_tree(rows, env.state),
        game=rows(ArraySpec((), "int32")) if scored else (),
    )


# -- versions ---------------------------------------------------------------------------------------------------------

GENERATION_SHIFT = 40  # version = (learner generation << 40) | updates


def make_version(generation: int, updates: int) -> int:
    """Return the version of the params after `updates` updates in learner generation `generation`."""
    return (generation << GENERATION_SHIFT) | updates


def version_updates(version: Array) -> Array:
    """Return the number of updates in a version (or an array of them)."""
    return version & ((1 << GENERATION_SHIFT) - 1)


def version_generation(version: Array) -> Array:
    """Return the learner generation of a version (or an array of them)."""
    return version >> GENERATION_SHIFT


# -- trees without jax ------------------------------------------------------------------------------------------------


def _children(tree: Tree) -> list[tuple[str, Tree]] | None:
    if tree is None:
        return []
    if isinstance(tree, dict):
        return [(str(k), tree[k]) for k in sorted(tree)]
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return list(zip(tree._fields, tree, strict=True))
    if isinstance(tree, list | tuple):
        return [(str(i), child) for i, child in enumerate(tree)]
    return None


def named_leaves(tree: Tree, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (path such as `observation/image`, leaf) in the order of jax.tree.leaves (dict keys sorted)."""
    children = _children(tree)
    if children is None:
        yield prefix, tree
        return
    for name, child in children:
        yield from named_leaves(child, f"{prefix}/{name}" if prefix else name)


def leaves(tree: Tree) -> list[Any]:
    """Return the leaves of a tree, in the order of `named_leaves`."""
    found: list[Any] = []
    _gather(tree, found)
    return found


def _gather(tree: Tree, found: list[Any]) -> None:
    if isinstance(tree, dict):
        for name in sorted(tree):
            _gather(tree[name], found)
    elif isinstance(tree, list | tuple):
        for child in tree:
            _gather(child, found)
    elif tree is not None:
        found.append(tree)


def map_tree(fn: Callable[..., Any], tree: Tree, *rest: Tree) -> Tree:
    """Apply `fn` to every leaf of `tree` (and the same leaf of each of `rest`); the structure stays."""
    if tree is None:
        return None
    if isinstance(tree, dict):
        return {k: map_tree(fn, tree[k], *(other[k] for other in rest)) for k in tree}
    if isinstance(tree, list | tuple):
        mapped = [map_tree(fn, *children) for children in zip(tree, *rest, strict=True)]
        return type(tree)(*mapped) if hasattr(tree, "_fields") else type(tree)(mapped)
    return fn(tree, *rest)


def unflatten(template: Tree, values: list[Any]) -> Tree:
    """Return `template` with its leaves replaced by `values`, given in the order of `leaves`.

    Makes no reference cycle, so a large array is freed with its last reference, not at a later garbage collection.
    """
    return _rebuild(template, iter(values))


def _rebuild(tree: Tree, remaining: Iterator[Any]) -> Tree:
    if tree is None:
        return None
    if isinstance(tree, dict):
        built = {k: _rebuild(tree[k], remaining) for k in sorted(tree)}
        return {k: built[k] for k in tree}
    if isinstance(tree, list | tuple):
        parts = [_rebuild(child, remaining) for child in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    return next(remaining)


def spec_of(tree: Tree) -> Tree:
    return map_tree(lambda leaf: ArraySpec(tuple(leaf.shape), str(leaf.dtype)), tree)


def changed_leaves(was: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return the first leaf whose shape or dtype differs, as text: `weights/bias was float32[3] and is float32[4] now`.

    Args:
      was, now: name -> leaf or its spec. Empty text: none differs.
    """
    both = {name: (_layout(was.get(name)), _layout(now.get(name))) for name in (*now, *was)}
    differing = [name for name, (before, after) in both.items() if before != after]
    if not differing:
        return ""
    before, after = both[differing[0]]
    more = f" ({len(differing) - 1} more differ)" if len(differing) > 1 else ""
    return f"{differing[0]} was {before} and is {after} now{more}"


def _layout(leaf: Any) -> str:
    return "absent" if leaf is None else f"{leaf.dtype}{list(leaf.shape)}"


def zeros(spec: Tree) -> Tree:
    """Return arrays of zeros for a schema."""
    return map_tree(lambda leaf: leaf.zeros(), spec)


def is_pair(returned: Any) -> bool:
    """Return whether a function of an agent returned two values, as `act` and `update` must."""
    return isinstance(returned, (tuple, list)) and len(returned) == 2


def type_names(returned: Any) -> str:
    """Return the types of what a function of an agent returned, for messages: `(AgentState, dict)`."""
    if type(returned) in (tuple, list):
        return f"({', '.join(type(value).__name__ for value in returned)})"
    return type(returned).__name__
