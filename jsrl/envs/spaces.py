"""Conversion of Gymnasium spaces to specs, and of observations and actions.

| observation space | becomes |
|---|---|
| Box, floats | float32 of its shape |
| Box, uint8 | uint8 of its shape: an image, if it has three axes, else bytes |
| Box, bool, or uint8 of 0 and 1 that is no image | bool of its shape |
| Box, other integers | float32 of its shape |
| Discrete(n, start) | float32 [n], one-hot |
| MultiDiscrete | float32 [sum(nvec)], the one-hots of its parts one after another |
| MultiBinary | float32 of its shape |
| Dict, Tuple | dict of the above (a Tuple's keys are "0", "1", ...), nested where the space is |

A leaf called `action_mask` is always uint8. Action spaces: Discrete, MultiDiscrete, MultiBinary, Box of
floats (any shape: the agent sees it flat).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from gymnasium import spaces, wrappers

from jsrl.envs.faults import describe, first_non_finite
from jsrl.errors import ConfigError, SpecMismatch
from jsrl.references.importing import shown_target
from jsrl.types import (
    ActionSpec,
    ArraySpec,
    Continuous,
    Discrete,
    EnvSpec,
    GameSpec,
    MultiDiscrete,
    Tree,
    has_channels_first,
    is_image,
    named_leaves,
    own_leaves,
    to_environment,
    unflatten,
)

MASK_KEY = "action_mask"
MAX_ONE_HOT = 65_536
SCALED = "actions in [-1, 1] are scaled to the bounds of the action space (env.action_transform is auto: rescale here)"


class BadValue(ValueError):
    """An observation that violates its space; the message gives leaf, value and expectation."""


@dataclass(frozen=True)
class Leaf:
    """One array of an observation.

    Attributes:
      path: keys into the environment's observation; () when the observation is the array.
      names: keys into our tree. shape, dtype: declared by the environment. spec: for the agent.
      offsets: first one-hot index of each part, with `start` subtracted; None: the value is copied.
      low, high: least and greatest value of each part of a one-hot; None: the value is copied.
    """

    path: tuple[Any, ...]
    names: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: np.dtype
    spec: ArraySpec
    offsets: np.ndarray | None = None
    low: np.ndarray | None = None
    high: np.ndarray | None = None

    @property
    def name(self) -> str:
        return "/".join(self.names) or "observation"

    def check(self, value: Any, batch: tuple[int, ...] = ()) -> None:
        """Raise BadValue unless `value` has the declared shape (after `batch`) and a dtype that casts to it."""
        is_array = isinstance(value, int | float | list) or hasattr(value, "__array__")  # of NumPy, JAX or PyTorch
        found_shape = np.shape(value) if is_array else None
        if found_shape != (*batch, *self.shape):
            raise BadValue(
                f"returned {describe(value)} as {self.name!r}; its space declares shape {list(self.shape)}"
                + (f" for each of {batch[0]} slots" if batch else "")
            )
        dtype = np.asarray(value).dtype
        if not np.can_cast(dtype, self.dtype, "same_kind"):
            raise BadValue(
                f"returned {describe(value)} as {self.name!r}; its space declares {self.dtype}, and {dtype} does not "
                "cast to it without loss"
            )

    def encode(self, value: Any, out: np.ndarray) -> None:
        """Write values [...] of the declared shape (with any leading axes) to `out`. Raises BadValue: outside its space."""
        if self.offsets is None or self.low is None or self.high is None:
            out[...] = value
            return
        # [..., parts] for any declared shape: a Discrete is one part
        parts = np.asarray(value, np.int64).reshape(*out.shape[:-1], -1)
        if ((parts < self.low) | (parts > self.high)).any():  # it would set an entry of another value
            low, high = (ends.tolist() if len(ends) > 1 else int(ends[0]) for ends in (self.low, self.high))
            raise BadValue(f"returned {describe(value)} as {self.name!r}; its space has the values {low} to {high}")
        out[...] = 0
        np.put_along_axis(out, parts + self.offsets, 1, axis=-1)


class ObservationLayout:
    """The mapping of an observation space to a tree of arrays; `write` converts one slot, `write_all` a batch.

    Attributes:
      environment: its name. leaves: of an observation. spec: for the agent. notes: for the user; see EnvSpec.
      bounds: (low, high) of each Box of floats, by the leaf's name in `spec`; an observation may violate them.
    """

    def __init__(self, space: spaces.Space, name: str, mask_size: int | None = None, num_actions: int | None = None):
        """Read `space`; `mask_size` adds a leaf `action_mask` that is filled from `info`."""
        self.environment, self.notes = name, list[str]()
        self.leaves: list[Leaf] = []
        self.bounds: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        self._collect(space, (), ())
        if not self.leaves:
            raise ConfigError(
                f"environment {name!r}: the observation space {space} has no entries; give it something to see"
            )
        check_paths([leaf.name for leaf in self.leaves], name)
        self.mask_in_info = mask_size is not None
        if mask_size is not None and self.leaves[0].names == ():
            self.leaves = [replace(self.leaves[0], names=("observation",))]
            self.bounds = {"observation": self.bounds[""]} if self.bounds else {}
        self.spec: Tree = self._tree([leaf.spec for leaf in self.leaves])
        if mask_size is not None:
            self.spec[MASK_KEY] = ArraySpec((mask_size,), "uint8")
        self._check_mask(num_actions)

    @property
    def plain(self) -> Leaf | None:
        """Return the only leaf if an observation is one array that is copied, else None."""
        only = self.leaves[0]
        return only if len(self.leaves) == 1 and only.names == () and only.offsets is None else None

    def buffers(self, num_envs: int) -> tuple[Tree, list[np.ndarray]]:
        """Return (tree of zeros [B, ...], its arrays in the order of `leaves`, the mask from `info` last)."""
        arrays = [leaf.spec.batched(num_envs).zeros() for leaf in self.leaves]
        tree = self._tree(arrays)
        if self.mask_in_info:
            arrays.append(self.spec[MASK_KEY].batched(num_envs).zeros())
            tree[MASK_KEY] = arrays[-1]
        return tree, arrays

    def write(self, arrays: list[np.ndarray], slot: int, observation: Any) -> None:
        """Write one environment's observation to row `slot`. Raises BadValue."""
        for leaf, array in zip(self.leaves, arrays, strict=False):
            value = self._find(observation, leaf)
            leaf.check(value)
            leaf.encode(value, array[slot, ...] if array.ndim > 1 else array[slot : slot + 1])

    def write_all(self, arrays: list[np.ndarray], observation: Any) -> None:
        """Write a batch of observations [B, ...]. Raises BadValue."""
        for leaf, array in zip(self.leaves, arrays, strict=False):
            value = self._find(observation, leaf)
            leaf.check(value, (len(array),))
            leaf.encode(value, array)

    def write_mask(self, arrays: list[np.ndarray], slot: int, mask: Any) -> None:
        """Write the action mask of `info` for `slot`. Raises BadValue."""
        array = arrays[-1]
        if mask is None:
            raise BadValue(
                f"brought no info[{MASK_KEY!r}]; its first reset did, so it is expected until the episode ends"
            )
        flat = flat_mask(mask)
        if flat.shape != array.shape[1:]:
            raise BadValue(f"brought info[{MASK_KEY!r}] = {describe(mask)}; expected {array.shape[1]} entries")
        array[slot] = flat

    def _find(self, observation: Any, leaf: Leaf) -> Any:
        for key in leaf.path:
            try:
                observation = observation[key]
            except (KeyError, IndexError, TypeError):
                raise BadValue(f"returned no {leaf.name!r}: {describe(observation)} has no {key!r}") from None
        return observation

    def _collect(self, space: spaces.Space, path: tuple[Any, ...], names: tuple[str, ...]) -> None:
        if isinstance(space, spaces.Dict):
            for key, child in space.spaces.items():
                self._collect(child, (*path, key), (*names, str(key)))
        elif isinstance(space, spaces.Tuple):
            for index, child in enumerate(space.spaces):
                self._collect(child, (*path, index), (*names, str(index)))
        else:
            leaf = _leaf(space, path, names, self.environment)
            self.leaves.append(leaf)
            if leaf.spec.dtype == "float32" and isinstance(space, spaces.Box):
                self.bounds["/".join(names)] = (space.low.astype(np.float64), space.high.astype(np.float64))
            if leaf.spec.dtype == "float32" and isinstance(space, spaces.Box) and _loses_digits(space):
                self.notes.append(
                    f"{leaf.name} is {space.dtype}: float32 holds its values up to 16,777,216 without loss"
                )

    def _tree(self, values: list[Any]) -> Tree:
        if self.leaves[0].names == ():
            return values[0]
        tree: dict[str, Any] = {}
        for leaf, value in zip(self.leaves, values, strict=True):
            node = tree
            for name in leaf.names[:-1]:
                node = node.setdefault(name, {})
            node[leaf.names[-1]] = value
        return tree

    def _check_mask(self, num_actions: int | None) -> None:
        mask = self.spec.get(MASK_KEY) if isinstance(self.spec, dict) else None
        if mask is not None and num_actions is not None and mask.shape != (num_actions,):
            raise ConfigError(
                f"environment {self.environment!r}: the action mask has shape {list(mask.shape)}, but there are "
                f"{num_actions} actions; give one entry per action (for MultiDiscrete, the parts one after another)"
            )


