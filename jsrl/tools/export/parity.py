"""Checks that an exported policy equals the agent: both play the same rows, and every number is compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jsrl.agents.normalization import Moments
from jsrl.errors import ExportError
from jsrl.tools.export.function import PolicyFunction, Port
from jsrl.types import Tree, named_leaves

ROWS, STEPS = 1000, 20
TOLERANCE = 1e-5
STATE_TOLERANCE = 1e-4  # of a recurrent state: sums over all steps, which the outputs read through an activation

Player = Callable[[list[np.ndarray]], list[np.ndarray]]


def rows_of(function: PolicyFunction, moments: Tree) -> list[list[np.ndarray]]:
    """Return STEPS batches of observations, ROWS rows in all, and is_first if there is a state.

    Numbers are normal, with the mean and twice the deviation of the agent's moments if it has them; pixels and masks are
    uniform, each mask with at least one allowed action. A tenth of the rows begin an episode.
    """
    rng, batch = np.random.default_rng(0), ROWS // STEPS
    scales = _scales(moments)
    steps = []
    for step in range(STEPS):
        arrays = [_random(port, batch, rng, scales) for port in function.inputs]
        if function.state:
            arrays.append(rng.random(batch) < 0.1 if step else np.ones(batch, bool))
        steps.append(arrays)
    return steps


def _scales(moments: Tree) -> dict[str, tuple[Any, Any]]:
    found = dict(named_leaves(moments))
    names = {path.rpartition("/")[0] for path in found if path.rpartition("/")[2] in Moments._fields}
    joined = {name: f"{name}/" if name else "" for name in names}
    return {
        n: (np.asarray(found[f"{at}mean"]), np.sqrt(np.asarray(found[f"{at}variance"]))) for n, at in joined.items()
    }


def _random(port: Port, batch: int, rng: np.random.Generator, scales: dict[str, tuple[Any, Any]]) -> np.ndarray:
    shape = (batch, *port.shape)
    if port.path[-1:] == ("action_mask",):
        mask = rng.random(shape) < 0.5
        np.put_along_axis(mask, rng.integers(0, shape[-1], (*shape[:-1], 1)), True, axis=-1)
        return mask.astype(port.dtype)
    kind = np.dtype(port.dtype)
    if kind.kind == "f":
        mean, deviation = scales.get("/".join(port.path), (0.0, 1.0))
        return (mean + 2.0 * deviation * rng.standard_normal(shape)).astype(kind)
    return rng.integers(0, 256 if kind == np.uint8 else 2, shape).astype(kind)


def play(function: PolicyFunction, player: Player, steps: list[list[np.ndarray]]) -> list[list[np.ndarray]]:
    """Return a player's results for every step: outputs and new state; its own state is passed back to it."""
    batch = len(steps[0][0])
    state, played = [np.zeros((batch, *port.shape), port.dtype) for port in function.state], []
    for arrays in steps:
        results = player([*arrays, *state])
        state = list(results[len(function.outputs) :])
        played.append(results)
    return played


def of_agent(function: PolicyFunction) -> Player:
    """Return the agent itself as a player: JAX on this machine's CPU, in full float32."""
    compiled = jax.jit(function.call)

    def call(arrays: list[np.ndarray]) -> list[np.ndarray]:
        with jax.default_device(jax.local_devices(backend="cpu")[0]), jax.default_matmul_precision("highest"):
            return [np.asarray(x) for x in compiled(*arrays)]

    return call


def compare(
    name: str, function: PolicyFunction, played: list[list[np.ndarray]], reference: list[list[np.ndarray]]
) -> str:
    """Return a line about the difference of a player from the agent.

    Outputs may differ by 1e-5 and the recurrent state by 1e-4, times their size if that is above 1. Discrete actions must be
    equal, except in two rows, in which rounding may have decided between the two best ones.

    Raises:
      ExportError: they differ by more; the file must not be used.
    """
    largest, beyond, unequal = 0.0, 0.0, 0
    limits = [TOLERANCE] * len(function.outputs) + [STATE_TOLERANCE] * len(function.state)
    for ours, theirs in zip(played, reference, strict=True):
        for mine, true, limit in zip(ours, theirs, limits, strict=True):
            if true.dtype.kind != "f":
                unequal += int(np.sum(np.any((mine != true).reshape(len(true), -1), axis=1)))
                continue
            difference = np.abs(mine.astype(np.float64) - true.astype(np.float64))
            largest = max(largest, float(difference.max(initial=0.0)))
            beyond = max(beyond, float((difference / np.maximum(1.0, np.abs(true))).max(initial=0.0)) / limit)
            beyond = beyond if np.isfinite(difference).all() else float("inf")
    line = f"{name}: {ROWS} rows, largest difference {largest:.1e}, {ROWS - unequal} of {ROWS} actions equal"
    if function.outputs[0].dtype[0] == "f":
        line = f"{name}: {ROWS} rows, largest difference {largest:.1e}"
    if not beyond <= 1.0 or unequal > ROWS // 500:
        raise ExportError(
            f"the exported policy differs from the agent: {line}; expected at most {TOLERANCE:g}, {STATE_TOLERANCE:g} in a "
            "recurrent state (times the numbers where they are above 1), and equal actions. Nothing was written; please "
            "report this with the network's config"
        )
    return line
