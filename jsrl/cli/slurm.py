"""`jsrl run NAME --launcher slurm`: print the script of a run for Slurm, or write it and submit both of its jobs.

Inside a job of several nodes it submits nothing: the run begins there (see jsrl.cluster.engines.ssh).
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from jsrl.cli.command_line import CommandLine, without
from jsrl.cli.seeds import OWN as OWN_OF_SEEDS
from jsrl.cli.seeds import check, group_path, new_group, parse_seeds, remove
from jsrl.cli.slurm_jobs import job_from_here, queued_seeds
from jsrl.cluster.engines.slurm import SlurmRun, SlurmSeeds, seeds_script, slurm_script
from jsrl.cluster.engines.ssh import other_nodes
from jsrl.control.result import missing
from jsrl.errors import ConfigError, counted
from jsrl.experiment.options import RunOptions
from jsrl.services.runs.groups import read_group
from jsrl.services.runs.runs import in_command, new_run_name

OWN = (
    "launcher",
    "print",
    "slurm",
    "num-hosts",
    "run-name",
    "runs-dir",
    "display",
    "overwrite",
    "init-from",
)  # set by the script itself
SUBMIT_S = 60.0


def is_allocated(asked: CommandLine) -> bool:
    """Return whether this is a Slurm job with other nodes, in which the run begins."""
    options = asked.run
    if options.print or options.seeds or not (nodes := other_nodes()):
        return False
    wrong = sorted(name for name in asked.given if name.partition(".")[0] in ("slurm", "num-hosts"))
    if wrong:
        raise ConfigError(
            f"--{wrong[0]} has no effect inside a Slurm job, whose {counted(len(nodes), 'other node')} the run uses; leave it "
            "out. To submit new jobs from here, unset SLURM_JOB_NODELIST."
        )
    return True


def submit(name: str | None, args: Sequence[str], asked: CommandLine) -> int:
    """Print the script, or submit it; return the exit status.

    Args:
      name: of the experiment. args: the rest of the command line. asked: the parsed command line.
    """
    options = asked.run
    refuse(name, options, ("resume", "listen", "hosts", "tune", "plan"))
    assert name is not None
    if options.seeds:
        return submit_seeds(name, args, asked)
    run_name = options.run_name or new_run_name(asked.experiment.seed)
    folder = Path(options.runs_dir).expanduser().absolute() / asked.experiment.name / run_name
    begin = ("--init-from", options.init_from) if options.init_from else ()
    run = SlurmRun(name, without(args, OWN), folder, options.num_hosts, sys.executable, options.slurm, begin)
    script = slurm_script(run)
    if options.print:
        print(script, end="")
        return 0
    need_sbatch()
    if job := job_from_here(run.job_name):
        raise ConfigError(
            f"job {job} of this run waits or runs, and a second one would take its hosts away; end it first (jsrl stop "
            f"{shlex.quote(str(folder))}), or choose another --run-name."
        )
    run.ended.unlink(missing_ok=True)
    path = Path(f"{run.file}.sh")
    print("\n".join(submitted(path, script, run.submissions(str(path)))))
    print(f"run folder: {folder}\noutput: {run.file}-JOB.out here")
    print(f"  jsrl status {shlex.quote(str(folder))}\n  jsrl stop {shlex.quote(str(folder))}")
    return 0


def refuse(name: str | None, options: RunOptions, names: Sequence[str]) -> None:
    """Refuse options that exclude --launcher slurm."""
    wrong = [arg for arg in names if getattr(options, arg)]
    if wrong or name is None:
        raise ConfigError(
            f"--{wrong[0] if wrong else 'resume'} cannot be combined with --launcher slurm; submitting the same run name "
            "again continues it."
        )


def need_sbatch() -> None:
    if shutil.which("sbatch") is None:
        raise ConfigError(
            "there is no sbatch here; call this on a login node of the cluster, or add --print for the script."
        )


def submitted(path: Path, script: str, commands: Sequence[Sequence[str]]) -> list[str]:
    """Write a script and submit it; return sbatch's answer to each command."""
    path.write_text(script)
    outputs: list[str] = []
    for command in commands:
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SUBMIT_S)
        if ended.returncode:
            if not outputs:
                path.unlink()
            raise ConfigError(f"{' '.join(command)} was refused: {ended.stderr.strip()}")
        outputs.append(ended.stdout.strip())
    return outputs


def submit_seeds(name: str, args: Sequence[str], asked: CommandLine) -> int:
    """Print the script of a group, or submit an array with a job for each seed that has no job and no intended end."""
    options = asked.run
    check(asked)
    earlier = read_group(group_path(asked)) if options.run_name else None
    queued = queued_seeds(earlier) if earlier is not None else set[int]()
    if earlier is not None and options.overwrite and queued:
        raise ConfigError(
            f"{counted(len(queued), 'job')} of the group wait or run; end them first: jsrl stop {in_command(earlier.path)}"
        )
    known = None if options.overwrite else earlier
    group = known or new_group(name, args, asked, lambda: ())
    if known is not None:
        given = without(args, (*OWN_OF_SEEDS, "init-from"))
        if (known.experiment, known.args) != (name, given):
            raise ConfigError(
                f"the group {known.name} has other options: {known.experiment} {' '.join(known.args)}. Give the same, "
                "--overwrite, or another --run-name."
            )
        group = replace(known, seeds=tuple(sorted({*known.seeds, *parse_seeds(options.seeds)})))
    left = [seed for seed in missing(group) if seed in parse_seeds(options.seeds) and seed not in queued]
    if not left:
        what = "wait, run or have ended" if queued else "have ended"
        print(f"all these seeds of {group.name} {what}; jsrl report {in_command(group.path)} compares them")
        return 0
    at_once = options.jobs if "jobs" in asked.given else 0
    seeds = SlurmSeeds(group, tuple(left), at_once, sys.executable, options.slurm)
    if options.print:
        print(seeds_script(seeds), end="")
        return 0
    need_sbatch()
    path = Path(f"{seeds.file}.sh")
    job = submitted(path, seeds_script(seeds), [seeds.submission(str(path))])[0].partition(";")[0]
    if known is None:
        remove(group)
    replace(group, jobs=(*group.jobs, job)).write()
    print(f"Submitted array job {job} of {counted(len(left), 'run')}; output: {seeds.file}-{job}_SEED.out here")
    name = shlex.quote(str(group.path))
    print(f"  jsrl status {name}\n  jsrl report {name}\n  jsrl stop {name}")
    return 0
