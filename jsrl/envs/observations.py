"""Batches of observations in the form that agents see, checked where a user gives them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from jsrl.envs.faults import first_non_finite
from jsrl.errors import SpecMismatch
from jsrl.references.importing import shown_target
from jsrl.types import EnvSpec, Tree, named_leaves, unflatten


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
