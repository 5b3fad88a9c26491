"""Episodes that seem to have no end. Whatever waits for the end of an episode has a limit in steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jsrl.envs.base import Episode
from jsrl.errors import ConfigError

LONG_STEPS = 30_000  # longer than any usual episode; Atari's have at most 27,000 env steps


class OpenEpisodes:
    """The lengths of the open episodes of some slots.

    Args:
      slots: their number. max_steps: of an episode; a longer one seems to have no end.
    """

    def __init__(self, slots: int, max_steps: int) -> None:
        self._lengths, self.max_steps = np.zeros(slots, np.int64), max_steps

    def see(self, episodes: Sequence[Episode]) -> None:
        """Count a step of all slots, in which these episodes ended."""
        self._lengths += 1
        self._lengths[[episode.slot for episode in episodes]] = 0

    def any_endless(self, slots: np.ndarray) -> bool:
        """Return whether the open episode of one of these slots (a mask) is too long."""
        return bool((self._lengths[slots] >= self.max_steps).any())


def endless_text(name: str, max_steps: int) -> str:
    """Return why episodes of an environment were cut, and what helps."""
    return (
        f"an episode of {name} did not end within {max_steps:,} steps (evaluator.max_steps). If its episodes have no end, "
        "give them one with --env.max-episode-steps; if they are that long, raise --evaluator.max-steps"
    )


def refuse_endless(name: str, max_steps: int) -> None:
    """Raise ConfigError: the episodes that a command waits for do not end."""
    raise ConfigError(f"nothing was scored, because {endless_text(name, max_steps)}.")