def encode(space: spaces.Space, observations: Sequence[Any], masks: Sequence[Any] | None = None) -> Tree:
    """Return observations of environments as a policy reads them, [B, ...]: numbers of a Discrete become one-hots, and so on.

    Args:
      space: the environment's observation space. observations: one of each environment, as its reset and step return them.
      masks: of each environment `info["action_mask"]`, if it gives action masks there.

    Raises:
      SpecMismatch: an observation or mask does not fit the space. ConfigError: the space is not supported.
    """
    layout = ObservationLayout(space, "encode", None if masks is None else flat_mask(masks[0]).size)
    tree, arrays = layout.buffers(len(observations))
    for row, observation in enumerate(observations):
        try:
            layout.write(arrays, row, observation)
            if masks is not None:
                layout.write_mask(arrays, row, masks[row])
        except BadValue as error:
            raise SpecMismatch(f"environment {row} {error}.") from None
    return tree


def check_paths(paths: Collection[str], environment: str) -> None:
    """Refuse two leaves of an observation with the same path, such as the keys `a/b`, and `b` inside `a`."""
    for path in (path for path, count in Counter(paths).items() if count > 1):
        raise ConfigError(
            f"environment {environment!r}: two parts of its observation are called {path!r}, because the keys of nested dicts "
            "are joined by `/`; rename one"
        )


