"""Counts games in the order of their assignment, not of their ends.

Short games end first. If games that are won are shorter, the mean over the games that have ended so far is biased upwards
until the last long game is over. So the result of a game waits until every game assigned before it has ended.
"""

from __future__ import annotations

from typing import Any, TypeAlias

Queue: TypeAlias = list[list[Any]]
"""Assigned games that are not counted yet, oldest first: [id, ended, value]. JSON values."""


def assign(queue: Queue, game: int) -> None:
    """Put a game at the end of the queue; ids rise."""
    queue.append([game, False, None])


def end(queue: Queue, game: int, value: Any) -> list[Any]:
    """Record that a game has ended, and return the values that can be counted now, oldest first.

    Args:
      game: its id. A game that is not in the queue was forgotten, and is ignored.
      value: a JSON value; None: the game is discarded, and its value is left out.
    """
    for entry in queue:
        if entry[0] == game:
            entry[1:] = [True, value]
            break
    count = next((index for index, entry in enumerate(queue) if not entry[1]), len(queue))
    counted = [entry[2] for entry in queue[:count] if entry[2] is not None]
    del queue[:count]
    return counted
