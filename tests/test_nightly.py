"""The table of nightly tests names tests that exist, and daily tests that cover them."""

from __future__ import annotations

import tomllib
from pathlib import Path

TESTS = Path(__file__).parent


def test_nightly_table_names_existing_tests() -> None:
    table = tomllib.loads((TESTS / "nightly.toml").read_text())
    for nightly, daily in table.items():
        assert daily not in table and nightly != daily, f"{daily} itself runs nightly"
        for name in (nightly, daily):
            path, _, test = name.partition("::")
            function = test.partition("[")[0]
            assert not test or f"def {function}(" in (TESTS / path).read_text(), f"there is no {name}"
