"""One group of environments and its open trajectory. Imports no jax."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jsrl.envs.base import EnvStep, GameStep, VectorEnv, VectorGame
from jsrl.envs.seats import NO_SEATS, actions_of, seat_group
from jsrl.types import Array
from jsrl.workers.actor.policies import PolicyRows
from jsrl.workers.base import EnvCall


@dataclass
class Group:
    """One group of environments and its open trajectory.

    Attributes:
      number: of the group in the experiment. env: its vector. latest: result of its last step (or reset).
      stepping: text about a step that does not return. rows: of each policy. row: the row that waits for its actions.
      missing: policies whose actions have not arrived.
      shared: several policies may play the same seats, or the environment's only agent.
      parked: it waits for assignments before its first request. held: its trajectory is full and waits for assignments.
    """

    number: int
    env: VectorEnv | VectorGame
    latest: EnvStep | GameStep
    stepping: EnvCall
    rows: list[PolicyRows]
    row: int = 0
    missing: int = 0
    parked: bool = False
    held: bool = False
    shared: bool = False

    @property
    def made(self) -> int:
        """Return the trajectories committed so far."""
        return self.rows[0].made

    def ask(self, num_rows: int) -> None:
        """Request the actions of the next row."""
        self.missing = len(self.rows)
        for rows in self.rows:
            rows.ask(self.row, num_rows)

    def park(self) -> None:
        """Wait for assignments before the first request."""
        self.parked, self.missing = True, len(self.rows) + 1

    def hold(self) -> None:
        """Wait for assignments before the full trajectory is handed over."""
        self.held, self.missing = True, len(self.rows) + 1

    def step(self, num_rows: int) -> int:
        """Return the number of the group's next step, counted from the start of the run."""
        first = self.rows[0]
        return (first.policy.settings.begun if first.trajectory is None else first.trajectory) * num_rows + self.row

    def write_decisions(self) -> Any:
        """Write the actions of the next row; return them, by group of seats where there are seats."""
        chosen = [(rows.policy.settings.view, rows.write_decision(self.row)) for rows in self.rows]
        if not self.shared:
            return actions_of(chosen)
        actions: dict[str, Array] = {}
        for (view, action), rows in zip(chosen, self.rows, strict=True):
            assert rows.seat_players is not None
            group = seat_group(view)
            actions[group] = rows.seat_players.laid_over(actions.get(group), action)
        return actions.get(NO_SEATS, actions)

    def restart(self, latest: EnvStep | GameStep) -> None:
        """Continue from a reset."""
        self.latest = latest
        for rows in self.rows:
            rows.latest = rows.policy.part(latest)

    def abandon(self) -> None:
        """Discard the open trajectory."""
        for rows in self.rows:
            rows.abandon()
        self.row, self.missing, self.parked, self.held = 0, len(self.rows), False, False
