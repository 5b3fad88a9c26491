"""What every test shares: programs are compiled quickly, because tests check results and not speed."""

import os
from collections import Counter
from importlib.metadata import version

import pytest

os.environ.setdefault("JSRL_PROFILES", "")  # what a developer has tuned is nothing to tests
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")  # before jax is imported; worker processes inherit it
if version("jaxlib").startswith("0.10."):  # which knows this flag; it halves what is left of the time to compile
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_use_fusion_emitters=false".strip()


def pytest_configure(config: pytest.Config) -> None:
    """Have xdist hand out files in the order of the items."""
    config.option.loadscopereorder = False


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave nightly tests out, unless `-m` speaks of them; begin with the files that take longest.

    With `--dist loadfile` each file runs in one process: quick files come last, so that all processes end together.
    """
    if "nightly" not in config.getoption("-m"):
        nightly = [item for item in items if item.get_closest_marker("nightly")]
        if nightly:
            config.hook.pytest_deselected(items=nightly)
        items[:] = [item for item in items if not item.get_closest_marker("nightly")]
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -slow[item.path])
