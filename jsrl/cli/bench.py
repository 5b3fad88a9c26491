"""Measure an experiment on this machine: `jsrl bench ppo_cartpole`."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from jsrl.cli.experiments import use_working_directory

SCRIPT = (Path(__file__).parents[1] / "scripts" / "experiments" / "bench.py").resolve()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return its exit status."""
    use_working_directory()
    sys.argv[1:] = sys.argv[1:] if arguments is None else arguments
    return runpy.run_path(str(SCRIPT))["main"]()
