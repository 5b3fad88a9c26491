"""Make a run's report again: `jsrl report RUN`, also of a run that was killed or still goes on."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from jsrl.cli.main import program
from jsrl.errors import JsrlError
from jsrl.report.report import write_report
from jsrl.runs.runs import RunFolder


def main(arguments: Sequence[str] | None = None) -> int:
    """Write report.txt and report.html, and print the summary."""
    parser = argparse.ArgumentParser(prog=program("report"), description=__doc__)
    parser.add_argument("run", help="a path, EXPERIMENT/NAME, NAME, or EXPERIMENT for its newest run")
    parser.add_argument("--runs-dir", default="runs")
    options = parser.parse_args(arguments)
    try:
        folder = RunFolder.open(options.run, options.runs_dir)
        print(write_report(folder))
    except (JsrlError, OSError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    print(f"report: {folder.report}")
    return 0
