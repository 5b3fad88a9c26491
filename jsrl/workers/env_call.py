"""Texts about calls of environments, for messages. Imports no jax."""

from __future__ import annotations

from typing import Any

from jsrl.envs.base import VectorEnv, VectorGame


def where(env: Any) -> str:
    """Return which slot of a vector is stepping and its position in the episode; empty if it reports none."""
    return env.where() if hasattr(env, "spec") and callable(getattr(env, "where", None)) else ""


class EnvCall:
    """Text for messages about an environment call that has not returned; names the stepping slot when read."""

    def __init__(self, text: str, env: VectorEnv | VectorGame) -> None:
        self._text, self._env = text, env

    def __str__(self) -> str:
        """Return the call, and the slot if it is known."""
        place = where(self._env)
        return f"{self._text} ({place})," if place else f"{self._text},"
