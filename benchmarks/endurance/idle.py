"""CartPole that records pauses between its steps.

JSRL_IDLE names a folder. Each process writes there, into a file named by its process ID, a line for every pause between two
steps of its environments that was longer than SHORTEST_S: its end (monotonic seconds) and its duration.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from gymnasium.envs.classic_control import CartPoleEnv

SHORTEST_S = 0.1


def pauses(folder: Path) -> list[tuple[float, float]]:
    """Return (end, duration) of every recorded pause."""
    lines = [line for path in folder.glob("[0-9]*") for line in path.read_text().splitlines()]
    return [(float(end), float(duration)) for end, duration in map(str.split, lines)]


class Idle(CartPoleEnv):
    """See above."""

    last_s: float | None = None

    def step(self, action: Any) -> Any:
        """Take a step."""
        now_s, last_s = time.monotonic(), Idle.last_s
        Idle.last_s = now_s
        if last_s is None:
            Path(os.environ["JSRL_IDLE"], str(os.getpid())).touch()
        elif now_s - last_s > SHORTEST_S:
            with Path(os.environ["JSRL_IDLE"], str(os.getpid())).open("a") as file:
                file.write(f"{now_s} {now_s - last_s}\n")
        return super().step(action)
