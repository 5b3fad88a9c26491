"""Measure an experiment on this machine: `jsrl bench ppo_cartpole`, from a source checkout."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from jsrl.cli.experiments import use_working_directory

SCRIPT = Path(__file__).resolve().parents[2] / "experiments" / "bench.py"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark of jsrl's checkout; return its exit status."""
    if not SCRIPT.exists():
        print(
            "ConfigError: jsrl bench needs a source checkout, whose folder `benchmarks` has the measuring scripts; clone the "
            "repository, install it with `pip install -e .`, and give the command again.",
            file=sys.stderr,
        )
        return 2
    use_working_directory()
    sys.argv[1:] = sys.argv[1:] if arguments is None else arguments
    return runpy.run_path(str(SCRIPT))["main"]()
