"""What every test shares: programs are compiled quickly, because tests check results and not speed."""

import os
from importlib.metadata import version

import pytest

os.environ.setdefault("JSRL_PROFILES", "")  # what a developer has tuned is nothing to tests
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")  # before jax is imported; worker processes inherit it
if version("jaxlib").startswith("0.10."):  # which knows this flag; it halves what is left of the time to compile
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_use_fusion_emitters=false".strip()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave nightly tests out, unless `-m` speaks of them."""
    if "nightly" in config.getoption("-m"):
        return
    nightly = [item for item in items if item.get_closest_marker("nightly")]
    if nightly:
        config.hook.pytest_deselected(items=nightly)
        items[:] = [item for item in items if not item.get_closest_marker("nightly")]
