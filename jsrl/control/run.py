"""`run(experiment)`: the one call that trains, from a script, a notebook or the command line."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.util
import json
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from jsrl.control.hooks import LOG, Hooks, RunLog, load_hooks, load_values
from jsrl.control.memory_folder import check_memory, check_shared_memory, own_memory_folder
from jsrl.control.progress import Progress
from jsrl.control.result import Result
from jsrl.control.resume import (
    allowed_changes,
    claimed,
)
from jsrl.control.run_record import RunRecord
from jsrl.control.start_points import (
    begin_policies,
    check_kept,
    check_snapshots,
    find_start_points,
)
from jsrl.envs.spaces import spec_notes
from jsrl.errors import ConfigError
from jsrl.experiment import Experiment
from jsrl.experiment.numbers import with_changes
from jsrl.experiment.policies import all_opponents
from jsrl.fields import AUTO, decoding, filled
from jsrl.graph.addresses import begin_encryption, check_address
from jsrl.graph.devices import check_devices, set_flags_here
from jsrl.graph.graph_file import (
    FILE,
    Edit,
    differences,
    graph_of,
    saved_experiment,
    stored_graph,
    write_graph,
)
from jsrl.graph.launcher import ALONE, Hosts, Launcher
from jsrl.graph.machine import accelerators, threads_obstacle
from jsrl.graph.plan import Plan, decided, make_plan
from jsrl.interrupts import Stopped, remembered
from jsrl.linux import FORKS
from jsrl.references.importing import CAPTURED, import_target, importable_target
from jsrl.references.reference import from_json, init_fields, to_json
from jsrl.services.metrics.display import Display, make_display
from jsrl.services.metrics.phases import TRACES
from jsrl.services.runs.process import ProcessIdentity
from jsrl.services.runs.runs import RunFolder, in_command
from jsrl.services.runs.state import RESULT, STOP, is_asked_to_stop, note_alive
from jsrl.workers.jobs import StartPoint

CONTINUES = (
    f"it continues with its changed graph ({FILE}): --placement and --num-actors do not change its workers; --graph gives "
    "another one"
)


# What runs a plan, what starts its workers, and what only some runs need; imported where a run has them.
PARTS = {
    "serial": "jsrl.control.serial:SerialRun",
    "processes": "jsrl.control.controller:Controller",
    "local": "jsrl.control.processes.launcher:Local",
    "needs": "jsrl.graph.needs:needs_of",
    "check_recordings": "jsrl.graph.recording_plan:check_recordings",
    "begin_record": "jsrl.graph.recording_plan:begin_record",
    "found_opponents": "jsrl.graph.opponents:found_opponents",
    "lz4_block": "jsrl.transport.ends.packing:lz4_block",
    "report": "jsrl.tools.report.report:leave_report",
}


def run(
    experiment: Experiment | None = None,
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
      experiment: to run (None: that of the run to resume). Its fields may be changed: `run(experiment, placement="serial")`.
      runs_dir: folder of all runs. name: of this one (default: the time and the seed). overwrite: a run of that name.
      resume: a run to continue from its latest snapshot (network and spaces must be the same).
      init_from: RUN@TAG whose params to begin with; `RUN@TAG,b=RUN@b/TAG` also gives policy b its params.
      graph: another dataflow than the experiment's own: a function that gets its graph and returns the changed one, such
        a function's `module:name`, or a Graph. A resume continues with the graph of the run; "own" is the experiment's.
      launcher: starts the workers (jsrl.extend.Launcher), for this run alone; None: processes of this host.
      display: auto, live, plain, quiet or log-only.
      sinks: further places for metrics (jsrl.extend.Sink), each an object, or a function that makes some, as
        `module:function`. hooks: likewise; their methods are called during the run (jsrl.control.hooks.METHODS).

    Raises:
      ConfigError: something cannot work; the message says what would. WorkerDied: a worker failed; it says which and why.
      EnvironmentFault, AgentFault: the user's own code raised, before the start or in serial mode.
    """
    options: dict[str, Any] = {"overwrite": overwrite, "resume": resume, "init_from": init_from, "graph": graph}
    options |= {"launcher": launcher, "display": display, "sinks": sinks, "hooks": hooks}
    with ready_run(experiment, runs_dir, name, changes, **options) as ready:
        record = ready.begin()
        try:
            result = train(ready.plan, record, ready.launcher)
        finally:
            summary = ready.report()
        return dataclasses.replace(result, summary=summary)


