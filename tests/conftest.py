"""What every test shares: programs are compiled quickly, because tests check results and not speed."""

import os
from importlib.metadata import version

import pytest

os.environ.setdefault("JSRL_PROFILES", "")  # what a developer has tuned is nothing to tests
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")  # before jax is imported; worker processes inherit it
if version("jaxlib").startswith("0.10."):  # which knows this flag; it halves what is left of the time to compile
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_use_fusion_emitters=false".strip()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give slow tests, which hold real processes to limits of time and memory, one more try; the summary names them."""
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.flaky(reruns=1))
