"""Options of a run that are not part of its experiment."""

from __future__ import annotations

import typing
from dataclasses import dataclass

from jsrl.experiment.settings import ANY_HOSTS, JOINED
from jsrl.fields import (
    NonNegativeFinite,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFinite,
    PositiveInt,
    option,
    suggesting,
)

PLACED = (*ANY_HOSTS, "--hosts-file")


# fmt: off
@suggesting
@dataclass(frozen=True)
class WandbOptions:
    """How a run is sent to Weights & Biases (extra `wandb`)."""

    enabled: bool = option(False, "Send options, curves, videos and final scores to Weights & Biases; `--wandb` is "
        "short for it.")
    project: str = option("jsrl", "Project that the run appears in.")
    entity: str | None = option(None, "User or team whose project it is (default: your own).")
    group: str | None = option(None, "Group of runs that belong together, such as seeds.")
    mode: typing.Literal["online", "offline"] = option("online", "online, or offline: everything is kept in RUN/wandb "
        "for `wandb sync`, and nothing uses the network.")


@suggesting
@dataclass(frozen=True)
class SlurmOptions:
    """How a run is submitted with `--launcher slurm`."""

    partition: str | None = option(None, "Partition of the controller and the learners.")
    actor_partition: str | None = option(None, "Partition of the actor hosts, such as a preemptible one (default: the "
        "same).")
    gres: str | None = option(None, "Generic resources of the controller's job, such as gpu:4.")
    actor_gres: str | None = option(None, "Generic resources of each actor host, such as gpu:1 for inference servers "
        "there.")
    cpus: PositiveInt | None = option(None, "Cores of the controller's job.")
    actor_cpus: PositiveInt | None = option(None, "Cores of each actor host.")
    account: str | None = option(None, "Account of both jobs.")
    time: str | None = option(None, "Time limit of both jobs, as sbatch takes it.")
    container: str | None = option(None, "OCI container bundle in which both jobs run; it has the Python of the login "
        "node under the same path.")
    setup: str | None = option(None, "Shell commands before jsrl, such as `module load cuda`; JSRL_ADDRESS=IP there "
        "sets the address that other hosts use.")
    extra: tuple[str, ...] = option((), "Further options of sbatch for both jobs, without their dashes: exclusive "
        "mem=0 qos=high constraint=a100.")


@suggesting
@dataclass(frozen=True)
class RayOptions:
    """What a run asks of Ray with `--launcher ray`."""

    address: str | None = option(None, "HOST:PORT of Ray's head node, or local (default: RAY_ADDRESS, else the Ray of "
        "this host, else a local one).")
    cpus: NonNegativeInt | None = option(None, "CPUs of each host (default: those of its node).")
    gpus: NonNegativeInt | None = option(None, "GPUs of each host, such as for inference servers there (default: none).")
    memory_mb: NonNegativeInt | None = option(None, "Memory of each host, in MB (default: that of its node, not reserved).")
    place_s: NonNegativeFinite = option(60.0, "How long to wait for Ray to place the hosts, in seconds.")


