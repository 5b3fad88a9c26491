"""Machines decide without doing: they import nothing with which they could read a clock, a file or a socket."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "jsrl"
MACHINES = (
    "jsrl.cluster.agent", "jsrl.cluster.members", "jsrl.control.ending", "jsrl.control.supervision",
    "jsrl.workers.director.in_order",
    "jsrl.workers.director.tickets", "jsrl.workers.attached.agreement",
)  # fmt: skip
# Modules of values: they may import what makes them, but a machine only reads and makes the values.
VALUES = {"jsrl.directors.base", "jsrl.errors", "jsrl.experiment.settings", "jsrl.types"}
PURE = {
    "__future__", "bisect", "collections", "dataclasses", "enum", "functools", "heapq", "itertools", "math", "msgspec",
    "operator", "re", "typing",
}  # fmt: skip


def path_of(module: str) -> Path:
    path = PACKAGE.joinpath(*module.split(".")[1:])
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def imports_of(module: str) -> set[str]:
    """Return the modules that a module imports, also inside functions; those of jsrl are named in full."""
    found = set[str]()
    for node in ast.walk(ast.parse(path_of(module).read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.module and not node.level
            names = {f"{node.module}.{name.name}" for name in node.names}
            found |= {name if path_of(name).exists() else node.module for name in names}
    return found


@pytest.mark.parametrize("machine", MACHINES)
def test_machines_import_only_pure_modules(machine: str) -> None:
    seen, waiting = set[str](), [machine]
    while waiting:
        module = waiting.pop()
        for name in imports_of(module) - seen - VALUES:
            seen.add(name)
            if name.partition(".")[0] == "jsrl":
                waiting.append(name)
            else:
                assert name.partition(".")[0] in PURE, f"{module}, which {machine} imports, imports {name}"
