"""Rewards: for being seen or unseen, out of bounds, and 0 in the preparation phase."""

from __future__ import annotations

import numpy as np

from jsrl.games.hide_and_seek.settings import OUT_OF_BOUNDS_REWARD, Settings


def distances(settings: Settings, centres: np.ndarray) -> np.ndarray:
    """Return the distances of seekers to hiders in the plane, [B, seekers, hiders]. `centres`: [B, M, 3]."""
    hiders, agents = settings.n_hiders, settings.n_agents
    apart = centres[:, hiders:agents, None, :2] - centres[:, None, :hiders, :2]
    return np.sqrt((apart * apart).sum(axis=-1))


def anyone_seen(settings: Settings, seen: np.ndarray, apart: np.ndarray) -> np.ndarray:
    """Return bool [B]: a seeker sees a hider within `reward_range`.

    Args:
      seen: bool [B, n, M]. apart: the distances of seekers to hiders, [B, seekers, hiders].
    """
    hiders = settings.n_hiders
    counted = seen[:, hiders:, :hiders]
    if settings.reward_range is not None:
        counted = counted & (apart <= settings.reward_range)
    return np.asarray(counted.any(axis=(1, 2)))


def visibility(settings: Settings, seen: np.ndarray, apart: np.ndarray) -> np.ndarray:
    """Return how well a hider is seen, 0 to 1, for each agent's reward, [B, n]; see `reward_falls` and `reward_each`.

    The arguments are those of `anyone_seen`.
    """
    hiders, reach = settings.n_hiders, settings.reward_range
    sight = seen[:, hiders:, :hiders].astype(float)
    if reach is not None:
        sight = sight * (np.maximum(1.0 - apart / reach, 0.0) if settings.reward_falls else apart <= reach)
    each = sight.max(axis=2)
    best = each.max(axis=1, keepdims=True)
    return np.concatenate(
        [best.repeat(hiders, 1), each if settings.reward_each else best.repeat(each.shape[1], 1)], axis=1
    )


def outside(settings: Settings, centres: np.ndarray) -> np.ndarray:
    """Return bool [B, M]: which centres [B, M, 3] are strictly outside the rectangle."""
    if settings.restrict_rect is None:
        return np.zeros(centres.shape[:2], bool)
    low, high = settings.restrict_rect[:2], settings.restrict_rect[2:]
    flat = centres[..., :2]
    return np.asarray(((flat < low) | (flat > high)).any(axis=-1))


def rewards(settings: Settings, sight: np.ndarray, out: np.ndarray, preparing: np.ndarray) -> np.ndarray:
    """Return the rewards [B, n].

    Args:
      sight: [B, n], 1: a hider is seen, 0: none; values between if distance counts (see `visibility`).
      out: bool [B, M]: bodies outside the rectangle; False for padding.
      preparing: bool [B]: the step is of the preparation phase.
    """
    agents, hiders = settings.n_agents, settings.n_hiders
    side = np.where(np.arange(agents) < hiders, -1.0, 1.0)
    reward = (2.0 * sight - 1.0) * side
    lost = out[:, :agents]
    if settings.penalize_objects_out:
        lost = lost | out[:, agents:].any(axis=1, keepdims=True)
    reward = np.where(lost, OUT_OF_BOUNDS_REWARD, reward)
    return np.where(preparing[:, None], 0.0, reward)
