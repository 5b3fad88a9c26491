"""Measure an experiment on this machine: `jsrl bench ppo_cartpole`, or accelerators: `jsrl bench --gpu`. From a checkout."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = {False: ROOT / "experiments" / "bench.py", True: ROOT / "benchmarks" / "gpu.py"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark of the checkout that jsrl lies in; return its exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    script = SCRIPTS["--gpu" in words]
    if not script.exists():
        print(
            "ConfigError: jsrl bench needs a source checkout, whose folder `benchmarks` has what it measures with; clone the "
            "repository, install it with `pip install -e .`, and give the command again.",
            file=sys.stderr,
        )
        return 2
    sys.argv = [str(script), *(word for word in words if word != "--gpu")]
    return runpy.run_path(str(script))["main"]()
