"""The learner's state where replay is part of it: how it begins, what a snapshot keeps of it, and what failed."""

from __future__ import annotations

from typing import Any

import jax

from jsrl.agents.base import Agent, AgentState
from jsrl.parallel import DataParallel
from jsrl.replay.device.agent import MADE, OnDevice
from jsrl.types import Array, map_trajectory
from jsrl.workers.learner.split_update import SplitUpdate


def begin_state(
    agent: Agent, update: DataParallel | SplitUpdate, replay: OnDevice | None, restored: AgentState | None, key: Array
) -> AgentState:
    """Return the state on all devices: a fresh one, or a snapshot's with an empty ring where it left the rows out."""
    if restored is None:
        return update.make(agent.init, key)
    placed = update.place(restored)
    return placed if replay is None else replay.unpack(placed, lambda: update.make(agent.init, key))


def failed_update(replay: OnDevice, state: AgentState) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (the agent's own state before the update that failed and its windows [1, W+1, M, ...], facts of it)."""
    before, windows, number = jax.device_get(jax.jit(replay.failed)(state))
    batch = map_trajectory(lambda x: x[None], lambda x: x[None], windows)
    return {"state": before, "batch": batch}, {"number": int(number), "windows": True, "devices": 1}


def split_metrics(metrics: dict[str, float]) -> tuple[dict[str, float], dict[str, float]]:
    """Return (metrics of the updates, empty where none was made; metrics of the replay, with their whole names)."""
    beside = {name: value for name, value in metrics.items() if "/" in name}
    if beside.get(MADE, 1.0) == 0.0:
        return {}, beside
    return {name: value for name, value in metrics.items() if name not in beside}, beside
