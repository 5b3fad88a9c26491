from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.cluster.agents import hosts_without_files
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
    with hosts_without_files(2) as found:
        yield found
