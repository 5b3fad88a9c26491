"""Shared by all tests: programs are compiled quickly, because tests check results and not speed."""

import gc
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, settings

# on a busy machine, making and checking examples takes long
settings.register_profile("any speed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any speed")
# The suite starts hundreds of processes: without __pycache__ each compiles jsrl's sources, a third of its start-up time.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
signal.signal(
    signal.SIGINT, signal.default_int_handler
)  # a shell's background job ignores it, and so would all children
# Tracing allocates many live objects: with Python's threshold of 700, garbage collection takes a third of a test.
gc.set_threshold(50_000)
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")  # before jax is imported; worker processes inherit it
if version("jaxlib").startswith("0.10."):  # this version knows these flags; they halve the remaining compile time
    flags = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:  # each program is compiled once for all test processes and sessions
    kept = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jsrl" / "tests"
    with suppress(OSError):
        kept.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(kept)
        os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"


@pytest.fixture(scope="module", autouse=True)
def forget_programs() -> Iterator[None]:
    """Drop jax's in-memory caches after a module that leaves the process large; the programs stay on disk."""
    yield
    if "jax" in sys.modules and psutil.Process().memory_info().rss > 1.5e9:
        sys.modules["jax"].clear_caches()


def pytest_configure(config: pytest.Config) -> None:
    """Have xdist hand out files in the order of the items."""
    config.option.loadscopereorder = False


def pytest_collection_finish() -> None:
    """Exclude what was collected from garbage collection: it lives to the end, and each full collection walks it."""
    gc.freeze()


def pytest_xdist_auto_num_workers() -> int:
    """Make `-n auto` start more test processes than there are cores, because some always wait."""
    return len(os.sched_getaffinity(0)) + 2


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip nightly tests unless `-m` names them, and run the slowest files first.

    With `--dist loadfile` each file runs in one process: quick files come last, so that all processes end together.
    """
    if "nightly" not in config.getoption("-m"):
        nightly = [item for item in items if item.get_closest_marker("nightly")]
        if nightly:
            config.hook.pytest_deselected(items=nightly)
        items[:] = [item for item in items if not item.get_closest_marker("nightly")]
    slow = Counter(item.path for item in items for name in ("slow", "nightly") if item.get_closest_marker(name))
    items.sort(key=lambda item: -slow[item.path])
