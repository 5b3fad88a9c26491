"""Compare two runs: `jsrl compare RUN_A RUN_B` prints config differences, end metrics and curves."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from jsrl.cli.main import program
from jsrl.errors import JsrlError
from jsrl.report.comparison import compare_runs
from jsrl.runs.runs import load_runs


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare and print."""
    parser = argparse.ArgumentParser(prog=program("compare"), description=__doc__)
    parser.add_argument("runs", nargs=2, help="each a path, EXPERIMENT/NAME, NAME, or EXPERIMENT for its newest run")
    parser.add_argument("--runs-dir", default="runs")
    options = parser.parse_args(arguments)
    try:
        left, right = load_runs(options.runs, options.runs_dir)
        print(compare_runs(left, right))
    except JsrlError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    return 0
