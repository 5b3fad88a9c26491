"""End a run cleanly, like Ctrl-C: `jsrl stop RUN`, on any host that sees the run folder.

`jsrl stop RUN --host HOST` instead removes a joined host from the run, which goes on. Its connections end within seconds, its
workers start again elsewhere, and no host of this name can join. The join key is replaced: hosts that are in the run stay,
others need the new file. Names are in the run folder, in revoked.json; remove one there to let the host join again, with the
new file.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from jsrl.cli.main import run_parser, show_error
from jsrl.cli.slurm_jobs import ask, state_of, waiting_job
from jsrl.cli.status import headline, progress, resume_command
from jsrl.errors import ConfigError, JsrlError
from jsrl.services.runs.groups import Group, read_group
from jsrl.services.runs.runs import RunFolder, in_command, named
from jsrl.services.runs.state import ask_to_stop, read_state, revoke_host

LOOK_S = 0.2
WAITING = ("PENDING", "REQUEUED", "REQUEUE_HOLD", "SUSPENDED")  # states of a job whose run will begin or continue


def main(arguments: Sequence[str] | None = None) -> int:
    """Stop a run and wait for its end; return 0: it has ended, 1: not yet, 2: there is nothing to stop."""
    parser = run_parser("stop", __doc__)
    parser.add_argument(
        "--wait",
        type=float,
        default=60.0,
        metavar="S",
        help="seconds to wait for the end of the run (default: 60; 0: do not wait)",
    )
    parser.add_argument("--host", help="only remove this joined host, named as in the line `host NAME (...) joined`")
    options = parser.parse_args(arguments)
    if not options.wait >= 0:  # also nan
        parser.error(f"argument --wait: {options.wait:g}, expected 0 or more")
    try:
        try:
            folder = named(options.run, options.runs_dir)
        except ConfigError:
            if not (job := waiting_job(options.run)):
                raise
            print(f"{options.run}: {cancel(job)}")
            return 0
        if options.host is not None:
            print(revoke(folder, options.host))
            return 0
        group = read_group(folder.path)
        folders = [folder] if group is None or not group.jobs else cancelled(group)
        for one in folders:
            print(f"{one.name}: {stop(one.path)}", flush=True)
        until = time.monotonic() + options.wait
        return max(wait(one, max(0.0, until - time.monotonic()), options.wait) for one in folders) if folders else 0
    except (JsrlError, OSError) as error:
        return show_error(error)
    except KeyboardInterrupt:
        print("\nno longer waiting; the run was asked to end", file=sys.stderr)
        return 1


def stop(folder: Path) -> str:
    """Ask the process of a run to end it; return what was done.

    A process of this host that handles signals gets one, after boot, id and start time were compared. Others (on another
    host, or a notebook whose run is in a thread) find a request in the run folder within seconds; if it is a Slurm job,
    Slurm also sends it a signal, or cancels it if it waits.

    Raises:
      ConfigError: the run is over, or another user's. OSError: the request cannot be written.
    """
    state = read_state(folder)
    process = state.process
    if process is not None and process.job and state_of(process.job).startswith(WAITING) and not state.is_running:
        return cancel(process.job)
    if state.is_over:
        raise ConfigError(f"{RunFolder(folder).name} has already ended: {headline(state)}.")
    if process is None:
        raise ConfigError(
            f"{folder} does not say which process runs it; the run is just starting, or is another user's."
        )
    if not ask_to_stop(folder, process):
        return f"process {process} was asked to end before"
    try:
        if process.interrupt():
            return f"asked process {process} to stop"
    except PermissionError:
        raise ConfigError(f"process {process} is another user's, who can stop it.") from None
    text = f"process {process} is asked to end by a request in the run folder"
    if process.job and ask("scancel", "--signal=USR1", "--batch", process.job) is not None:
        text += f", and Slurm job {process.job} by a signal"
    return text


def revoke(folder: RunFolder, host: str) -> str:
    """Ask the controller of a run to remove a joined host, with its keys; return what was done.

    Raises:
      ConfigError: the run is over. OSError: the request cannot be written.
    """
    state = read_state(folder.path)
    if state.is_over:
        raise ConfigError(f"{folder.name} has already ended: {headline(state)}.")
    revoke_host(folder.path, host)
    done = f"{folder.name}: host {host} is removed within seconds, and no host of this name can join"
    hosts = dict.fromkeys(worker.host for worker in (state.status.workers if state.status else ()) if worker.host)
    if host in hosts:
        return done
    return f"{done}\nno worker is on a host of this name now; hosts with workers: {', '.join(hosts) or 'none'}"


def cancel(job: str) -> str:
    """Cancel a waiting job, and the jobs of its actor hosts; return what was done."""
    name = ask("squeue", "-h", "-j", job, "-o", "%j")
    if ask("scancel", job) is None:
        raise ConfigError(f"Slurm did not cancel job {job}; look at squeue, or try scancel {job}.")
    if name:
        ask("scancel", "--me", f"--name={name}:actors")
    return f"Slurm job {job} was waiting and is cancelled"


def cancelled(group: Group) -> list[RunFolder]:
    """Cancel the waiting jobs of a group in Slurm's queue; return the running runs, which must be stopped."""
    waiting = [job for job in group.jobs if ask("squeue", "-h", "-j", job, "-t", "PENDING", "-o", "%i")]
    for job in waiting:
        ask("scancel", "--state=PENDING", job)
        print(f"{group.name}: the waiting jobs of array {job} are cancelled")
    found = [RunFolder(path) for path in group.runs if read_state(path).is_running]
    if not waiting and not found:
        raise ConfigError(
            f"no run of the group {group.name} is running; `jsrl status {in_command(group.path)}` shows how they ended."
        )
    return found


def wait(folder: RunFolder, limit_s: float, all_s: float) -> int:
    """Wait for the end of a run and print how it ended; return 0 if it has, or without a wait (`all_s` is 0)."""
    until = time.monotonic() + limit_s
    state = read_state(folder.path)
    while not state.is_over and time.monotonic() < until:
        time.sleep(LOOK_S)
        state = read_state(folder.path)
    if not state.is_over:
        if all_s:
            print(f"{folder.name} has not ended within {all_s:g} s: {headline(state)}", file=sys.stderr)
        return 1 if all_s else 0
    if not state.result:  # if it still waited for hosts, or was just starting, it removes its folder
        time.sleep(LOOK_S)
    if not folder.path.exists():
        print("it ended before it had begun, and left no folder")
        return 0
    print(", ".join(filter(None, (headline(state), progress(state, None)))))
    if command := resume_command(folder.path, state):
        print(f"to continue: {command}")
    return 0
