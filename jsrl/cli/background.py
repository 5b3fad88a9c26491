"""`jsrl run --detach`: a run in the background.

Until the run begins, the starting command shows its output; from then on the output goes to RUN/logs/output.log.
"""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from jsrl.cli.command_line import CommandLine, without
from jsrl.errors import ConfigError
from jsrl.services.runs.groups import read_group
from jsrl.services.runs.runs import RunFolder, check_run_name, in_command, named, new_run_name
from jsrl.services.runs.state import read_state
from jsrl.tools.background import start_process

OWN = ("detach", "run-name", "display")  # options that the new process sets itself


def detach(name: str | None, args: Sequence[str], asked: CommandLine) -> int:
    """Start a run in the background; return 0 once it has begun, or the exit status of a run that did not begin.

    Args:
      name: of the experiment; None: the options resume a run. args: the rest of the command line. asked: the parsed
        command line.
    """
    options = asked.run
    if options.plan or options.launcher == "slurm":
        option = "plan" if options.plan else "launcher slurm"
        raise ConfigError(f"--{option} starts no process here that could run in the background; leave out --detach.")
    folder = folder_of(asked)
    more = ["--display", "log-only", *([] if options.resume else ["--run-name", folder.name])]
    command = [
        sys.executable,
        "-P",
        "-m",
        "jsrl.cli.child",
        "0",
        *([name] if name else []),
        *without(args, OWN),
        *more,
    ]
    child, begun = start_process(command, functools.partial(has_begun, folder), stdin=subprocess.DEVNULL)
    if not begun:
        return child.returncode
    run = in_command(folder)
    print(f"{RunFolder(folder).name} runs in the background (process {child.pid}), in {folder}")
    print(f"  jsrl status {run}\n  jsrl status {run} --follow\n  jsrl stop {run}")
    child.returncode = 0  # so that Python does not warn of a running child
    return 0


def folder_of(asked: CommandLine) -> Path:
    """Return the folder of the new run; its name is chosen now."""
    options = asked.run
    if options.resume:
        return named(options.resume, options.runs_dir).path
    parent = Path(options.runs_dir).expanduser().absolute() / asked.experiment.name
    if options.run_name:
        check_run_name(options.run_name)
        return parent / options.run_name
    own = new_run_name(None if options.seeds else asked.experiment.seed)
    names = [own, *(f"{own}.{i}" for i in range(1, 1000))]
    return next(parent / name for name in names if not (parent / name).exists())


def has_begun(folder: Path, pid: int) -> bool:
    """Return whether a run, or one of a group's, has begun in this process."""
    state = read_state(folder)
    if state.process is None or state.process.pid != pid:
        return False
    group = read_group(folder)
    states = [state] if group is None else [read_state(path) for path in group.runs]
    return any(one.is_running and one.status is not None for one in states)
