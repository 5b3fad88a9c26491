from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.launch.hosts.agents import namespaces
from tests.system.joined import HIDDEN
from tests.system.launched import Launched


class Launch(Protocol):
    def __call__(self, *arguments: str, **options: Any) -> Launched: ...


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """Start a run like a user; its remaining processes are killed after the test."""
    launched: list[Launched] = []

    def start(*arguments: str, **options: Any) -> Launched:
        launched.append(Launched(options.pop("runs_dir", tmp_path), *arguments, **options))
        return launched[-1]

    yield start
    for each in launched:
        each.kill()


@pytest.fixture
def hosts() -> Iterator[tuple[str, list[str]]]:
    """Yield the address of this host, and two network namespaces; files below HIDDEN are to be kept from them."""
    if any(Path(sys.prefix).is_relative_to(folder) for folder in HIDDEN):
        pytest.skip(f"the interpreter lies in {sys.prefix}, which these hosts cannot see; use an environment elsewhere")
    with namespaces(2) as (address, names):
        if not names:
            pytest.skip("network namespaces are not allowed here (they need root)")
        yield address, names
