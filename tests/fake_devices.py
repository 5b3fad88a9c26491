"""The environment of a process with several devices on one CPU, and how it treats warnings."""

from __future__ import annotations

import os

# Warnings are errors, except of a compiled program that another process writes now, or was killed while it wrote.
STRICT = ("-W", "error", "-W", "ignore:Error reading persistent compilation cache entry")


def fake_devices(number: int, *flags: str) -> dict[str, str]:
    """Return this process's environment with the given number of CPU devices and extra XLA flags."""
    given = [os.environ.get("XLA_FLAGS", ""), f"--xla_force_host_platform_device_count={number}", *flags]
    threads = str(max(8, 2 * number))  # fewer threads can deadlock in the all-reduce
    return {**os.environ, "JAX_PLATFORMS": "cpu", "PJRT_NPROC": threads, "XLA_FLAGS": " ".join(given)}
