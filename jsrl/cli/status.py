"""The state of runs: `jsrl status RUN`, or `jsrl status` for all runs of a folder; on any host that sees the run folder.

`jsrl status RUN --follow` shows a run as if it ran here: its display on a terminal, elsewhere its log.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from jsrl.cli import logs
from jsrl.cli.main import Parser, show_error
from jsrl.cli.slurm_jobs import state_of, waiting_job
from jsrl.control.result import INTENDED, is_intended, missing, play_lines, score_lines
from jsrl.control.status_writer import moment_of
from jsrl.errors import ConfigError, JsrlError, counted
from jsrl.services.metrics.display import LEVELS, Display, make_display
from jsrl.services.metrics.display_state import DisplayState, clock, percent, short
from jsrl.services.runs.files import json_ready
from jsrl.services.runs.groups import Group, find_group, read_group
from jsrl.services.runs.logs import CONTROLLER, LogReader, log_path, messages_in
from jsrl.services.runs.message_limits import printable
from jsrl.services.runs.runs import RunFolder, in_command, last_values, named, to_resume
from jsrl.services.runs.state import NO_SNAPSHOT, RunState, WorkerSummary, has_snapshot, is_whole, read_best, read_state
from jsrl.tools.report.page import RUNS, Table
from jsrl.tools.report.rows import TITLES, row_of

MOST_RUNS = 20  # in the table of a folder
MOST_PIDS = 16  # of workers of a kind; --json shows all
LOOK_S = 0.25
MESSAGES, LINES = 6, 20  # earlier messages or lines to show: on a terminal, and elsewhere
PROGRESS = re.compile(r" *[\d:]+s?  steps ")  # start of a line that is not a message, see display.plain_line


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the state of a run, or of all runs of a folder; return the exit status."""
    parser = Parser(prog="jsrl status", description=__doc__)
    parser.add_argument(
        "run",
        nargs="?",
        metavar="RUN|FOLDER",
        help="a path, EXPERIMENT/NAME, NAME, or EXPERIMENT for its newest run; or a folder of runs (default: RUNS_DIR)",
    )
    parser.add_runs_dir()
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument("--follow", action="store_true", help="show RUN until it ends; Ctrl-C ends the display only")
    options = parser.parse_args(arguments)
    if options.follow and options.run is None:
        parser.error("argument --follow: expected RUN before it")
    try:
        facts = shown(options.run, options.runs_dir, as_json=options.json, follows=options.follow)
        print(facts if options.json else printable(facts))  # a run's files may be a stranger's
    except JsrlError as error:
        return show_error(error)
    except PermissionError as error:
        print(f"{error.filename} belongs to another user, who may let you read it.", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        if not options.follow:
            raise
        print(f"\ndetached from {options.run}, which keeps running", file=sys.stderr)
    return 0


def shown(run: str | None, runs_dir: Path, *, as_json: bool = False, follows: bool = False) -> str:
    """Return the state of a run, of a group, or of all runs of a folder; `follows`: show it until it ends, first."""
    if follows and run is not None:
        run = str(follow(run, runs_dir))  # a newer run of the same experiment may have begun
    elif folders := below(Path(runs_dir if run is None else run)):
        return to_json([facts_of(path) for path in folders]) if as_json else table(folders)
    if run is None:
        raise ConfigError(f"there is no run in {Path(runs_dir).absolute()}; give a RUN, or --runs-dir DIR.")
    if (group := find_group(run, runs_dir)) is not None:
        return to_json(facts_of_group(group)) if as_json else group_text(group)
    try:
        folder = RunFolder.open(run, runs_dir)
    except ConfigError:
        if not (job := waiting_job(run)):
            raise
        facts = {"run": run, "state": "waiting", "slurm_job": job, "slurm_state": state_of(job)}
        waits = f"{run}: has not begun\n  Slurm job {job}: {facts['slurm_state']}\n  jsrl stop {run}"
        return to_json(facts) if as_json else waits
    return to_json(facts_of(folder.path)) if as_json else text(folder)


def below(folder: Path) -> list[Path]:
    """Return the runs in a folder, the newest first; none if it is a run itself."""
    if is_whole(folder):
        return []
    found = [path for pattern in ("*/experiment.json", "*/*/experiment.json") for path in folder.glob(pattern)]
    return [path.parent.absolute() for path in sorted(found, key=lambda path: -path.stat().st_mtime)]


def to_json(value: Any) -> str:
    return json.dumps(json_ready(value), indent=2)


# -- one run ----------------------------------------------------------------------------------------------------------


def facts_of(folder: Path) -> dict[str, Any]:
    """Return all facts of a run, JSON-like."""
    state = read_state(folder)
    seen, process, status, result = moment(folder, state), state.process, state.status, state.result
    last = {} if seen or result else last_values(folder / "metrics.jsonl")[0]
    counts = {name: result.get(name, getattr(seen, name, last.get(name))) for name in ("env_steps", "updates")}
    rate = status.env_steps_per_s if status and state.is_running else None
    return {
        "run": RunFolder(folder).name,
        "folder": folder,
        "env": RunFolder(folder).env_id,
        "state": state.name,
        "ended": result.get("ended"),
        "error": result.get("error"),
        "waits_for": state.waits_for or None,
        "host": process and process.host,
        "pid": process and process.pid,
        "slurm_job": (process and process.job) or None,
        "slurm_state": (process and process.job and state_of(process.job)) or None,
        "begun": time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(status.begun_s)) if status else None,
        "news_age_s": state.age_s,
        "total_env_steps": seen and seen.total_env_steps,
        **counts,
        "env_steps_per_s": rate,
        "to_go_s": seen.to_go_s(rate) if seen and state.is_running else None,
        "wall_s": result.get("wall_s"),
        "evaluation": result.get("evaluation") or evaluation_of(seen),
        "final": result.get("final") or None,
        "best": result.get("best") or read_best(folder) or None,
        "workers": [vars(worker) for worker in status.workers] if status and state.is_running else [],
        "resume": resume_command(folder, state),
    }


