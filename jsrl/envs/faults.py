"""Messages about faulty environments: which one, the position in its episode, the values, and what to do.

Also episodes that seem to have no end: whatever waits for the end of an episode has a limit in steps.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Mapping
from typing import Any

import numpy as np

from jsrl.errors import PACKAGE, ConfigError, EnvironmentFault, JsrlError, own_traceback
from jsrl.references.importing import shown_target
from jsrl.types import Tree, named_leaves

ADVICE_SPACE = "Correct the environment's declared space or what it returns"
log = logging.getLogger("jsrl.envs")


def fault(
    name: str, what: str, advice: str, *, slot: int, seed: int | None = None, episode: int, step: int
) -> EnvironmentFault:
    """Return the error for environment `name`, slot `slot`, in its `episode`-th episode (from 0) after `step` steps."""
    where = place(slot, seed, episode, step)
    error = EnvironmentFault(f"environment {shown_target(name)!r} ({where}) {what}. {advice}")
    error.slot = slot
    return error


def place(slot: int, seed: int | None, episode: int, step: int) -> str:
    return f"slot {slot}, episode {episode}, step {step}" + (
        f", first reset with seed {seed}" if seed is not None else ""
    )


def describe(value: Any, limit: int = 80) -> str:
    """Return type, shape, dtype and a short print of a value."""
    text = " ".join(repr(value).split())
    text = text if len(text) <= limit else text[: limit - 3] + "..."
    if isinstance(value, np.ndarray | np.generic):
        return f"{value.dtype} {list(np.shape(value))} {text}"
    return f"{type(value).__name__} {text}"


def is_number(value: Any) -> bool:
    """Return whether a value is one number, as Python or as an array without axes."""
    return np.ndim(value) == 0 and np.asarray(value).dtype.kind in "fiub"


def float_leaves(tree: Tree) -> list[tuple[str, np.ndarray]]:
    """Return (name, leaf) of the float leaves, which may contain NaN."""
    return [(name or "observation", leaf) for name, leaf in named_leaves(tree) if leaf.dtype.kind == "f"]


def first_non_finite(leaf: np.ndarray) -> tuple[int, tuple[int, ...], float] | None:
    """Return (slot, index inside the observation, value) of the first entry of [B, ...] that is NaN or infinite."""
    bad = np.argwhere(~np.isfinite(leaf))
    if not len(bad):
        return None
    index = tuple(int(i) for i in bad[0])
    return index[0], index[1:], float(leaf[index])


def unfit(name: Any, kwargs: Mapping[str, Any], error: BaseException) -> ConfigError:
    """Return the error for kwargs that an environment does not take."""
    return ConfigError(f"environment {name!r} could not be made with kwargs {dict(kwargs)}: {error}. Check env.kwargs")


def in_making(name: Any, kwargs: Mapping[str, Any], error: BaseException) -> EnvironmentFault:
    """Return the error for an exception that a user's environment raised as it was made."""
    return EnvironmentFault(
        f"environment {shown_target(name)!r} raised {type(error).__name__} when it was made with kwargs "
        f"{dict(kwargs)}: {error}. Its own traceback shows where"
    )


def foreign(where: str, error: BaseException) -> EnvironmentFault:
    """Return the error for an exception that a user's environment raised and its adapter did not catch."""
    return EnvironmentFault(
        f"{where} raised {type(error).__name__}: {error}. Its own traceback shows where; check_env finds such errors in "
        "seconds, in your own process"
    )


LONG_STEPS = 30_000  # longer than any usual episode; Atari's have at most 27,000 env steps


def endless_text(name: str, max_steps: int) -> str:
    """Return why episodes of an environment were cut, and what helps."""
    return (
        f"an episode of {name} did not end within {max_steps:,} steps (evaluator.max_steps). If its episodes have no end, "
        "give them one with --env.max-episode-steps; if they are that long, raise --evaluator.max-steps"
    )


def refuse_endless(name: str, max_steps: int) -> None:
    """Raise ConfigError: the episodes that a command waits for do not end."""
    raise ConfigError(f"nothing was scored, because {endless_text(name, max_steps)}.")


def advice_raised(error: BaseException) -> str:
    """Return the user's line that led to an environment's error, and advice."""
    frames = traceback.extract_tb(own_traceback(error))
    line = next((frame for frame in reversed(frames) if not frame.filename.startswith(PACKAGE)), frames[-1])
    return f"It was raised in {line.filename}, line {line.lineno}; check_env finds most such errors in your own process"


def close_quietly(env: Any) -> None:
    """Close an environment; an exception is only logged, as the environment is not used any more."""
    try:
        env.close()
    except JsrlError:  # such as that of a deadline
        raise
    except (Exception, SystemExit):
        log.warning("an environment raised an error while it was closed", exc_info=True)
