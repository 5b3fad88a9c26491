"""Compare two runs: `jsrl compare RUN_A RUN_B` prints config differences, end metrics and curves."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from jsrl.cli.arguments import Parser
from jsrl.cli.main import program
from jsrl.errors import ConfigError, JsrlError
from jsrl.report.comparison import compare_runs
from jsrl.runs.runs import Run, load_runs


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare and print."""
    parser = Parser(prog=program("compare"), description=__doc__)
    parser.add_argument("RUN_A", help="a path, EXPERIMENT/NAME, NAME, or EXPERIMENT for its newest run")
    parser.add_argument("RUN_B", help="another one")
    parser.add_runs_dir()
    options = parser.parse_args(arguments)
    names = [options.RUN_A, options.RUN_B]
    try:
        runs = load_runs(names, options.runs_dir)
        if len(runs) != 2:
            number = "one run" if len(runs) == 1 else f"{len(runs)} runs"
            raise ConfigError(
                f"{' and '.join(names)} name {number}, {_names(runs)}; give two. `jsrl report` compares several."
            )
        left, right = runs
        print(compare_runs(left, right))
    except JsrlError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    return 0


def _names(runs: Sequence[Run]) -> str:
    return ", ".join(run.name for run in runs[:3]) + (", ..." if len(runs) > 3 else "")