def evaluation_of(seen: DisplayState | None) -> dict[str, Any] | None:
    """Return the newest evaluation in a display."""
    if seen is None or not seen.evaluations:
        return None
    env_steps, value = seen.evaluations[-1]
    return {"env_steps": env_steps, seen.score_title.replace(" ", "_"): value}


def resume_command(folder: Path, state: RunState) -> str | None:
    """Return the command that continues a run that did not end as intended; None: not needed, or no snapshot."""
    group = read_group(folder)
    snapshot = has_snapshot(folder) if group is None else not group.jobs and missing(group)
    ended = state.name == "ended" and (state.result.get("unsaved") or not is_intended(str(state.result["ended"])))
    over = state.name in ("killed", "silent") or ended
    return to_resume(folder) if over and snapshot else None


def text(folder: RunFolder) -> str:
    state = read_state(folder.path)
    seen = moment(folder.path, state)
    lines = [
        f"{folder.name} on {folder.env_id}: {headline(state)}",
        *(f"  {line}" for line in (progress(state, seen), *scores(folder.path, state, seen))),
    ]
    if state.is_running and state.status is not None:
        lines.append(f"  workers: {workers_text(state.status.workers, state.process.host if state.process else '')}")
    if state.process is not None and state.process.job:
        lines.append(f"  Slurm job {state.process.job}: {state_of(state.process.job) or 'not known here'}")
    if command := resume_command(folder.path, state):
        lines.append(f"  to continue: {command}")
    elif state.name == "killed" or state.result.get("ended") == "failed":
        lines.append(f"  {NO_SNAPSHOT}")
    if state.is_running:
        run = in_command(folder.path)
        lines.append(f"  jsrl status {run} --follow | jsrl logs {run} | jsrl stop {run}")
    return "\n".join(line for line in lines if line.strip())


