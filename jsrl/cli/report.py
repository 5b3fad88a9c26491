"""Write a run's report again, even of a killed or running one; for several runs one page that compares them.

Of two runs it prints config differences and how each ended.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from jsrl.cli.main import Parser, show_error, user_path
from jsrl.errors import ConfigError, JsrlError
from jsrl.services.runs.groups import COMPARISON, find_group
from jsrl.services.runs.runs import Run, load_runs
from jsrl.tools.report.comparison import compare_runs
from jsrl.tools.report.comparison_page import write_comparison
from jsrl.tools.report.marl_eval import write_marl_eval
from jsrl.tools.report.report import write_report


def main(arguments: Sequence[str] | None = None) -> int:
    """Write report.txt and report.html of a run, or a page of several runs, and print the summary."""
    parser = Parser(prog="jsrl report", description=__doc__)
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="RUN",
        help="a path, EXPERIMENT/NAME, NAME, EXPERIMENT for its newest run, or a pattern such as 'ppo_pong/*'",
    )
    parser.add_runs_dir()
    parser.add_argument(
        "--to", type=user_path, help="file for the page that compares several runs (default: RUNS_DIR/comparison.html)"
    )
    parser.add_argument(
        "--marl-eval", type=user_path, metavar="FILE", help="write the runs in the format of marl-eval instead"
    )
    options = parser.parse_args(arguments)
    try:
        runs = load_runs(options.runs, options.runs_dir)
        if options.marl_eval is not None:
            check_folder(options.marl_eval, "--marl-eval")
            text = write_marl_eval(runs, options.marl_eval)
        else:
            text = _write(runs, options)
    except (JsrlError, OSError) as error:
        return show_error(error)
    print(text)  # outside of the try: `jsrl report RUN | head` is no error
    return 0


def _write(runs: Sequence[Run], options: argparse.Namespace) -> str:
    if options.to is not None and len(runs) == 1:
        raise ConfigError(
            f"--to is the file of the page of several runs; the report of one run is always {runs[0].folder.report}."
        )
    group = find_group(options.runs[0], options.runs_dir) if len(options.runs) == 1 else None
    if group is not None and not options.to:
        options.to = group.path / COMPARISON
    path = runs[0].folder.report if len(runs) == 1 else options.to or Path(options.runs_dir) / "comparison.html"
    check_folder(path, "--to")
    text = write_report(runs[0].folder) if len(runs) == 1 else write_comparison(runs, path)
    if len(runs) == len(options.runs) == 2:
        text = f"{compare_runs(runs)}\n\n{text}"
    return f"{text}\nreport: {path.absolute()}"


def check_folder(file: str | Path | None, option: str) -> None:
    """Refuse a file (None: there is none) in a folder that does not exist."""
    if file is not None and not (folder := Path(file).absolute().parent).is_dir():
        raise ConfigError(f"there is no folder {folder}; make it, or give another file with {option}.")