@dataclasses.dataclass(frozen=True)
class ReadyRun:
    """A run whose checks have passed, and whose folder is there. begin: returns its record; until then it can be undone."""

    plan: Plan
    folder: RunFolder
    screen: Display
    launcher: Launcher | None
    begin: Callable[[], RunRecord]

    def report(self) -> str:
        """Write the run's report, once it has ended; return its summary."""
        warn = functools.partial(self.screen.message, level="warning")
        try:
            return str(part_of_run("report")(self.folder, warn))
        except KeyboardInterrupt:  # a second Ctrl-C after the training: its result must still be shown
            warn(f"interrupted before the report was written; to write it: jsrl report {in_command(self.folder.path)}")
            return ""


@contextlib.contextmanager
def ready_run(
    given: object,
    runs_dir: str | os.PathLike[str],
    name: str | None = None,
    changes: Mapping[str, Any] = MappingProxyType({}),
    *,
    overwrite: bool = False,
    resume: str | None = None,
    init_from: str | None = None,
    graph: Edit | None = None,
    launcher: Launcher | None = None,
    display: str = "auto",
    sinks: Sequence[Any] = (),
    hooks: Sequence[Any] = (),
) -> Iterator[ReadyRun]:
    """Yield a run that may begin, and hold its folder meanwhile; see `run` for the arguments."""
    experiment, runs_dir, followed = _asked(given, resume, runs_dir, dict(changes))
    launcher, hooks, sinks = fitting(launcher, experiment), load_hooks(hooks), load_values("sink", sinks, ("write",))
    made, resumed = [p for p in (Path(runs_dir, experiment.name), Path(runs_dir)) if not p.exists()], resume is not None
    if resume is None:
        folder, starts = made_folder(experiment, runs_dir, name, overwrite, init_from)
    else:
        folder, starts = RunFolder.open(resume, runs_dir), {}
    with (
        undone_unless_begun(folder, resumed, made) as begin,
        remembered(),
        claimed(folder),
        own_memory_folder(folder.path) as memory,
        FORKS,
    ):
        found, messages = find_start_points(folder, init_from, runs_dir) if resumed else (starts, [])
        experiment, chosen = decided(placed_as_before(experiment, folder) if resumed else experiment)
        experiment, changed = stored_experiment(experiment, folder, resumed=resumed)
        screen = make_display(display, log=RunLog(folder.logs / LOG))
        with closed_on_error(screen, list(filter(None, (*messages, followed, chosen, *changed)))):
            plan = ready_plan(experiment, folder, memory, found, graph, launcher, resumed=resumed, show=screen.message)
            screen.message(f"{plan.title}, in {folder.path}\n{plan.sizes}")

        def begun() -> RunRecord:
            begin()
            return make_record(plan, folder, screen, sinks, Hooks(hooks, RunLog(folder.logs / LOG)))

        yield ReadyRun(plan, folder, screen, launcher, begun)


def _asked(
    value: object, resume: str | None, runs_dir: str | os.PathLike[str], changes: dict[str, Any]
) -> tuple[Experiment, Path, str]:
    """Return the experiment that `run` was asked for, the folder of all runs, and a line about numbers that follow."""
    folder = Path(runs_dir).expanduser().absolute()
    experiment, line = with_changes(_given(value, resume, folder), changes, follow=resume is None)
    experiment = with_paths(experiment)
    if all_opponents(experiment):
        experiment = part_of_run("found_opponents")(experiment, folder)
    return experiment, folder, line


def with_paths(experiment: Experiment) -> Experiment:
    """Return an experiment whose recordings have absolute paths: an environment may change the working directory."""
    record, recording = (
        None if path is None else str(Path(path).expanduser().absolute())
        for path in (experiment.record, experiment.recording)
    )
    return filled(experiment, record=record, recording=recording)


def _given(value: object, resume: str | None, runs_dir: str | os.PathLike[str]) -> Experiment:
    """Return the experiment that `run` was given, or else that of the run to resume."""
    if isinstance(value, Experiment):
        return value
    if value is None and resume is not None:
        return saved_experiment(RunFolder.open(resume, runs_dir))
    hint = "Experiment(env=EnvConfig(...), agent=PPOConfig(...))"
    if value is None:
        raise ConfigError(f"run was given neither an Experiment nor a run to resume; give {hint}, or resume=RUN.")
    if isinstance(value, str) and value.isidentifier():
        hint = f"`from jsrl.experiment.configs.{value} import config`, and run(config())"
    given = repr(value) if isinstance(value, str) else f"a {type(value).__name__}"
    raise ConfigError(f"run was given {given}; expected an Experiment: {hint}.")


