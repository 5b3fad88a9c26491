"""Who earns what: seen or unseen, out of bounds, and nothing while hiders prepare."""

from __future__ import annotations

import numpy as np

from jsrl.envs.hide_and_seek.settings import OUT_OF_BOUNDS_REWARD, Settings


def anyone_seen(settings: Settings, seen: np.ndarray) -> np.ndarray:
    """Return bool [B]: some seeker sees some hider. `seen`: bool [B, n, M]."""
    hiders = settings.n_hiders
    return np.asarray(seen[:, hiders:, :hiders].any(axis=(1, 2)))


def outside(settings: Settings, centres: np.ndarray) -> np.ndarray:
    """Return bool [B, M]: which centres [B, M, 3] are strictly outside the rectangle."""
    if settings.restrict_rect is None:
        return np.zeros(centres.shape[:2], bool)
    low, high = settings.restrict_rect[:2], settings.restrict_rect[2:]
    flat = centres[..., :2]
    return np.asarray(((flat < low) | (flat > high)).any(axis=-1))


def rewards(settings: Settings, caught: np.ndarray, out: np.ndarray, preparing: np.ndarray) -> np.ndarray:
    """Return the rewards [B, n].

    Args:
      caught: bool [B]: a hider is seen. out: bool [B, M]: bodies outside the rectangle; padding is not.
      preparing: bool [B]: the step belonged to the preparation phase.
    """
    agents, hiders = settings.n_agents, settings.n_hiders
    side = np.where(np.arange(agents) < hiders, -1.0, 1.0)
    reward = np.where(caught[:, None], side, -side)
    lost = out[:, :agents]
    if settings.penalize_objects_out:
        lost = lost | out[:, agents:].any(axis=1, keepdims=True)
    reward = np.where(lost, OUT_OF_BOUNDS_REWARD, reward)
    return np.where(preparing[:, None], 0.0, reward)
