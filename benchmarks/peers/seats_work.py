"""What the drivers for several seats share: settings of `jsrl run mappo` and `jsrl run ippo`, rates and points of curves.

Standard library only.
"""

from __future__ import annotations

import statistics
from itertools import pairwise

NUM_ENVS, ROWS, EPOCHS, MINIBATCHES = 128, 25, 5, 8
LEARNING_RATE, GAMMA, LAMBDA, CLIP, ENTROPY, MAX_GRAD_NORM = 1e-3, 0.95, 0.95, 0.2, 0.01, 10.0
FORAGING_GAMMA = 0.99  # instead of GAMMA, as in `jsrl run mappo --env.id foraging:GAME --agent.gamma 0.99`
HIDDEN = (64, 64)
LIMITS = {"spread": 25, "foraging": 50}  # steps of an episode


def rate(updates: list[dict[str, float]], clock: str) -> float:
    """Return the env steps per second of a clock in the median update; an evaluation falls into few of them."""
    return statistics.median((b["env_steps"] - a["env_steps"]) / (b[clock] - a[clock]) for a, b in pairwise(updates))


def point(env_steps: int, returns: list[float]) -> list[float]:
    """Return a point of a curve: env steps, mean return of the episodes, half of its 95% confidence interval."""
    half = 1.96 * statistics.stdev(returns) / len(returns) ** 0.5
    return [env_steps, round(statistics.mean(returns), 3), round(half, 3)]