def made_folder(
    experiment: Experiment, runs_dir: str | os.PathLike[str], name: str | None, overwrite: bool, init_from: str | None
) -> tuple[RunFolder, dict[str, StartPoint]]:
    """Return the folder of a new run, and the start points of its policies.

    These are found first: with the folder, the newest run of the experiment would be the new one.
    """
    starts, _ = find_start_points(None, init_from, runs_dir)
    if overwrite and name is not None and init_from is not None:
        check_kept(init_from, runs_dir, [Path(runs_dir, experiment.name, name)])
    folder = RunFolder.create(
        runs_dir, experiment.name, name, seed=experiment.seed, overwrite=overwrite, init_from=init_from
    )
    return folder, starts


def train(plan: Plan, record: RunRecord, launcher: Launcher | None) -> Result:
    """Run a plan to its end, in several processes or in this one."""
    record.begin()
    try:
        if plan.experiment.where.processes:
            return part_of_run("processes")(plan, record, launcher, (str(record.folder.source),)).run()
        return part_of_run("serial")(plan, record).run()
    finally:
        with contextlib.suppress(KeyboardInterrupt):  # it ends the wait for hooks and sinks; the run has ended already
            record.finish()


def part_of_run(name: str) -> Any:
    """Return a part of PARTS."""
    return import_target(PARTS[name])


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


@contextlib.contextmanager
def undone_unless_begun(folder: RunFolder, resumed: bool, made: Sequence[Path]) -> Iterator[Callable[[], None]]:
    """Yield a function to call once the run begins. Without it, remove a new run's folder, and those `made` for it if empty.

    It would be the newest run of its experiment, without anything to report or to resume, and its name would be taken.
    The run that it was to overwrite is put back.
    """
    begun = threading.Event()

    def begin() -> None:
        begun.set()
        folder.delete_replaced()

    try:
        yield begin
    except BaseException as error:  # also an error of the user's environment or agent, and Ctrl-C
        was_asked = isinstance(error, KeyboardInterrupt) and is_asked_to_stop(folder.path, ProcessIdentity.own())
        if not resumed and not begun.is_set():
            folder.undo()
            with contextlib.suppress(OSError):  # another run is there
                for parent in made:
                    parent.rmdir()
        if was_asked and not begun.is_set():
            raise Stopped from error
        raise


def fitting(launcher: Launcher | None, experiment: Experiment) -> Launcher | None:
    """Return the launcher (by default processes of this host, none in a serial run), after checking the address of streams.

    Raises:
      ConfigError: the experiment starts no workers, or binds no address of this host. MissingExtra: it compresses
        without lz4.
    """
    if launcher is not None:
        check_starts_workers(experiment)
    check_address(experiment)
    if experiment.compress:
        part_of_run("lz4_block")()
    if launcher is None and experiment.where.processes:
        return cast(Launcher, part_of_run("local")())
    return launcher


def check_starts_workers(experiment: Experiment) -> None:
    """Refuse an experiment without workers."""
    if not experiment.where.processes:
        raise ConfigError("a serial run starts no workers, so it takes no launcher; choose another placement.")


def ready_plan(
    experiment: Experiment,
    folder: RunFolder,
    memory_folder: Path,
    starts: Mapping[str, StartPoint],
    graph: Edit | None,
    launcher: Launcher | None,
    *,
    resumed: bool,
    show: Callable[..., None],
) -> Plan:
    """Return the plan of a run whose folder, graph.json, recording and keys are ready, after all checks."""
    set_flags_here(experiment)
    if not resumed and (wrong := threads_obstacle(experiment)):
        show(f"another start may have other bits: {wrong}")
    kept = stored_graph(folder) if resumed and graph is None else None
    if kept is not None:
        show(CONTINUES)
    before = graph_of(folder.path) if resumed else None
    try:
        plan = make_plan(experiment, str(folder.path), memory_folder, kept or graph, placing(launcher, folder))
    except ConfigError as error:
        if kept is None:
            raise
        raise ConfigError(
            f"{str(error).removesuffix('.')}. The run continues with the changed graph that it was started with ({FILE}); "
            "leave out the options that contradict it, or give --graph to change the experiment's graph again."
        ) from error
    for note in dict.fromkeys(note for schemas in plan.schemas_of.values() for note in spec_notes(schemas.env)):
        show(note)
    plan = plan.begun_at(begin_policies(plan, folder, starts, resumed=resumed, show=show))
    check_snapshots(plan)
    check_devices(plan, accelerators())
    check_memory(plan)
    check_shared_memory(plan)
    for line in check_resume(plan) if resumed else ():
        show(line)
    parts = [part.experiment for part in plan.policies.values()]
    if any(e.recording is not None or getattr(e.agent, "needs_recording", False) for e in parts):
        part_of_run("check_recordings")(plan, show)
    if resumed:
        begin_run_folder(experiment, folder)  # not before: a refused resume leaves the run unchanged
    write_graph(folder, plan.graph)
    listed = plan.changed or graph is not None  # else the changed options say it all
    for line in differences(before, plan.graph) if before is not None and listed else ():
        show(line)
    if plan.experiment.record is not None:
        part_of_run("begin_record")(plan.experiment, plan.schemas, folder.name, plan.experiment.seed, "learning")
    begin_encryption(plan.experiment, plan.keys, show=show)
    return plan


