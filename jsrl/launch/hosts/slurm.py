"""The Slurm script of a run: one job for the controller and learners, an array of jobs whose hosts run actors.

Both jobs are the same script. The hosts join through a folder of tokens, so that they may come, go and be requeued one by one;
the run goes on from its last snapshot where it has one. A pure function of what was asked for; nothing is submitted here.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from jsrl.errors import ConfigError
from jsrl.experiment.options import SlurmOptions
from jsrl.runs.runs import check_run_name

NOTICE_S = 120  # that a job is told before its time is over: one update and one snapshot


@dataclass(frozen=True)
class SlurmRun:
    """A run for Slurm.

    Attributes:
      experiment: its name, as `jsrl run` takes it. words: its other options. folder: the run's, absolute.
      num_hosts: jobs of the array. python: interpreter on all nodes that has jsrl.
    """

    experiment: str
    words: tuple[str, ...]
    folder: Path
    num_hosts: int
    python: str
    options: SlurmOptions

    def __post_init__(self) -> None:
        """Refuse what no script can be made of."""
        check_run_name(self.name)
        if self.num_hosts < 1:
            raise ConfigError(
                f"num_hosts is {self.num_hosts}; a run with --launcher slurm has at least one actor host."
            )

    @property
    def name(self) -> str:
        """Return the run's name: fixed when the jobs are submitted, so that a requeued job finds its run."""
        return self.folder.name

    @property
    def job_name(self) -> str:
        """Return the name of the first job; that of the array has `-actors` behind it."""
        return f"jsrl-{self.name}"

    @property
    def tokens(self) -> Path:
        """Return the folder in which hosts find the address and their tokens."""
        return self.folder.parents[1] / f"join-{self.name}"

    @property
    def ended(self) -> Path:
        """Return the file that says that the run has ended, so that its hosts leave."""
        return self.tokens.with_name(f"{self.tokens.name}.ended")

    def submissions(self, script: str) -> list[list[str]]:
        """Return the two commands that submit a script: the controller's job, then the array of actor hosts."""
        o = self.options
        controller = ["sbatch", f"--job-name={self.job_name}", *flag("partition", o.partition), *flag("gres", o.gres)]
        actors = ["sbatch", f"--job-name={self.job_name}-actors", f"--array=1-{self.num_hosts}"]
        actors += [*flag("partition", o.actor_partition or o.partition), *flag("gres", o.actor_gres)]
        return [
            [*controller, *flag("cpus-per-task", o.cpus), script],
            [*actors, *flag("cpus-per-task", o.actor_cpus), script],
        ]


def flag(name: str, value: object) -> list[str]:
    """Return `--name=value` as the words of a command; none where there is no value."""
    return [] if value is None else [f"--{name}={value}"]


def slurm_script(run: SlurmRun) -> str:
    """Return the script of both jobs."""
    o = run.options
    common = [
        *flag("account", o.account),
        *flag("qos", o.qos),
        *flag("time", o.time),
        *flag("constraint", o.constraint),
    ]
    directives = [
        "--ntasks=1", "--requeue", "--open-mode=append", f"--signal=B:USR1@{NOTICE_S}",
        f"--output={run.job_name}-%j.out", *common, *(f"--{word.removeprefix('--')}" for word in o.extra),
    ]  # fmt: skip
    runs_dir = run.folder.parents[1]
    tokens = shlex.quote(str(run.tokens))
    program = f"{shlex.quote(run.python)} -m jsrl.cli.main"
    submit = [
        shlex.join(["rm", "-f", str(run.ended)]),
        *(shlex.join(words) for words in run.submissions(f"{run.job_name}.sh")),
    ]
    values = {
        "title": f"{run.experiment}, run {run.name}, with {run.num_hosts} actor host(s)",
        "submit": "\n".join(f"#   {line}" for line in submit),
        "directives": "\n".join(f"#SBATCH {line}" for line in directives),
        "setup": o.setup or ":",
        "tokens": tokens,
        "folder": shlex.quote(str(run.folder)),
        "join": f'{program} join --from "$tokens" --name "$(hostname)-$SLURM_JOB_ID" --patience-s 600',
        "run": f'{program} run "${{begin[@]}}" {shlex.join(run.words)}',
        "new": shlex.join([run.experiment, "--run-name", run.name, "--overwrite"]),
        "runs_dir": shlex.quote(str(runs_dir)),
        "num_hosts": str(run.num_hosts),
    }
    text = SCRIPT
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    return text


SCRIPT = """#!/bin/bash
# @title@. Submit it twice from one folder; the second time for the actor hosts:
@submit@
# Submit both again to go on after a time limit: the run continues from its last snapshot.
@directives@

tokens=@tokens@  # where hosts find the address and their tokens
folder=@folder@
@setup@
child= stopped=
trap 'stopped=1' TERM  # which Slurm sends to all processes of a job; a second one would end jsrl without a snapshot
trap 'stopped=1; [ -n "$child" ] && kill -TERM "$child"' USR1  # before the time limit, to this shell alone

if [ -n "$SLURM_ARRAY_TASK_ID" ]; then  # an actor host: it stays until the run has ended, also while that is requeued
  while [ -z "$stopped" ] && [ ! -e "$tokens.ended" ]; do
    @join@ & child=$!
    wait "$child"; [ -z "$stopped" ] || wait "$child"
    [ -n "$stopped" ] || [ -e "$tokens.ended" ] || sleep 5
  done
  exit 0
fi

rm -rf "$tokens" "$tokens.ended"
if [ -e "$folder/snapshots/state/tags/latest.json" ]; then begin=(--resume "$folder"); else begin=(@new@); fi
address=${JSRL_ADDRESS:-$(hostname -I | cut -d' ' -f1)}  # of this host, as the others reach it
@run@ --runs-dir @runs_dir@ --display plain \\
  --listen "$address" --num-hosts @num_hosts@ --tokens-dir "$tokens" --join-s 86400 & child=$!
wait "$child"; status=$?
[ -z "$stopped" ] || { wait "$child"; status=$?; }  # the signal ended the first one
[ -n "$stopped" ] && [ ! -e "$folder/stop.json" ] || touch "$tokens.ended"  # `jsrl stop` ends it for good
exit "$status"
"""
