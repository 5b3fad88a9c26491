"""The Slurm scripts of a run, of a group of runs with several seeds, and of a search.

A run has one job for the controller and learners, and an array of jobs whose hosts run actors. Both use the same script. The
hosts join with the run's key file, so that they may come, go and be requeued one by one. A group is one array of runs.
A run continues from its last snapshot if it has one. Pure functions of the options; nothing is submitted here.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from jsrl.cluster.join_key import ENDED
from jsrl.cluster.messages import REPLACED
from jsrl.errors import counted
from jsrl.experiment.options import SlurmOptions
from jsrl.services.runs.groups import Group
from jsrl.services.runs.runs import check_run_name

FOLDER = Path(__file__).parent  # of the scripts
HAS_ENDED = (
    "import pathlib, sys; from jsrl.control.result import is_finished; "
    "sys.exit(not is_finished(pathlib.Path(sys.argv[1])))"
)
NOTICE_S = 120  # notice before a job's time limit: enough for one update and one snapshot


@dataclass(frozen=True)
class SlurmRun:
    """A run for Slurm.

    Attributes:
      experiment: its name, as for `jsrl run`. args: its other options. folder: the run's, absolute.
      num_hosts: jobs of the array. python: interpreter on all nodes that has jsrl.
      begin: further options of a new run, which a resumed one must not have.
    """

    experiment: str
    args: tuple[str, ...]
    folder: Path
    num_hosts: int
    python: str
    options: SlurmOptions
    begin: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_run_name(self.name)

    @property
    def name(self) -> str:
        """Return the run's name: fixed when the jobs are submitted, so that a requeued job finds its run."""
        return self.folder.name

    @property
    def job_name(self) -> str:
        return f"jsrl:{self.folder.parent.name}:{self.name}"

    @property
    def file(self) -> str:
        """Return the name of its files in the working directory, without suffix."""
        return file_of(self.folder)

    @property
    def key(self) -> Path:
        """Return the file with which hosts join; experiments may have runs of the same name."""
        return self.folder.with_name(f"join-{self.name}.key")

    @property
    def ended(self) -> Path:
        """Return the file that marks the end of the run, so that its hosts leave."""
        return self.key.with_name(self.key.name + ENDED)

    def submissions(self, script: str) -> list[list[str]]:
        """Return the two commands that submit a script: the controller's job, then the array of actor hosts."""
        o = self.options
        controller = ["sbatch", f"--job-name={self.job_name}", *flag("partition", o.partition), *flag("gres", o.gres)]
        actors = ["sbatch", f"--job-name={self.job_name}:actors", f"--array=1-{self.num_hosts}"]
        actors += [*flag("partition", o.actor_partition or o.partition), *flag("gres", o.actor_gres)]
        return [
            [*controller, *flag("cpus-per-task", o.cpus), script],
            [*actors, *flag("cpus-per-task", o.actor_cpus), script],
        ]


def file_of(folder: Path) -> str:
    return f"jsrl-{folder.parent.name}-{folder.name}"


def flag(name: str, value: object) -> list[str]:
    return [] if value is None else [f"--{name}={value}"]


def array_submission(name: str, indices: str, options: SlurmOptions, script: str) -> list[str]:
    """Return the command that submits a script as an array of jobs of this name, with these indices."""
    o = options
    command = ["sbatch", "--parsable", f"--job-name={name}", f"--array={indices}", *flag("partition", o.partition)]
    return [*command, *flag("gres", o.gres), *flag("cpus-per-task", o.cpus), script]


@dataclass(frozen=True)
class SlurmSeeds:
    """A group of runs for Slurm: an array of jobs, whose index is the seed of its run.

    Attributes:
      group: of runs. seeds: of the submitted runs. at_once: how many run at once; 0: all. python: as in SlurmRun.
    """

    group: Group
    seeds: tuple[int, ...]
    at_once: int
    python: str
    options: SlurmOptions

    @property
    def file(self) -> str:
        return file_of(self.group.path)

    def submission(self, script: str) -> list[str]:
        most = f"%{self.at_once}" if self.at_once else ""
        return array_submission(self.file, f"{','.join(map(str, self.seeds))}{most}", self.options, script)


@dataclass(frozen=True)
class SlurmSearch:
    """A search for Slurm: an array of jobs, each of which runs one trial after another.

    Attributes:
      folder: the search's, absolute. jobs: how many. python: as in SlurmRun.
    """

    folder: Path
    jobs: int
    python: str
    options: SlurmOptions

    @property
    def file(self) -> str:
        return f"jsrl-search-{self.folder.parent.name}-{self.folder.name}"

    def submission(self, script: str) -> list[str]:
        return array_submission(self.file, f"1-{self.jobs}", self.options, script)


