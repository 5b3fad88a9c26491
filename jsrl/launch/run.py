"""`run(experiment)`: the one call that trains, from a script, a notebook or the command line."""

from __future__ import annotations

import dataclasses
import os
import secrets
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from jsrl.errors import ConfigError
from jsrl.experiment import Experiment
from jsrl.launch.controller import Controller
from jsrl.launch.plan import Plan, make_plan
from jsrl.launch.result import Result
from jsrl.launch.resume import allowed_changes, open_resumed, params_source
from jsrl.launch.serial import SerialRun
from jsrl.launch.session import Session
from jsrl.reference import from_json, to_json
from jsrl.services.display import make_display
from jsrl.services.runs import RunFolder
from jsrl.source_capture import Capture
from jsrl.workers.jobs import Origin


def run(
    experiment: Experiment,
    *,
    runs_dir: str | os.PathLike[str] = "runs",
    name: str | None = None,
    overwrite: bool = False,
    resume: str | None = None,
    init_from: str | None = None,
    display: str = "auto",
    sinks: tuple[Any, ...] = (),
    **changes: Any,
) -> Result:
    """Train, and return the outcome. Interrupting (Ctrl-C, or a notebook's stop) ends every process in order.

    Args:
      experiment: what to run; fields may be changed by name: `run(experiment, placement="serial")`.
      runs_dir: folder of all runs. name: of this one (default: the time and the seed). overwrite: a run of that name.
      resume: a run to continue from its latest snapshot (limits and placement may differ, network and spaces not).
      init_from: RUN@TAG whose params to begin with. display: auto, live, plain, quiet or log-only.
      sinks: further places for metrics (see jsrl.services.metric_sinks.Sink).

    Raises:
      ConfigError: something cannot work; says what would.
      WorkerDied: a worker failed; says which and why.
    """
    experiment = dataclasses.replace(experiment, **changes)
    if resume is not None:
        folder, origin = open_resumed(resume, runs_dir)
    else:
        folder = RunFolder.create(runs_dir, experiment.name, name, seed=experiment.seed, overwrite=overwrite)
        origin = Origin()
    if init_from is not None:
        origin = Origin(restore=params_source(init_from, runs_dir), params_only=True)
    capture = Capture(folder.path / "source")
    config = to_json(experiment, capture, "experiment")
    if (folder.path / "source").is_dir():
        sys.path.insert(0, str(folder.path / "source"))
    experiment = from_json(config)  # what the workers will see: captured sources in place of the notebook's own
    changed = allowed_changes(from_json(folder.config), experiment) if resume is not None else []
    folder.write_config(to_json(experiment))
    (folder.path / "result.json").unlink(missing_ok=True)  # of an earlier life
    memory_folder = memory_root() / f"{os.getpid()}-{secrets.token_hex(4)}"
    screen = make_display(display, log=RunLog(folder.logs / "controller.log"))
    for line in changed:
        screen.message(line)
    try:
        plan = make_plan(experiment, str(folder.path), memory_folder, origin)
        check_shared_memory(plan)
    except BaseException:
        screen.close()
        raise
    session = Session(plan.experiment, folder, screen, sinks, start_updates=origin.updates)
    if plan.experiment.placement == "serial":
        return SerialRun(plan, session).run()
    return Controller(plan, session, (str(folder.path / "source"),)).run()


class RunLog:
    """The controller's log: every line that a display shows, or would have shown, with the time."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, line: str) -> None:
        """Append a line; the run goes on without its log when the disk does not want it."""
        try:
            with self._path.open("a") as file:
                file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}\n")
        except OSError:
            return


def memory_root() -> Path:
    """Return the folder of this user's shared memory, after sweeping what dead controllers left there."""
    base = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else Path(os.environ.get("TMPDIR", "/tmp"))
    root = base / f"jsrl-{os.getuid()}"
    root.mkdir(mode=0o700, exist_ok=True)
    for folder in root.iterdir():
        pid = folder.name.partition("-")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            shutil.rmtree(folder, ignore_errors=True)
    return root


def check_shared_memory(plan: Plan) -> None:
    """Refuse a run whose streams do not fit into shared memory, before anything starts.

    Raises:
      ConfigError: with the bytes needed, the bytes free, and the road that needs none.
    """
    if plan.experiment.placement == "serial":
        return
    free = shutil.disk_usage(plan.memory_folder.parent).free
    needed = plan.shared_memory_bytes
    if needed > free:
        raise ConfigError(
            f"this run needs {needed / 2**20:.0f} MiB of shared memory, but {plan.memory_folder.parent} has "
            f"{free / 2**20:.0f} MiB free. Use --road zeromq, fewer environments or a shorter rollout, or enlarge it "
            "(in a container: --shm-size)."
        )