def check_resume(plan: Plan) -> Iterator[str]:
    """Let the kinds of a resumed run's workers check that they can continue; yield lines to show."""
    for job in plan.jobs:
        if check := plan.kinds[job.name].lifecycle.check_resume:
            yield from import_target(check)(job) or ()


def placing(launcher: Launcher | None, folder: RunFolder) -> Callable[[Plan], Hosts]:
    """Return what asks the launcher for the hosts of a plan's workers; the run shows meanwhile that it is alive."""

    def is_stopped() -> bool:
        note_alive(folder.path, getattr(launcher, "waits_for", ""))
        return is_asked_to_stop(folder.path, ProcessIdentity.own())

    def place(alone: Plan) -> Hosts:
        if launcher is None:
            return ALONE
        try:
            return launcher.place(alone.graph, part_of_run("needs")(alone), is_stopped)
        finally:
            note_alive(folder.path)

    return place


def make_record(plan: Plan, folder: RunFolder, screen: Display, sinks: Sequence[Any], hooks: Hooks) -> RunRecord:
    """Return the record of a plan, in which each policy continues from its learner's start point."""
    starts = [(policy, plan.job(policy.learner).start_point) for policy in plan.policies.values()]
    policies = [Progress(policy, start) for policy, start in starts]
    policy_of = {job.name: job.policy for job in plan.jobs}
    return RunRecord(
        plan.experiment, folder, screen, sinks, kinds=plan.kinds, policies=policies, policy_of=policy_of, hooks=hooks
    )


def stored_experiment(experiment: Experiment, folder: RunFolder, *, resumed: bool) -> tuple[Experiment, list[str]]:
    """Return the experiment for workers, and the changes of a resume; a new run's is written to its folder.

    Definitions in a notebook or script are replaced by their source, written to the run folder and imported from there.
    """
    config = sent(experiment, folder.source)
    copy_captured(config, folder.source)
    folder.use_source()
    config["fields"]["env"] = to_json(from_json(config["fields"]["env"]))  # its captured definitions have names now
    with decoding():
        experiment = from_json(config)
    if resumed:
        return experiment, allowed_changes(saved_experiment(folder), experiment)
    begin_run_folder(experiment, folder)
    return experiment, []


def sent(experiment: Any, source: Path) -> Any:
    """Return an experiment as JSON for other processes; definitions of a notebook or script are written into `source`.

    Those of the environment get a module of their own: actors import it, and the agent's definitions import jax.
    """
    if not isinstance(experiment, Experiment):
        return to_json(experiment, source, "experiment")
    fields = init_fields(experiment, "experiment")
    env = to_json(fields.pop("env"), source, "experiment.env")
    rest = to_json(fields, source, "experiment")
    return {"$type": importable_target(Experiment), "fields": {"env": env, **rest}}


def copy_captured(config: Any, source: Path) -> None:
    """Copy the modules of captured definitions that JSON names into a run's folder: another run's may be deleted."""
    for name in sorted(set(re.findall(rf"\b{CAPTURED}\w+", json.dumps(config)))):
        if not (source / f"{name}.py").exists() and (found := importlib.util.find_spec(name)) and found.origin:
            source.mkdir(exist_ok=True)
            shutil.copy(found.origin, source)


def placed_as_before(experiment: Experiment, folder: RunFolder) -> Experiment:
    """Return the experiment of a resume with its open options as they were in the run."""
    before = saved_experiment(folder)
    auto = [name for name in ("placement", "num_actors", "num_envs") if getattr(experiment, name) == AUTO]
    threads = before.learner.threads if experiment.learner.threads is None else experiment.learner.threads
    learner = dataclasses.replace(experiment.learner, threads=threads)
    return dataclasses.replace(experiment, learner=learner, **{name: getattr(before, name) for name in auto})


def begin_run_folder(experiment: Experiment, folder: RunFolder) -> None:
    """Write the experiment to its run folder; remove result, requests and trace parts of an earlier start."""
    folder.write_config(to_json(experiment))
    for name in (RESULT, STOP):
        (folder.path / name).unlink(missing_ok=True)
    shutil.rmtree(folder.path / TRACES, ignore_errors=True)
