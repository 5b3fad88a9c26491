"""Packages whose names are imported at their first use, so that `import jsrl` loads neither jax nor an agent.

A stub (`__init__.pyi`, `extend.pyi`) lists the names once: editors and type checkers read it, and so does `attach`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


def attach(module: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return the `__getattr__`, `__dir__` and `__all__` of a module whose stub beside `file` imports its names."""
    statements = ast.parse(Path(file).with_suffix(".pyi").read_text()).body
    homes = {
        alias.asname or alias.name: (statement.module, alias.name)
        for statement in statements
        if isinstance(statement, ast.ImportFrom) and statement.module
        for alias in statement.names
    }

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        home, original = homes[name]
        return getattr(import_module(home), original)

    return get, lambda: sorted(homes), sorted(homes)
