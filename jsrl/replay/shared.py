"""What replay on the devices and in replay workers have in common; arrays are those of numpy or of jax."""

from __future__ import annotations

from typing import Any

from jsrl.experiment.settings import ReplayConfig
from jsrl.types import Array, ArraySpec, Trajectory, Tree, map_trajectory

PRIORITIES = "priorities"  # the array [M] of an update's feedback that sets how often windows are drawn


def windows_spec(config: ReplayConfig, spec: Trajectory, number: int | None = None) -> Trajectory:
    """Return the schema [W+1, M, ...] of windows from trajectories of a schema [T+1, B, ...]; M: the batch size."""
    number = config.batch_size if number is None else number

    def rows(leaf: ArraySpec) -> ArraySpec:
        return ArraySpec((config.window + 1, number, *leaf.shape[2:]), leaf.dtype)

    def columns(leaf: ArraySpec) -> ArraySpec:
        return ArraySpec((number, *leaf.shape[1:]), leaf.dtype)

    made: Tree = map_trajectory(rows, columns, spec._replace(sampling=()))
    return made._replace(sampling=ArraySpec((number,), "float32") if config.prioritised else ())


def weights_of(config: ReplayConfig, priorities: Array) -> Array:
    """Return what the chances of windows with these priorities (0 or more, such as absolute errors) are proportional to."""
    return (abs(priorities) + config.epsilon) ** config.alpha


def beta_at(config: ReplayConfig, share: Any) -> Any:
    """Return the exponent of importance weights after a share (0 to 1) of the run."""
    return config.beta + share * (config.beta_end - config.beta)