def _leaf(space: spaces.Space, path: tuple[Any, ...], names: tuple[str, ...], environment: str) -> Leaf:
    where = "/".join(names) or "the observation"
    if 0 in (space.shape or ()):
        raise ConfigError(f"environment {environment!r}: {where} is {space}, which has no entries; leave it out")
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        nums = np.atleast_1d(space.nvec if isinstance(space, spaces.MultiDiscrete) else space.n).ravel()
        starts = np.broadcast_to(np.asarray(space.start), np.shape(space.start) or (1,)).ravel()
        size = int(nums.sum())
        if size > MAX_ONE_HOT:
            raise ConfigError(
                f"environment {environment!r}: {where} is {space}, a one-hot of {size} entries; at most {MAX_ONE_HOT} "
                "are supported: encode it in a wrapper, e.g. as a Box"
            )
        first = np.concatenate([[0], np.cumsum(nums)[:-1]]).astype(np.int64)
        spec = ArraySpec((size,), "float32")
        shape, dtype = tuple(space.shape or ()), np.dtype(space.dtype)
        return Leaf(path, names, shape, dtype, spec, first - starts, starts, starts + nums - 1)
    if isinstance(space, spaces.Box | spaces.MultiBinary) and np.dtype(space.dtype).kind in "fiub":
        dtype, shape = np.dtype(space.dtype), tuple(space.shape)
        return Leaf(path, names, shape, dtype, ArraySpec(shape, _kind(space, dtype, shape, names)))
    raise ConfigError(
        f"environment {environment!r}: {where} has the space {space}, and {type(space).__name__} is not supported; "
        "supported are Box, Discrete, MultiDiscrete, MultiBinary and Dict or Tuple of them. Convert it in a wrapper"
    )


def _kind(space: spaces.Space, dtype: np.dtype, shape: tuple[int, ...], names: tuple[str, ...]) -> str:
    """Return the dtype in which the agent gets a leaf: uint8 (images, bytes, action masks), bool (flags) or float32."""
    if names[-1:] == (MASK_KEY,) or (dtype == np.uint8 and is_image(ArraySpec(shape, "uint8"))):
        return "uint8"
    if isinstance(space, spaces.Box) and dtype.kind in "ub" and dtype.itemsize == 1:
        return "bool" if np.all(space.high <= 1) else "uint8"
    return "float32"


def _loses_digits(space: spaces.Box) -> bool:
    ends = max(abs(int(space.low.min())), abs(int(space.high.max()))) if space.dtype.kind in "iu" else 0
    return ends > 2**24


