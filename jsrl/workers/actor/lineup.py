"""Who plays in an actor's environments, and what of it is written: what other parts attach to. Imports no jax."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from jsrl.envs.seats import SeatView, actions_of
from jsrl.services.runs.control_bodies import Command
from jsrl.transport.base import LATEST_VERSION, Entry
from jsrl.types import Array, Trajectory

if TYPE_CHECKING:
    from jsrl.workers.actor.environments import Environments


class Players:
    """Who plays the seats of one policy in a group of environments: its newest params.

    Attributes:
      game: int32 [B], as in Trajectory, where its rows have one.
    """

    game: Any = -1

    def versions(self, acts: Array) -> Array | int:
        """Return the versions to ask for, for rows of these kinds [B] or [B, N]."""
        return LATEST_VERSION

    def kinds(self, acts: Array) -> Array:
        """Return the kinds under which the rows are written."""
        return acts


class Lineup:
    """Who plays in the groups of environments of an actor: the newest params, at any time, and rows are written as they are.

    Steps of a group are counted over the whole run, resumes included.

    Attributes:
      waits: some group is not ready, so that the actor polls more often.
    """

    waits = False

    def join(self, group: Environments, step: int) -> Sequence[Players]:
        """Take a group whose environments were reset before this step; return its players for each policy."""
        return [Players() for _ in group.progress]

    def poll(self) -> bool:
        """Exchange messages; return whether any group is ready."""
        return True

    def ready(self, group: Environments) -> bool:
        """Return whether a group can be stepped."""
        return True

    def begin(self, group: Environments) -> bool:
        """Begin with a group after a reset; return False if it is not ready: called again once it is."""
        return True

    def actions(self, group: Environments, chosen: Sequence[tuple[SeatView | None, Array]]) -> Any:
        """Return the actions for the environments, from those that each policy chose."""
        return actions_of(chosen)

    def before_step(self, group: Environments) -> None:
        """Prepare a step of a group."""

    def after_step(self, group: Environments, step: int, *, is_last: bool) -> None:
        """Take the result of a step before its row is written. `step`: the next one. `is_last`: the trajectory is full."""

    def may_commit(self, group: Environments) -> bool:
        """Return whether a full trajectory may be committed; if not, it is once the group is ready."""
        return True

    def begin_again(self, group: Environments, step: int) -> None:
        """Drop the open episodes of a group: its environments were reset before this step."""

    def command(self, command: Command) -> None:
        """Execute a command of the controller."""


class Tap(Protocol):
    """Sees each trajectory of a policy. After the commit its memory belongs to the reader."""

    def before_commit(self, trajectory: Trajectory) -> None: ...

    def after_commit(self, entry: Entry) -> None: ...

    def close(self) -> None: ...
