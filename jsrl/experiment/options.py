"""Options: the names and help texts of config fields on the command line."""

from __future__ import annotations

import dataclasses
import difflib
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jsrl.errors import ConfigError
from jsrl.experiment.numbers import ALL, followed
from jsrl.experiment.settings import ANY_HOSTS, AUTO, JOINED
from jsrl.fields import PositiveInt, option, suggesting, type_hints
from jsrl.references.importing import import_target
from jsrl.references.reference import is_equal

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
    name: str | None = option(None, "Name of the run (default: EXPERIMENT/RUN).")
    mode: typing.Literal["online", "offline"] = option("online", "online, or offline: everything is kept in RUN/wandb "
        "for `wandb sync`, and nothing uses the network.")

    def __post_init__(self) -> None:
        given = [f.name for f in dataclasses.fields(self) if getattr(self, f.name) != f.default]
        if given and not self.enabled:
            raise ConfigError(f"wandb.{given[0]} is given, but Weights & Biases is off; add --wandb.")


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
    cpus: int | None = option(None, "Cores of the controller's job.")
    actor_cpus: int | None = option(None, "Cores of each actor host.")
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
    cpus: int | None = option(None, "CPUs of each host (default: those of its node).")
    gpus: int | None = option(None, "GPUs of each host, such as for inference servers there (default: none).")
    memory_mb: int | None = option(None, "Memory of each host, in MB (default: that of its node, not reserved).")
    place_s: float = option(60.0, "How long to wait for Ray to place the hosts, in seconds.")


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
    wandb: WandbOptions = WandbOptions()
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
    num_hosts: int = option(1, "how many other hosts to wait for.",
        needs=("--listen", "--launcher ray", "--launcher slurm without --seeds"))
    min_hosts: int | None = option(None, "start when this many have joined; others may come later (default: "
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
    join_s: float = option(600.0, "how long to wait for them, in seconds.", needs=JOINED)
    seeds: str | None = option(None, "A run for each seed, such as 0-4 or 1,5,9, and one table; with --launcher slurm "
        "one array of jobs.")
    jobs: PositiveInt = option(1, "how many run at once.", needs=("--seeds",))
    settings: typing.Literal["auto", "none"] = option("auto", "auto: where an algorithm is named with an environment "
        "(`ppo --env.id Pendulum-v1`), settings that are known to learn, if there are any (`jsrl list --tuned`); none: "
        "the defaults.")
    profile: str = option("auto", "Settings that a tuning found: auto (those of this machine and experiment, if any), "
        "none, or a file.")
    tune: bool = option(False, "Find this machine's fastest settings first, keep them as its profile, and run with "
        "them.")
    tune_minutes: float = option(3.0, "time for the tuning, in minutes.", needs=("--tune",))


# fmt: on

ELSEWHERE = "jsrl.field_names:elsewhere"  # imported for an unknown name
ABSENT = "(absent)"  # an option that one of two experiments does not have
WHETHER_REPLAY = typing.Literal["auto"] | None  # of --replay; --replay.NAME gives its settings


@dataclass(frozen=True)
class Option:
    """One option: its name without dashes, type, default, help text, whether the command line offers it, and what it needs.

    Attributes:
      needs: it has an effect only with one of these options, such as `--hosts`.
    """

    name: str
    kind: Any
    default: Any
    text: str
    offered: bool = True
    needs: tuple[str, ...] = ()


def offered_options(*values: Any) -> dict[str, Option]:
    """Return the options of config values that the command line offers, by name."""
    return {name: option for value in values for name, option in options_of(value).items() if option.offered}


def options_of(value: Any, prefix: str = "", offered: bool = True, needs: tuple[str, ...] = ()) -> dict[str, Option]:
    """Return every option of a config value (a dataclass instance), by name.

    `offered`: the command line has those that it can read, and that are not `in_python`.
    """
    options: dict[str, Option] = {}
    cls: type = type(value)
    texts, hints = field_texts(cls), type_hints(cls)
    for field in dataclasses.fields(value):
        name = f"{prefix}{field.name.replace('_', '-')}"
        needed = field.metadata.get("needs") or needs
        default, here = getattr(value, field.name), offered and not field.metadata.get("in_python")
        if hasattr(value, "buffer") and field.name == "replay":
            default = value.buffer
            options[name] = Option(name, WHETHER_REPLAY, None if default is None else AUTO, texts[field.name], here)
            if default is None:
                continue
        if (dataclasses.is_dataclass(default) and not isinstance(default, type) and hints[field.name] is not Any) or (
            field.name in ("agent", "director") and dataclasses.is_dataclass(default)
        ):
            options |= options_of(default, f"{name}.", here, needed)
        elif field.name == "policies" and isinstance(default, dict) and default:
            for policy, config in default.items():
                options |= options_of(config, f"{name}.{policy.replace('_', '-')}.", here)
        else:
            kind = hints[field.name]
            here = here and field.name not in ("agent", "director", "policies")  # empty: only Python can give one
            options[name] = Option(name, kind, default, texts.get(field.name, ""), here, needed)
    return options


def field_texts(cls: type) -> dict[str, str]:
    """Return the help text of each field; one that a subclass gives another default keeps its text."""
    bases = [base for base in reversed(cls.__mro__) if dataclasses.is_dataclass(base)]
    return {f.name: f.metadata["help"] for base in bases for f in dataclasses.fields(base) if "help" in f.metadata}


def nearest(name: str, options: dict[str, Option]) -> list[str]:
    """Return the names of at most two options that look like `name`, with or without the part before their last dot."""
    options = {known: option for known, option in options.items() if option.offered}
    if same := [known for known in options if known.rpartition(".")[2] == name]:
        return same[:2]
    tails = {known.rpartition(".")[2]: known for known in reversed(list(options))}
    near = difflib.get_close_matches(name, options, n=2, cutoff=0.6)
    near += [tails[t] for t in difflib.get_close_matches(name.rpartition(".")[2], tails, n=2, cutoff=0.6)]
    return list(dict.fromkeys(near))[:2]


def with_changes(experiment: Any, changes: dict[str, Any], *, follow: bool = True) -> tuple[Any, str]:
    """Return an experiment with the fields in `changes` changed, and a line about numbers that follow from them."""
    for name in changes.keys() - {f.name for f in dataclasses.fields(experiment)}:
        option, options = name.replace("_", "-"), options_of(experiment)
        usual = [entry.here for entry in import_target(ELSEWHERE)(option) if entry.here in options][:1] or nearest(
            option, options
        )
        hint = f"; did you mean {' or '.join(usual).replace('-', '_')}?" if usual else "."
        raise ConfigError(f"an experiment has no field {name!r}{hint}")
    return followed(experiment, changes, {name.replace("_", "-") for name in changes} if follow else ALL)


def differences(old: Any, new: Any) -> dict[str, tuple[Any, Any]]:
    """Return option name -> (old, new) for every option that differs."""
    before, after = options_of(old), options_of(new)
    names = list(dict.fromkeys([*before, *after]))
    missing = Option("", None, ABSENT, "")
    pairs = {n: (before.get(n, missing).default, after.get(n, missing).default) for n in names}
    return {name: pair for name, pair in pairs.items() if not is_equal(*pair)}


def either(names: Sequence[str]) -> str:
    """Return names as text: `a, b or c`."""
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last
