"""States of Slurm jobs; unknown if Slurm's commands are missing or do not answer."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from jsrl.services.runs.groups import Group

ANSWER_S = 20.0


def ask(*args: str) -> str | None:
    """Return the output of a Slurm command; None: it is missing, does not answer, or refuses."""
    if shutil.which(args[0]) is None:
        return None
    try:
        ended = subprocess.run(args, capture_output=True, text=True, check=False, timeout=ANSWER_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return None if ended.returncode else ended.stdout.strip()


def state_of(job: str) -> str:
    """Return the state of a job as text: `RUNNING on n1`, `PENDING (Resources)`, `COMPLETED`; empty: unknown.

    With `-t all` squeue knows a job until a few minutes after its end; sacct, if the cluster keeps accounts, also later.
    """
    output = ask("squeue", "-h", "-t", "all", "-j", job, "-o", "%T|%N|%r")
    if output:
        state, nodes, reason = output.splitlines()[0].split("|", maxsplit=2)
        return f"{state} on {nodes}" if nodes else f"{state} ({reason})"
    output = ask("sacct", "-n", "-X", "-P", "-j", job, "-o", "State")
    return output.splitlines()[0] if output else ""


def waiting_job(run: str) -> str:
    """Return the job that waits to begin a run, which has no folder until then; empty: there is none.

    Args:
      run: a path, EXPERIMENT/NAME, or NAME.
    """
    own = Path(run).parts[-2:]
    for line in (ask("squeue", "--me", "-h", "-t", "PENDING", "-o", "%i|%j") or "").splitlines():
        job, _, name = line.partition("|")
        product, *names = name.split(":")  # see jsrl.cluster.engines.slurm.SlurmRun
        if product == "jsrl" and len(names) == 2 and tuple(names[-len(own) :]) == own:
            return job
    return ""


def job_from_here(name: str) -> str:
    """Return a job of this name that was submitted in the working directory, and waits or runs; empty: there is none."""
    lines = (ask("squeue", "--me", "-h", "-n", name, "-o", "%i|%Z") or "").splitlines()
    return next((line.partition("|")[0] for line in lines if line.partition("|")[2] == os.getcwd()), "")


def queued_seeds(group: Group) -> set[int]:
    """Return the seeds of a group whose jobs wait or run."""
    outputs = [ask("squeue", "-h", "-r", "-j", job, "-o", "%K") or "" for job in group.jobs]
    return {int(line) for output in outputs for line in output.splitlines() if line.isdigit()}