@suggesting
@dataclass(frozen=True)
class RunOptions:
    """Options that are not part of the experiment."""

    runs_dir: str = option("runs", "Folder of all runs; a run goes to RUNS_DIR/EXPERIMENT/RUN.")
    run_name: str | None = option(None, "Name of this run (default: the time and the seed).")
    overwrite: bool = option(False, "Delete a run of the same name first.")
    resume: str | None = option(None, "Continue RUN from its latest snapshot; limits, placement, learning rates, "
        "coefficients and the environment may change, network and spaces may not.")
    init_from: str | None = option(None, "Start with the params of RUN@TAG (a fresh optimizer, counters at 0). In a "
        "run with several policies, RUN@TAG,NAME=RUN@TAG also gives the policy NAME params.")
    graph: str | None = option(None, "Change the dataflow: MODULE:FUNCTION that gets the experiment's graph and "
        "returns the one to run. A resume continues with the graph of the run; `own` is the experiment's own.")
    hooks: tuple[str, ...] = option((), "Call your own code while the run trains: MODULE:FUNCTION that makes a hook or "
        "a list of hooks (docs/hooks.md).")
    sinks: tuple[str, ...] = option((), "Further places for metrics: MODULE:FUNCTION that makes a sink or a list of "
        "sinks (docs/hooks.md).")
    wandb: WandbOptions = option(WandbOptions(), needs=("--wandb.enabled",))
    display: typing.Literal["auto", "live", "plain", "quiet", "log-only"] = option("auto",
        "What to display: auto, live, plain, quiet or log-only; auto: live on a terminal, else plain lines.")
    detach: bool = option(False, "Start the run in the background, and return; `jsrl status`, `jsrl logs` and `jsrl "
        "stop` reach it.")
    plan: bool = option(False, "Print the workers, streams and memory of the run, and do not run; `--plan graph.svg` "
        "also draws them.")
    plan_file: str | None = option(None, "With --plan FILE.svg: that file.", in_python=True)
    hosts_file: str | None = option(None, "show on which hosts of this JSON file the workers would run; the first entry is "
        "the host of `jsrl run`.", needs=("--plan",))
    listen: str | None = option(None, "Let other hosts run workers: IP address of this host, with a port or without, "
        "at which they join (`jsrl join`).")
    num_hosts: PositiveInt = option(1, "how many other hosts to wait for.",
        needs=("--listen", "--launcher ray", "--launcher slurm without --seeds"))
    min_hosts: PositiveInt | None = option(None, "start when this many have joined; others may come later (default: "
        "all).", needs=("--listen", "--hosts", "--launcher slurm without --seeds"))
    join_key: str | None = option(None, "the key file that hosts join with (default: RUNS_DIR/join-ADDRESS.key).",
        needs=JOINED)
    launcher: typing.Literal["local", "slurm", "ray"] = option("local", "slurm: submit a job for the controller and an "
        "array of num-hosts jobs for the actors, and return; inside a job of several nodes: run on these nodes. ray: "
        "Ray gives num-hosts nodes for the workers of a run that stays here.")
    print: bool = option(False, "print the script, and submit nothing.", needs=("--launcher slurm",))
    slurm: SlurmOptions = option(SlurmOptions(), needs=("--launcher slurm",))
    ray: RayOptions = option(RayOptions(), needs=("--launcher ray",))
    hosts: str | None = option(None, "Run workers on these hosts, such as a,b,me@10.0.0.7. They are reached by ssh, "
        "which must not ask for a password.")
    keep_here: tuple[str, ...] = option((), "kinds of workers to keep on this host, such as inference.", needs=PLACED)
    learner_on: str | None = option(None, "the name of the host that trains (default: this one, or if only others have "
        "GPUs, one of these).", needs=PLACED)
    host_python: str | None = option(None, "the Python interpreter there that has jsrl (default: the path of this one).",
        needs=("--hosts", "--launcher ray"))
    join_s: NonNegativeFloat = option(600.0, "how long to wait for them, in seconds.", needs=JOINED)
    seeds: str | None = option(None, "A run for each seed, such as 0-4 or 1,5,9, and one table; with --launcher slurm "
        "one array of jobs.")
    jobs: PositiveInt = option(1, "how many run at once. (Of environments in JAX: all, in one compiled program, "
        "unless you give a number.)", needs=("--seeds",))
    settings: typing.Literal["auto", "none"] = option("auto", "auto: settings that are known to learn, "
        "if there are any for the algorithm and the environment (`jsrl list --tuned`); none: the defaults.")
    tune: bool = option(False, "Find this machine's fastest settings first, and run with them.")
    tune_minutes: PositiveFinite = option(3.0, "time for the tuning, in minutes.", needs=("--tune",))


# fmt: on
