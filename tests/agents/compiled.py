"""One program for a whole function: called as it is, jax compiles a program for each of its operations and shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np


def compiled(function: Callable[..., Any], *static: str) -> Callable[..., Any]:
    """Return the function as one program with NumPy results. static: names of arguments that are no arrays."""
    program = jax.jit(function, static_argnames=static)
    return lambda *args, **options: jax.tree.map(np.asarray, program(*args, **options))
