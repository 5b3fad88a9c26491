"""One group of environments on its way through a trajectory. Imports no jax."""

from __future__ import annotations

from dataclasses import dataclass, field

from jsrl.envs.base import EnvStep, VectorEnv
from jsrl.transport.base import Block, Reply
from jsrl.types import Array
from jsrl.workers.actor.journaled import where


class EnvCall:
    """Text for messages about a call of the environment that has not returned; says which slot is stepping when read."""

    def __init__(self, text: str, env: VectorEnv) -> None:
        self._text, self._env = text, env

    def __str__(self) -> str:
        """Return the call, and the slot where it is known."""
        place = where(self._env)
        return f"{self._text} ({place})," if place else f"{self._text},"


@dataclass
class Group:
    """One group of environments on its way through a trajectory.

    Attributes:
      number: of the group in the experiment. env: its vector. latest: what its last step (or reset) returned.
      stepping: what to say of a step that does not return. row: the row that waits for its action.
      trajectory: number of the trajectory that is being written (None: not known yet).
      made: trajectories committed to the consumer of now. sequence: of the trajectory that is being written, in this life of
        the actor. block: the room for the next. observation, extras: its leaves.
      waiting: a reply that came before there was room.
    """

    number: int
    env: VectorEnv
    latest: EnvStep
    stepping: EnvCall
    row: int = 0
    trajectory: int | None = None
    made: int = 0
    sequence: int = 0
    block: Block | None = None
    observation: list[Array] = field(default_factory=list)
    extras: list[Array] = field(default_factory=list)
    waiting: Reply | None = None

    def abandon(self) -> None:
        """Give the open trajectory's room back, and forget the reply that would have gone on with it.

        The next one does not follow the last: a number is left out.
        """
        self.sequence += 1
        if self.block is not None:
            self.block.abandon()
        self.block, self.waiting, self.row = None, None, 0
