"""Texts about calls of environments, for messages. Imports no jax."""

from __future__ import annotations

from typing import Any

from jsrl.envs.base import VectorEnv, VectorGame
from jsrl.references.importing import shown_target
from jsrl.workers.jobs import Job
from jsrl.workers.kinds import ended_by_own_code


def where(env: Any) -> str:
    """Return which slot of a vector is stepping and its position in the episode; empty if it reports none."""
    return env.where() if hasattr(env, "spec") and callable(getattr(env, "where", None)) else ""


def end_hint(job: Job, status: int | None) -> str:
    """Return what may have ended a worker with environments that sent no error, as the end of a sentence, and what to do."""
    name = shown_target(job.experiment.env.id)
    if not ended_by_own_code(status):
        return f" (environment {name!r})"
    return (
        f". The environment {name!r} may have ended the process, by os._exit or in C code, as errors of Python code leave a "
        "traceback. Try it with check_env (jsrl.envs.check); --restart 3 replaces a worker that ends"
    )


class EnvCall:
    """Text for messages about an environment call that has not returned; names the stepping slot when read."""

    def __init__(self, text: str, env: VectorEnv | VectorGame) -> None:
        self._text, self._env = text, env

    def __str__(self) -> str:
        place = where(self._env)
        text = f"{self._text} ({place})" if place else self._text
        return f"{text}," if "," in self._text else text  # the second comma of `environment 'a:B', group 0,`
