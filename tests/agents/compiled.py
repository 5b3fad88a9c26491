"""Compile little: one program for a whole function, not one per operation and shape; equal agents once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np


def compiled(function: Callable[..., Any], *static: str) -> Callable[..., Any]:
    """Return the function as one program with NumPy results. static: names of non-array arguments."""
    program = jax.jit(function, static_argnames=static)
    return lambda *args, **options: jax.tree.map(np.asarray, program(*args, **options))


_made: dict[str, Any] = {}


def made(make: Callable[[Any, Any], Any], config: Any, spec: Any) -> Any:
    """Return `make(config, spec)`, an agent; equal ones are one object, whose functions jax traces and compiles once."""
    key = f"{config!r} {spec!r}"
    if key not in _made:
        _made[key] = make(config, spec)
    return _made[key]