def directives(options: SlurmOptions, output: str) -> str:
    """Return the lines with Slurm's options of a script's jobs. output: file of their output."""
    o = options
    common = [
        *flag("account", o.account),
        *flag("time", o.time),
        *flag("container", o.container),
    ]
    args = [
        "--ntasks=1", "--requeue", "--open-mode=append", f"--signal=B:USR1@{NOTICE_S}", f"--output={output}", *common,
        *(f"--{arg.removeprefix('--')}" for arg in o.extra),
    ]  # fmt: skip
    return "\n".join(f"#SBATCH {arg}" for arg in args)


def seeds_script(seeds: SlurmSeeds) -> str:
    group = seeds.group
    args = {
        "--seed": '"$SLURM_ARRAY_TASK_ID"',
        "--run-name": f'{shlex.quote(group.path.name)}-seed"$SLURM_ARRAY_TASK_ID"',
    }
    own = " ".join(f"{name} {value}" for name, value in args.items())
    program = f"{shlex.quote(seeds.python)} -P -m jsrl.cli.main"
    values = {
        "title": f"{group.experiment}, runs {group.path.name}-seedN",
        "submit": f"#   {shlex.join(seeds.submission(f'{seeds.file}.sh'))}",
        "directives": directives(seeds.options, f"{seeds.file}-%A_%a.out"),
        "setup": seeds.options.setup or ":",
        "folder": f'{shlex.quote(str(group.path))}-seed"$SLURM_ARRAY_TASK_ID"',
        "new": f"{shlex.quote(group.experiment)} {own} {shlex.join([*group.begin, '--overwrite'])}",
        "ended": f"{shlex.quote(seeds.python)} -P -c {shlex.quote(HAS_ENDED)}",
        "run": f'{program} run "${{begin[@]}}" {shlex.join(group.args)} --runs-dir {shlex.quote(str(group.runs_dir))}',
        "report": f"{program} report {shlex.quote(str(group.path))}",
    }
    return filled("seeds", values)


def search_script(search: SlurmSearch) -> str:
    own = shlex.join([search.python, "-P", "-m", "jsrl.cli.main", "search", "--resume", str(search.folder)])
    values = {
        "title": f"search {search.folder}",
        "submit": f"#   {shlex.join(search.submission(f'{search.file}.sh'))}",
        "directives": directives(search.options, f"{search.file}-%A_%a.out"),
        "setup": search.options.setup or ":",
        "search": f'{own} --parallel 1 --part "$SLURM_ARRAY_TASK_ID"',
    }
    return filled("search", values)


def slurm_script(run: SlurmRun) -> str:
    o = run.options
    runs_dir = run.folder.parents[1]
    program = f"{shlex.quote(run.python)} -P -m jsrl.cli.main"
    submit = [
        shlex.join(["rm", "-f", str(run.ended)]),
        *(shlex.join(args) for args in run.submissions(f"{run.file}.sh")),
    ]
    values = {
        "title": f"{run.experiment}, run {run.name}, with {counted(run.num_hosts, 'actor host')}",
        "submit": "\n".join(f"#   {line}" for line in submit),
        "directives": directives(o, f"{run.file}-%j.out"),
        "setup": o.setup or ":",
        "key": shlex.quote(str(run.key)),
        "folder": shlex.quote(str(run.folder)),
        "join": f'{program} join "$key" --name "$(hostname)-$SLURM_JOB_ID"',
        "run": f'{program} run "${{begin[@]}}" {shlex.join(run.args)}',
        "new": shlex.join([run.experiment, *run.begin, "--run-name", run.name, "--overwrite"]),
        "runs_dir": shlex.quote(str(runs_dir)),
        "num_hosts": str(run.num_hosts),
        "replaced": str(REPLACED),
        "job_name": shlex.quote(run.job_name),
    }
    return filled("run", values)


def filled(script: str, values: Mapping[str, str]) -> str:
    """Return the text of slurm_SCRIPT.sh with these values; all jobs share slurm_job.sh."""
    text = FOLDER.joinpath(f"slurm_{script}.sh").read_text()
    for name, value in {"job": FOLDER.joinpath("slurm_job.sh").read_text().rstrip(), **values}.items():
        text = text.replace(f"@{name}@", value)
    return text
