"""Compile one program for a whole function; called directly, jax compiles one program per operation and shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np


def compiled(function: Callable[..., Any], *static: str) -> Callable[..., Any]:
    """Return the function as one program with NumPy results. static: names of non-array arguments."""
    program = jax.jit(function, static_argnames=static)
    return lambda *args, **options: jax.tree.map(np.asarray, program(*args, **options))
