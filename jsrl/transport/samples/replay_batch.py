"""Messages between replay workers and the learner: batches of windows one way, their new priorities the other."""

from __future__ import annotations

from typing import Any, NamedTuple

from jsrl.types import Array, ArraySpec, Trajectory


class ReplayBatch(NamedTuple):
    """A batch of windows: `windows` [W+1, M, ...], `ids` int64 [M].

    counters: int64 [3], when the batch was drawn: number of the replay worker, env steps inserted, windows drawn.
    """

    windows: Trajectory
    ids: Array
    counters: Array


class Priorities(NamedTuple):
    """New priorities float32 [M] of windows `ids` int64 [M]."""

    ids: Array
    priorities: Array


def replay_batch_spec(windows: Trajectory) -> ReplayBatch:
    number = windows.is_first.shape[1]
    return ReplayBatch(windows, ArraySpec((number,), "int64"), ArraySpec((3,), "int64"))


def priorities_spec(number: int) -> Any:
    return Priorities(ArraySpec((number,), "int64"), ArraySpec((number,), "float32"))
