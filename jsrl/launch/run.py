"""`run(experiment)`: the one call that trains, from a script, a notebook or the command line."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import os
import secrets
import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jsrl.errors import ConfigError, RecordingError
from jsrl.experiment import Experiment
from jsrl.experiment.experiment import AUTO
from jsrl.launch.controller import Controller
from jsrl.launch.directing import check_players
from jsrl.launch.graph_file import FILE, Edit, stored_graph, write_graph
from jsrl.launch.hooks import Hooks, load_hooks
from jsrl.launch.hosts.needs import needs_of
from jsrl.launch.interrupts import remembered
from jsrl.launch.launcher import Hosts, Launcher
from jsrl.launch.links import begin_encryption, learner_hop
from jsrl.launch.local.launcher import Local
from jsrl.launch.opponents import check_initial, found_opponents
from jsrl.launch.plan import Plan, make_plan, settle
from jsrl.launch.progress import Progress
from jsrl.launch.recording_plan import begin_record, check_recording
from jsrl.launch.result import Result
from jsrl.launch.resume import (
    allowed_changes,
    claimed,
    common_updates,
    continue_exactly,
    init_points,
    may_be_exact,
    next_start_point,
    remove_incomplete_snapshots,
    start_point_of,
)
from jsrl.launch.serial import SerialRun
from jsrl.launch.session import Session
from jsrl.launch.user_values import load_values
from jsrl.metrics import tracing
from jsrl.metrics.display import Display, make_display
from jsrl.references.capture import Capture
from jsrl.references.reference import from_json, to_json
from jsrl.report.report import leave_report
from jsrl.runs.identity import ProcessIdentity
from jsrl.runs.runs import RunFolder
from jsrl.runs.state import RESULT, STOP, is_asked_to_stop
from jsrl.transport.ledger.hops import close_hops
from jsrl.transport.memory.segment import is_held, make_folder, try_lock
from jsrl.workers.jobs import StartPoint

ALIVE = "alive"
LOG = "controller.log"


def run(
    experiment: Experiment,
    *,
    runs_dir: str | os.PathLike[str] = "runs",
    name: str | None = None,
    overwrite: bool = False,
    resume: str | None = None,
    init_from: str | None = None,
    graph: Edit | None = None,
    launcher: Launcher | None = None,
    display: str = "auto",
    sinks: Sequence[Any] = (),
    hooks: Sequence[Any] = (),
    **changes: Any,
) -> Result:
    """Train, and return the outcome. Interrupting (Ctrl-C, or a notebook's stop) ends every process cleanly.

    Args:
      experiment: to run; fields may be changed by name: `run(experiment, placement="serial")`.
      runs_dir: folder of all runs. name: of this one (default: the time and the seed). overwrite: a run of that name.
      resume: a run to continue from its latest snapshot (limits and placement may differ, network and spaces not).
      init_from: RUN@TAG whose params to begin with; `RUN@TAG,b=RUN@b/TAG` also gives policy b its params.
      graph: another dataflow than the experiment's own: a function that gets its graph and returns the changed one, such
        a function's `module:name`, or a Graph. A resume continues with the graph of the run.
      launcher: starts the workers (jsrl.launch.launcher.Launcher), for this run alone; None: processes of this host.
      display: auto, live, plain, quiet or log-only.
      sinks: further places for metrics (jsrl.metrics.sinks.Sink); hooks: their methods are called during the run
        (jsrl.launch.hooks.METHODS). Each is an object, or a function that makes some, as `module:function`.

    Raises:
      ConfigError: something cannot work; the message says what would.
      EnvironmentFault, AgentFault: the user's own code raised, before the start or in serial mode.
      WorkerDied: a worker failed; the message says which and why.
    """
    experiment, resumed = found_opponents(dataclasses.replace(experiment, **changes), runs_dir), resume is not None
    launcher, hooks, sinks = fitting(launcher, experiment), load_hooks(hooks), load_values("sink", sinks, ("write",))
    begun, made = threading.Event(), [p for p in (Path(runs_dir, experiment.name), Path(runs_dir)) if not p.exists()]
    if resume is not None:
        folder = RunFolder.open(resume, runs_dir)
    else:
        folder = RunFolder.create(runs_dir, experiment.name, name, seed=experiment.seed, overwrite=overwrite)
    with (
        removed_unless(begun, folder, resumed, made),
        remembered(),
        claimed(folder),
        own_memory_folder(folder.path) as memory,
    ):
        starts, messages = find_start_points(folder if resumed else None, init_from, runs_dir)
        experiment, chosen = settle(placed_as_before(experiment, folder) if resumed else experiment)
        experiment, changed = stored_experiment(experiment, folder, resumed=resumed)
        screen = make_display(display, log=RunLog(folder.logs / LOG))
        with closed_on_error(screen, list(filter(None, (*messages, chosen, *changed)))):
            plan = ready_plan(experiment, folder, memory, starts, graph, launcher, resumed=resumed, show=screen.message)
        begun.set()
        session = make_session(plan, folder, screen, sinks, Hooks(hooks, RunLog(folder.logs / LOG)))
        try:
            result = train(plan, session, launcher)
        finally:
            summary = leave_report(folder, functools.partial(screen.message, level="warning"))
        return dataclasses.replace(result, summary=summary)


def train(plan: Plan, session: Session, launcher: Launcher) -> Result:
    """Run a plan to its end, in several processes or in this one."""
    session.begin()
    try:
        if plan.experiment.where.has_processes:
            return Controller(plan, session, launcher, (str(session.folder.path / "source"),)).run()
        return SerialRun(plan, session).run()
    finally:
        session.finish()


def find_start_points(
    resumed: RunFolder | None, init_from: str | None, runs_dir: str | os.PathLike[str]
) -> tuple[dict[str, StartPoint], list[str]]:
    """Return the start points of policies ("" is the first one), and messages.

    Raises:
      ConfigError: both options are given, or there is nothing to start from.
    """
    if resumed is not None and init_from is not None:
        raise ConfigError(
            "--resume continues with a run's own params; leave out --init-from, or start a new run with it."
        )
    if resumed is not None:
        remove_incomplete_snapshots(resumed)
        start, messages = next_start_point(resumed)
        return {"": start}, messages
    return {} if init_from is None else init_points(init_from, runs_dir), []


@contextlib.contextmanager
def closed_on_error(screen: Display, lines: Sequence[str]) -> Iterator[None]:
    """Show the lines; close the display if an error leaves the block."""
    for line in lines:
        screen.message(line)
    try:
        yield
    except BaseException:
        screen.close()
        raise


def check_address(experiment: Experiment) -> None:
    """Check that streams can listen on the address of the option `bind`.

    Raises:
      ConfigError: it is not an address of this host, or its first port is in use.
    """
    if not experiment.uses_zeromq:
        return
    host, port = experiment.bind_to
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(
                socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
            )  # as ZeroMQ does: a run that has just ended does not count
            probe.bind((host, port or 0))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"bind is {experiment.bind}, but another process listens on port {port}; give another first port, or "
                f"--bind {host} for free ones."
            ) from error
        raise ConfigError(
            f"bind is {experiment.bind}, on which this host cannot listen ({error.strerror}); give an address of this host "
            "(`hostname -I` lists them)."
        ) from error


@contextlib.contextmanager
def removed_unless(begun: threading.Event, folder: RunFolder, resumed: bool, made: Sequence[Path]) -> Iterator[None]:
    """Remove the folder of a new run that was refused before it began, and the folders `made` for it if they are empty."""
    try:
        yield
    except (ConfigError, RecordingError):
        if not resumed and not begun.is_set():
            shutil.rmtree(folder.path, ignore_errors=True)
            with contextlib.suppress(OSError):  # another run is there
                for parent in made:
                    parent.rmdir()
        raise


def fitting(launcher: Launcher | None, experiment: Experiment) -> Launcher:
    """Return the launcher (None: processes of this host), after checking the address that streams bind.

    Raises:
      ConfigError: the experiment starts no workers, or binds no address of this host.
    """
    if launcher is not None:
        check_starts_workers(experiment)
    check_address(experiment)
    return launcher or Local()


def check_starts_workers(experiment: Experiment) -> None:
    """Refuse an experiment without workers.

    Raises:
      ConfigError: it is serial.
    """
    if not experiment.where.has_processes:
        raise ConfigError("a serial run starts no workers, so it takes no launcher; choose another placement.")


def ready_plan(
    experiment: Experiment,
    folder: RunFolder,
    memory_folder: Path,
    starts: Mapping[str, StartPoint],
    graph: Edit | None,
    launcher: Launcher,
    *,
    resumed: bool,
    show: Callable[..., None],
) -> Plan:
    """Return the plan of a run whose folder, graph.json, recording and keys are ready, after all checks.

    Raises:
      ConfigError: something cannot work; the message says what would.
    """

    def place(alone: Plan) -> Hosts:
        return launcher.place(
            alone.graph, needs_of(alone), lambda: is_asked_to_stop(folder.path, ProcessIdentity.own())
        )

    kept = stored_graph(folder) if resumed and graph is None else None
    if kept is not None:
        show(f"it continues with its changed graph ({FILE}); --graph gives another one")
    try:
        plan = make_plan(experiment, str(folder.path), memory_folder, kept or graph, place)
    except ConfigError as error:
        if kept is None:
            raise
        raise ConfigError(
            f"{str(error).removesuffix('.')}. The run continues with the changed graph that it was started with ({FILE}); "
            "leave out the options that do not go with it, or give --graph to change the experiment's graph again."
        ) from error
    plan = plan.begun_at(begin_policies(plan, folder, starts, resumed=resumed, show=show))
    check_shared_memory(plan)
    if resumed:
        check_players(folder.path, [policy.folder for policy in plan.policies.values()])
        check_initial(plan.experiment, folder.path, [policy.folder for policy in plan.policies.values()])
    check_recording(plan.experiment, plan.schemas)
    if resumed:
        begin_run_folder(experiment, folder)  # not before: a refused resume leaves the run unchanged
    for line in write_graph(folder, plan.graph, changed=plan.changed, resumed=resumed):
        show(line)
    begin_record(plan.experiment, plan.schemas, source=folder.name)
    begin_encryption(plan.experiment, plan.keys, show=show)
    return plan


def begin_policies(
    plan: Plan, folder: RunFolder, starts: Mapping[str, StartPoint], *, resumed: bool, show: Callable[[str], None]
) -> dict[str, StartPoint]:
    """Return the start point of each policy of a plan, by name.

    Args:
      starts: of policies that take something from before; "" is the first policy.

    Raises:
      ConfigError: a policy of a resumed run cannot continue, or `starts` names a policy that the run does not have.
    """
    first, *others = plan.policies
    unknown = sorted(set(starts) - {"", *others})
    if unknown:
        names = ", ".join(others) or "none"
        raise ConfigError(
            f"--init-from names the policy {unknown[0]!r}; the first policy takes RUN@TAG without a name, and the run's other "
            f"policies are: {names}."
        )
    start_points: dict[str, StartPoint] = {}
    together = resumed and len(plan.experiment.policies) > 1 and may_be_exact(plan.experiment)
    updates = _one_update(plan, folder) if together else None
    if updates is not None and updates != starts[""].updates:
        starts = {**starts, "": next_start_point(folder, updates=updates)[0]}
    for policy in plan.policies.values():
        is_first, messages = policy.name == first, list[str]()
        start_point = starts.get("" if is_first else policy.name, StartPoint())
        if resumed and not is_first:
            start_point, messages = start_point_of(folder, policy, learner_hop(plan.graph, policy.learner), updates)
        if resumed and start_point.restore is not None and (updates is not None or not together):
            start_point, line = continue_exactly(policy.experiment, folder, start_point, policy.groups)
            messages += [line] if line else []
        if starts and not resumed and start_point.restore is None:
            option = "RUN@TAG" if is_first else f"{policy.name}=RUN@TAG"
            messages.append(
                f"{'the first policy has ' if is_first else ''}new params; with --init-from {option} it takes a run's"
            )
        for line in messages:
            show(line if is_first else f"policy {policy.name}: {line}")
        start_points[policy.name] = start_point
    return start_points


def _one_update(plan: Plan, folder: RunFolder) -> int | None:
    """Return the update at which all policies of shared environments continue exactly; None: there is none, in serial runs.

    Each learner writes its snapshots by its own clock.

    Raises:
      ConfigError: there is none, and `deterministic` is set.
    """
    updates = common_updates(folder, [policy.folder for policy in plan.policies.values()])
    if updates is None and plan.experiment.deterministic:
        raise ConfigError(
            f"{folder.name} cannot be continued exactly, as --deterministic promises: its policies "
            f"{', '.join(plan.policies)} have no snapshots of the same update. Continue it with new episodes: "
            "--snapshots.exact false."
        )
    return updates


def make_session(plan: Plan, folder: RunFolder, screen: Display, sinks: Sequence[Any], hooks: Hooks) -> Session:
    """Return the session of a plan, in which each policy continues from its learner's start point."""
    policies = [Progress(policy, plan.job(policy.learner).start_point.updates) for policy in plan.policies.values()]
    policy_of = {job.name: job.policy for job in plan.jobs}
    return Session(
        plan.experiment, folder, screen, sinks, kinds=plan.kinds, policies=policies, policy_of=policy_of, hooks=hooks
    )


def stored_experiment(experiment: Experiment, folder: RunFolder, *, resumed: bool) -> tuple[Experiment, list[str]]:
    """Return the experiment for workers, and the changes of a resume; a new run's is written to its folder.

    Definitions in a notebook or script are replaced by their source, written to the run folder and imported from there.

    Raises:
      ConfigError: something cannot be sent, or cannot change on resume.
    """
    source = folder.path / "source"
    config = to_json(experiment, Capture(source), "experiment")
    if source.is_dir() and str(source) not in sys.path:
        sys.path.insert(0, str(source))
    experiment = from_json(config)
    if resumed:
        return experiment, allowed_changes(from_json(folder.config), experiment)
    begin_run_folder(experiment, folder)
    return experiment, []


def placed_as_before(experiment: Experiment, folder: RunFolder) -> Experiment:
    """Return the experiment of a resume with its `auto` options as they were in the run."""
    before = folder.config["fields"]
    auto = [name for name in ("placement", "num_actors") if getattr(experiment, name) == AUTO]
    return dataclasses.replace(experiment, **{name: before[name] for name in auto})


def begin_run_folder(experiment: Experiment, folder: RunFolder) -> None:
    """Write the experiment to its run folder; remove result, requests and trace parts of an earlier start."""
    folder.write_config(to_json(experiment))
    for name in (RESULT, STOP):
        (folder.path / name).unlink(missing_ok=True)
    shutil.rmtree(folder.path / tracing.FOLDER, ignore_errors=True)


class RunLog:
    """The controller's log: every line for the display, shown or not, with the time."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, line: str) -> None:
        """Append a line; the run continues without its log if the disk fails."""
        try:
            with self._path.open("a") as file:
                file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}\n")
        except OSError:
            return


@contextlib.contextmanager
def own_memory_folder(run: Path | None = None) -> Iterator[Path]:
    """Yield a new folder for this run's shared memory and sockets, and remove it afterwards.

    Streams of a killed earlier process of the run are counted before their memory is removed.

    The lock of its file `alive` shows to others that this process is alive, even in another PID namespace.
    """
    if run is not None:
        close_hops(run)
    folder = make_folder(memory_root() / f"{os.getpid()}-{secrets.token_hex(4)}")
    fd = os.open(folder / ALIVE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try_lock(fd)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(fd)


def memory_root() -> Path:
    """Return the folder of this user's shared memory, after removing what dead controllers left there."""
    base = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else Path(os.environ.get("TMPDIR", "/tmp"))
    root = make_folder(base / f"jsrl-{os.getuid()}")
    for folder in root.iterdir():
        if not held(folder):
            shutil.rmtree(folder, ignore_errors=True)
    return root


def held(folder: Path) -> bool:
    """Return whether the process of a shared-memory folder is alive (or unknown from the folder's name)."""
    try:
        return is_held(folder / ALIVE)
    except OSError:
        pid = folder.name.partition("-")[0]
        return not pid.isdigit() or Path(f"/proc/{pid}").exists()


def check_shared_memory(plan: Plan) -> None:
    """Refuse a run whose streams do not fit into shared memory, before anything starts.

    Raises:
      ConfigError: with the bytes needed, the bytes free, and a transport that needs none.
    """
    if not plan.experiment.where.has_processes:
        return
    free = shutil.disk_usage(plan.memory_folder.parent).free
    needed = plan.shared_memory_bytes
    if needed > free:
        raise ConfigError(
            f"this run needs {needed / 2**20:.0f} MiB of shared memory, but {plan.memory_folder.parent} has "
            f"{free / 2**20:.0f} MiB free. Use --transport zeromq, fewer environments or a shorter rollout, or enlarge it "
            "(in a container: --shm-size)."
        )