def headline(state: RunState) -> str:
    """Return what a run does, or how it ended, since when, and where."""
    who = f"process {state.process}" if state.process else "its process"
    begun_s = state.status.begun_s if state.status else None
    since = "" if begun_s is None else f" since {stamp(begun_s)} ({clock(time.time() - begun_s)})"
    silent = "" if state.age_s is None or state.age_s < 10 else f"; no news for {clock(state.age_s)}"
    if state.name == "ended":
        ended = str(state.result.get("ended"))
        error = str(state.result.get("error", "")).splitlines()[:1]
        return f"reached {ended}" if ended in INTENDED else ": ".join([ended, *error])
    if state.name == "killed":
        return f"killed: {who} has ended and left no result"
    if state.name == "silent":
        return f"no news for {clock(state.age_s)} from {who}; its host may be down or cut off"
    why = f" ({state.status.reason})" if state.status and state.status.reason else ""
    why = f" (waiting for {state.waits_for})" if state.waits_for else why
    return f"{state.name}{why}{since}, {who}{silent}"


def progress(state: RunState, seen: DisplayState | None) -> str:
    if "env_steps" in state.result:
        r = state.result
        return (
            f"{r.get('env_steps', 0):,} env steps, {counted(r.get('updates', 0), 'update')}, {clock(r.get('wall_s'))}"
        )
    if seen is None:
        return ""
    rate = state.status.env_steps_per_s if state.status and state.is_running else None
    of = f" of {short(seen.total_env_steps)} ({percent(seen.steps_share)})" if seen.total_env_steps else ""
    to_go_s = seen.to_go_s(rate) if state.is_running else None
    parts = [f"{short(seen.env_steps)}{of} env steps", counted(seen.updates, "update")]
    parts += [f"{short(rate)} steps/s"] if rate is not None else []
    parts += [f"{clock(to_go_s)} to go"] if to_go_s is not None else []
    calls = seen.long_calls if state.is_running else ()
    return ", ".join([*parts, *map(str, seen.others), *map(str, calls)])


def scores(folder: Path, state: RunState, seen: DisplayState | None) -> list[str]:
    """Return the last evaluation, the final one, and the best."""
    best = (state.result or {}).get("best") or read_best(folder)
    found = score_lines({**state.result, "best": best})
    if not state.result and seen is not None and seen.evaluations:
        at, newest = seen.evaluations[-1]
        found.insert(0, ("evaluation", f"{seen.score_title} {short(newest)} at {short(at)} env steps"))
    return [f"{title}: {text}" for title, text in found] + play_lines(best)


def workers_text(workers: Iterable[WorkerSummary], own_host: str) -> str:
    """Return the workers by kind: number, hosts, process ids, restarts, and workers that are not ready."""
    kinds: dict[str, list[WorkerSummary]] = {}
    for worker in workers:
        kinds.setdefault(worker.kind, []).append(worker)
    parts = []
    for kind, own in kinds.items():
        hosts = Counter(worker.host or own_host for worker in own)
        where = (
            f" ({', '.join(f'{host} {count}' for host, count in hosts.items())})" if set(hosts) != {own_host} else ""
        )
        restarts = sum(worker.restarts for worker in own)
        waiting = [
            f"{worker.name} {worker.stage} for {clock(worker.stage_s)}" for worker in own if worker.stage != "ready"
        ]
        pids = " ".join(str(worker.pid) for worker in own if worker.pid)
        counts = [
            f"{kind} {len(own)}{where}",
            *([f"pid {pids}"] if pids and len(own) <= MOST_PIDS else []),
            *([f"{restarts} restart{'s' if restarts > 1 else ''}"] if restarts else []),
        ]
        parts.append(", ".join([*counts, *waiting[:3], *([f"{len(waiting) - 3} more"] if len(waiting) > 3 else [])]))
    return "; ".join(parts) or "none yet"


