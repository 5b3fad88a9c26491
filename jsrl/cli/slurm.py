"""`jsrl run NAME --launcher slurm`: print the script of a run for Slurm, or write it and submit both of its jobs."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from jsrl.cli.command_line import CommandLine, without
from jsrl.errors import ConfigError
from jsrl.launch.hosts.slurm import SlurmRun, slurm_script
from jsrl.runs.runs import new_run_name

OWN = (
    "launcher",
    "print",
    "slurm",
    "num-hosts",
    "run-name",
    "runs-dir",
    "display",
    "overwrite",
)  # said by the script itself
SUBMIT_S = 60.0


def submit(name: str | None, words: Sequence[str], asked: CommandLine) -> int:
    """Print the script, or submit it; return the exit status.

    Args:
      name: of the experiment. words: the rest of the command line. asked: what it means.

    Raises:
      ConfigError: there is no Slurm here, it refused a job, or an option does not go with it.
    """
    options = asked.run
    wrong = [word for word in ("resume", "seeds", "listen", "hosts", "tune", "plan") if getattr(options, word)]
    if wrong or name is None:
        raise ConfigError(
            f"--{wrong[0] if wrong else 'resume'} does not go with --launcher slurm; submitting the same run name again "
            "goes on with it, and each seed is a run of its own."
        )
    run_name = options.run_name or new_run_name(asked.experiment.seed)
    folder = Path(options.runs_dir).expanduser().absolute() / asked.experiment.name / run_name
    run = SlurmRun(name, without(words, OWN), folder, options.num_hosts, sys.executable, options.slurm)
    script = slurm_script(run)
    if options.print:
        print(script, end="")
        return 0
    if shutil.which("sbatch") is None:
        raise ConfigError(
            "there is no sbatch here; call this on a login node of the cluster, or add --print for the script."
        )
    run.ended.unlink(missing_ok=True)
    path = Path(f"{run.job_name}.sh")
    path.write_text(script)
    for command in run.submissions(str(path)):
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SUBMIT_S)
        if ended.returncode:
            raise ConfigError(f"{' '.join(command)} was refused: {ended.stderr.strip()}")
        print(ended.stdout.strip())
    print(f"run folder: {folder}\noutput: {run.job_name}-JOB.out here; scancel --name={run.job_name} ends the run")
    return 0