def flat_mask(mask: Any) -> np.ndarray:
    """Return an action mask as uint8 [A]; a tuple or list of masks (MultiDiscrete) is joined."""
    if isinstance(mask, tuple | list) and len(mask) and np.ndim(mask[0]):
        mask = np.concatenate([np.ravel(part) for part in mask])
    return np.asarray(mask).ravel().astype(np.uint8)


def choice_starts(action: ActionSpec) -> np.ndarray:
    """Return where each choice of a discrete action begins in an action mask: one for Discrete, else one for each part."""
    nums = action.nums if isinstance(action, MultiDiscrete) else (0,)
    return np.cumsum((0, *nums[:-1]))


def mask_starts(spec: EnvSpec) -> np.ndarray | None:
    """Return where each choice begins in the action masks of an environment's observations; None: they have none."""
    masked = isinstance(spec.observation, dict) and MASK_KEY in spec.observation
    return choice_starts(spec.action) if masked and not isinstance(spec.action, Continuous) else None


def allowed_choices(mask: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Return for which choices masks [B, A] allow some action: nonzero in [B, choices]; starts: from `choice_starts`."""
    return np.maximum.reduceat(mask, starts, axis=1)


@dataclass(frozen=True)
class ActionLayout:
    """The mapping of an agent's actions to the environment's.

    Attributes:
      spec: for the agent. num_choices: entries of a mask (None for continuous actions).
      convert: [B, ...] of the agent's actions to [B, ...] with the environment's dtype, bounds and shape.
      notes: for the user; see EnvSpec.
    """

    spec: ActionSpec
    num_choices: int | None
    convert: Callable[[np.ndarray], np.ndarray]
    notes: tuple[str, ...] = ()


def action_layout(space: spaces.Space, environment: str, transform: Any) -> ActionLayout:
    if isinstance(space, spaces.Discrete):
        start, dtype = int(space.start), np.dtype(space.dtype)
        if start == 0:
            return ActionLayout(Discrete(int(space.n)), int(space.n), lambda action: action.astype(dtype, copy=False))
        return ActionLayout(
            Discrete(int(space.n), start), int(space.n), lambda action: action.astype(dtype) + dtype.type(start)
        )
    if isinstance(space, spaces.MultiDiscrete):
        return _several(tuple(int(n) for n in np.ravel(space.nvec)), np.asarray(space.start), space)
    if isinstance(space, spaces.MultiBinary):
        shape = tuple(space.shape or ())
        return _several((2,) * int(np.prod(shape)), np.zeros(shape, int), space)
    if isinstance(space, spaces.Box) and np.dtype(space.dtype).kind == "f":
        return _continuous(space, transform)
    raise ConfigError(
        f"environment {environment!r}: the action space {space} is not supported ({type(space).__name__}"
        f"{' of ' + str(space.dtype) if isinstance(space, spaces.Box) else ''}); supported are Discrete, MultiDiscrete, "
        "MultiBinary and Box of floats. Convert it in a wrapper (gymnasium.wrappers.TransformAction)"
    )


def _several(nums: tuple[int, ...], starts: np.ndarray, space: spaces.Space) -> ActionLayout:
    shape, dtype = tuple(space.shape or ()), np.dtype(space.dtype)
    starts = starts.astype(dtype)
    spec = MultiDiscrete(nums, tuple(int(n) for n in np.ravel(starts)) if starts.any() else ())
    return ActionLayout(spec, sum(nums), lambda action: action.reshape(-1, *shape).astype(dtype) + starts)


def continuous_spec(low: tuple[float, ...], high: tuple[float, ...], transform: Any) -> Continuous:
    """Return the spec of a Box with these bounds; `auto` scales actions to finite bounds other than [-1, 1]."""
    spec = Continuous(low, high, "clip" if transform == "auto" else transform)
    fits = set(low) == {-1.0} and set(high) == {1.0}  # the same actions; clipping does not round them
    return replace(spec, transform="rescale") if transform == "auto" and spec.bounded and not fits else spec


def _continuous(space: spaces.Box, transform: Any) -> ActionLayout:
    shape, dtype = tuple(space.shape), np.dtype(space.dtype)
    spec = continuous_spec(tuple(np.ravel(space.low).tolist()), tuple(np.ravel(space.high).tolist()), transform)
    low, high = spec.bounds
    bounded = bool(np.isfinite(low).any() or np.isfinite(high).any())

    def convert(action: np.ndarray) -> np.ndarray:
        if spec.transform != "clip":
            action = to_environment(spec, action)
        elif bounded:
            # two ufuncs: np.clip's own checks cost more than the work
            action = np.minimum(np.maximum(action, low), high)
        return action.reshape(-1, *shape).astype(dtype, copy=False)

    return ActionLayout(spec, None, convert, (SCALED,) if transform == "auto" and spec.transform == "rescale" else ())


_NORMALISERS = {
    (wrappers.NormalizeObservation, wrappers.vector.NormalizeObservation): (
        "the wrapper NormalizeObservation has statistics in each environment, which snapshots lack and evaluations begin "
        "anew: the policy would be scored on other observations; use agent.normalize_observations in its place"
    ),
    (wrappers.NormalizeReward, wrappers.vector.NormalizeReward): (
        "the wrapper NormalizeReward has statistics in each environment, and returns are reported in its rewards; use "
        "agent.normalize_values in its place"
    ),
}


def environment_notes(env: Any, actions: ActionLayout, layout: ObservationLayout) -> tuple[str, ...]:
    """Return notes about an environment of Gymnasium, or a vector of some, with its wrappers and spaces."""
    masked = isinstance(layout.spec, dict) and MASK_KEY in layout.spec
    notes = [*actions.notes, *layout.notes]
    while env is not None:
        if not masked and callable(getattr(env, "action_masks", None)):
            notes.append(f"the method action_masks() is not called; return the masks in info, as {MASK_KEY!r}")
        notes += [note for kinds, note in _NORMALISERS.items() if isinstance(env, kinds)]
        env = getattr(env, "env", None) or next(iter(getattr(env, "envs", ())), None)
    return tuple(notes)


def spec_notes(spec: EnvSpec | GameSpec) -> tuple[str, ...]:
    """Return sentences for the user about how an environment is read, each once."""
    if isinstance(spec, GameSpec):
        seen = [(path, leaf) for seat in spec.seats for path, leaf in named_leaves(seat.observation)]
    else:
        seen = own_leaves(spec)
    notes = list(spec.notes)
    for path, leaf in seen:
        name, shape = path or "observation", list(leaf.shape)
        if is_image(leaf) and has_channels_first(leaf.shape):
            notes.append(f"{name} {shape} is an image with the channels first, because that axis is the shortest")
        elif leaf.dtype == "uint8" and not is_image(leaf) and path.rpartition("/")[2] != MASK_KEY:
            notes.append(
                f"{name} is uint8 {shape}: bytes, scaled by 1/255 or normalised (an image is uint8 [H, W, C], flags are bool)"
            )
    return tuple(dict.fromkeys(notes))


def checked(observation: Any, spec: EnvSpec) -> Tree:
    """Return a batch of observations as arrays of the spec's dtypes."""
    found = dict(_entries(observation)) if isinstance(spec.observation, dict) else {"": observation}
    arrays: list[np.ndarray] = []
    for name, leaf in named_leaves(spec.observation):
        array, rows = np.asarray(found.get(name, ())), len(arrays[0]) if arrays else "B"
        wanted = f"{leaf.dtype} [{', '.join(map(str, (rows, *leaf.shape)))}]"
        where = f"{shown_target(spec.name)}: {'/'.join(filter(None, ('observation', name)))}"
        if name not in found:
            raise SpecMismatch(f"{where} is missing; expected {wanted}.")
        fits = array.shape[1:] == leaf.shape and array.ndim and rows in ("B", len(array))
        if not fits or array.dtype.kind not in ("biuf" if np.dtype(leaf.dtype).kind == "f" else "biu"):
            raise SpecMismatch(
                f"{where} is {array.dtype} {list(array.shape)}; expected {wanted}. Give a batch, with one-hots for "
                "the parts that the environment declares as Discrete: jsrl.extend.encode(env.observation_space, "
                "[observation]) makes it from what a Gymnasium environment returns."
            )
        array = array.astype(leaf.dtype, copy=False)
        if array.dtype.kind == "f" and (bad := first_non_finite(array)) is not None:
            raise SpecMismatch(
                f"{where} has {bad[2]} in row {bad[0]}, at {list(bad[1])}, which a recurrent state would keep; "
                "give finite numbers."
            )
        arrays.append(array)
    return unflatten(spec.observation, arrays)


def _entries(observation: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (path, array) of nested dicts; an array may be a list of rows."""
    if not isinstance(observation, Mapping):
        yield path, observation
        return
    for name, entry in observation.items():
        yield from _entries(entry, f"{path}/{name}" if path else str(name))
