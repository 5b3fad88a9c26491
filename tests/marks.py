"""Marks of single values: `@pytest.mark.parametrize("size", [1, slow(20), nightly(300)])`."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def slow(*values: Any, id: str | None = None) -> Any:
    """Leave a case out of the quick part (`-m "not slow"`)."""
    return pytest.param(*values, id=id, marks=pytest.mark.slow)


def nightly(*values: Any, id: str | None = None) -> Any:
    """Run a case with `-m nightly` only."""
    return pytest.param(*values, id=id, marks=pytest.mark.nightly)


def marked(values: Iterable[Any], *, slow: Collection[Any] = (), nightly: Collection[Any] = ()) -> list[Any]:
    """Return the values, those of the two collections with their marks."""
    tables = ((pytest.mark.slow, slow), (pytest.mark.nightly, nightly))
    return [pytest.param(value, marks=[mark for mark, table in tables if value in table]) for value in values]
