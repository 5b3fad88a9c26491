"""The tables of nightly and of slow tests name tests that exist, and daily or quick tests that cover them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

TESTS = Path(__file__).parent


@pytest.mark.parametrize("mark", ["nightly", "slow"])
def test_each_table_names_existing_tests(mark: str) -> None:
    table = tomllib.loads((TESTS / f"{mark}.toml").read_text())
    for marked, other in table.items():
        assert other not in table and marked != other, f"{other} is in the table itself"
        for name in (marked, other):
            path, _, test = name.partition("::")
            function = test.partition("[")[0]
            assert not test or f"def {function}(" in text_of(TESTS / path), f"there is no {name}"


def text_of(path: Path) -> str:
    """Return the text of a file of tests, and of the contracts whose tests it takes over."""
    text = path.read_text()
    taken = re.findall(r"^from tests\.contracts\.(\w+) import \*", text, re.MULTILINE)
    return "\n".join([text, *((TESTS / "contracts" / f"{name}.py").read_text() for name in taken)])