def stamp(seconds: float) -> str:
    """Return a time, given in seconds since 1970, as text."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


# -- a run as if it ran here --------------------------------------------------------------------------------------------


def follow(run: str, runs_dir: Path) -> Path:
    """Show a run, or the running runs of a group one after another, until it ends; return its folder."""
    folder, followed = named(run, runs_dir), False
    group = read_group(folder.path)
    if group is None:
        if (state := read_state(folder.path)).is_over:
            raise ConfigError(
                f"{folder.name} has already ended: {headline(state)}. `jsrl logs {in_command(folder.path)}` shows its log."
            )
        follow_run(folder)
        return folder.path
    while True:
        running = next((path for path in group.runs if read_state(path).is_running), None)
        if running is not None:
            followed = True
            follow_run(RunFolder(running))
        elif read_state(group.path).is_running:  # between two runs
            time.sleep(LOOK_S)
        elif followed:
            return folder.path
        else:
            raise ConfigError(
                f"no run of the group {group.name} is running; `jsrl status {in_command(group.path)}` shows how they ended."
            )


def follow_run(folder: RunFolder) -> None:
    """Show a run until it ends: its live display on a terminal, elsewhere its log."""
    if not sys.stdout.isatty():
        logs.follow(folder.path, LogReader(log_path(folder.path, CONTROLLER), LINES), logs.show)
        return
    display = make_display("live", stream=sys.stdout)
    try:
        mirror(folder, display)
    finally:
        display.close()


def mirror(folder: RunFolder, display: Display) -> None:
    """Show the display of a run's controller, until the run ends."""
    reader, first, is_running, told_s = LogReader(log_path(folder.path, CONTROLLER), 100), True, True, -1.0
    while is_running:
        state = read_state(folder.path)
        is_running = not state.is_over
        if (seen := moment(folder.path, state)) is not None and seen.elapsed_s != told_s:
            told_s = seen.elapsed_s
            display.update(seen)
        messages = [text for text in messages_in(reader.new_lines()) if not PROGRESS.match(text)]
        for message in messages[-MESSAGES:] if first else messages:
            level, colon, rest = message.partition(": ")
            display.message(*((rest, level) if colon and level in LEVELS else (message, "info")))
        first = False
        time.sleep(LOOK_S if is_running else 0.0)


def moment(folder: Path, state: RunState) -> DisplayState | None:
    """Return the display at the last status of a run; None: there is none. The counts of a killed run are of its last line."""
    try:
        seen = None if state.status is None else moment_of(state.status)
    except ValueError:  # of another version
        return None
    if seen is None or state.is_running:
        return seen
    last = last_values(folder / "metrics.jsonl")[0]
    counts = (int(last.get("env_steps", seen.env_steps)), int(last.get("updates", seen.updates)))
    return replace(seen, env_steps=counts[0], updates=counts[1])


# -- a group of runs --------------------------------------------------------------------------------------------------


def facts_of_group(group: Group) -> dict[str, Any]:
    """Return all facts of a group of runs, JSON-like."""
    own = {"group": group.name, "folder": group.path, "seeds": group.seeds, "slurm_jobs": group.jobs}
    return own | {"state": read_state(group.path).name, "runs": [facts_of(path) for path in group.runs]}


def group_text(group: Group) -> str:
    """Return the state of a group of runs as text: its process, a line for each run, and how to continue it."""
    state, left = read_state(group.path), missing(group)
    lines = [f"{group.name}: {counted(len(group.seeds), 'seed')}, {len(group.seeds) - len(left)} ended as intended"]
    if state.is_running:
        lines[0] += f"; process {state.process} runs the others"
    lines += [f"  Slurm job {job}: {state_of(job) or 'not known here'}" for job in group.jobs]
    if group.runs:
        lines.append(table(group.runs))
    name = in_command(group.path)
    if state.is_running:
        lines.append(f"  jsrl status {name} --follow | jsrl logs {name} | jsrl stop {name}")
    elif left and not group.jobs:
        lines.append(f"  to continue: {to_resume(group.path)}")
    return "\n".join([*lines, f"  jsrl report {name} compares its runs"])


# -- a folder of runs -------------------------------------------------------------------------------------------------


def table(folders: Sequence[Path]) -> str:
    """Return a line for each run, running ones first; if there are many, the newest."""
    rows: list[tuple[bool, tuple[str, ...]]] = []
    for path in folders:
        try:
            row = row_of(path)
        except (JsrlError, OSError) as error:
            rows.append((False, (RunFolder(path).name, f"cannot be read ({type(error).__name__})", *[""] * 5)))
            continue
        rows.append((row.state == RUNS, (RunFolder(path).name, row.state, *row.cells)))
    rows.sort(key=lambda row: not row[0])
    return Table(TITLES, [cells for _, cells in rows]).text(MOST_RUNS)
