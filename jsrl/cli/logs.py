"""Show the log of a run's controller, or of a worker: `jsrl logs RUN actor-0 --follow`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from jsrl.cli.main import run_parser, show_error
from jsrl.errors import ConfigError, JsrlError
from jsrl.services.runs.logs import CONTROLLER, LogReader, log_names, log_path
from jsrl.services.runs.runs import RunFolder, named
from jsrl.services.runs.state import read_state

LOOK_S, ASK_S = 0.2, 1.0  # intervals between checks of a log, and of the run


def main(arguments: Sequence[str] | None = None) -> int:
    parser = run_parser("logs", __doc__)
    parser.add_argument(
        "worker", nargs="?", default=CONTROLLER, help="such as learner or actor-0 (default: controller)"
    )
    parser.add_argument("--follow", action="store_true", help="keep printing until the run ends, or Ctrl-C")
    parser.add_argument(
        "--lines", type=int, default=50, metavar="N", help="number of last lines to print (default: 50)"
    )
    options = parser.parse_args(arguments)
    if options.lines < 0:
        parser.error(f"argument --lines: {options.lines}, expected 0 or more")
    try:
        folder = named(options.run, options.runs_dir)
        reader = LogReader(path_of(folder, options.worker), options.lines)
        if options.follow:
            follow(folder.path, reader, show)
            return 0
        lines = [*reader.new_lines(), *reader.rest()]
        show(lines if lines or not options.lines else [f"The log of {options.worker} is empty."])
    except JsrlError as error:
        return show_error(error)
    except KeyboardInterrupt:
        print(file=sys.stderr)
    except BrokenPipeError:  # `jsrl logs RUN | head`
        sys.stderr.close()
    return 0


def path_of(folder: RunFolder, worker: str) -> Path:
    """Return the path of a worker's log."""
    names = log_names(folder.path)
    if worker in names:
        return log_path(folder.path, worker)
    failed = [log_path(folder.path, name) for name in names if name.startswith(f"{worker}@")]  # on other hosts
    if failed:
        return max(failed, key=lambda path: path.stat().st_mtime)
    state = read_state(folder.path)
    hosts = {known.name: known.host for known in (state.status.workers if state.status else ()) if known.host}
    if worker in hosts:
        where = f"runs on host {hosts[worker]}, where its log is"
        if state.is_over:
            where = f"ran on host {hosts[worker]}, which keeps no logs after the run"
        raise ConfigError(f"{worker} {where}; logs here: {', '.join(names)}.")
    raise ConfigError(f"{folder.name} has no log of {worker!r}; it has: {', '.join(names) or 'none yet'}.")


def follow(folder: Path, reader: LogReader, show: Callable[[Sequence[str]], None]) -> None:
    """Show the lines of a log until its run has ended."""
    goes_on, asked_s = not read_state(folder).is_over, time.monotonic()
    while goes_on:
        show(reader.new_lines())
        time.sleep(LOOK_S)
        if time.monotonic() - asked_s >= ASK_S:
            goes_on, asked_s = not read_state(folder).is_over, time.monotonic()
    show([*reader.new_lines(), *reader.rest()])


def show(lines: Sequence[str]) -> None:
    """Print lines at once."""
    if lines:
        print("\n".join(lines), flush=True)
