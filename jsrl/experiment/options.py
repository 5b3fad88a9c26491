"""Options: the names and help texts of config fields on the command line."""

from __future__ import annotations

import ast
import dataclasses
import difflib
import functools
import inspect
import itertools
import re
import shutil
import textwrap
import types
import typing
from dataclasses import dataclass
from typing import Any

from jsrl.errors import ConfigError
from jsrl.experiment.settings import AUTO
from jsrl.field_names import ELSEWHERE
from jsrl.references.reference import is_equal


@dataclass(frozen=True)
class WandbOptions:
    """How a run is sent to Weights & Biases (extra `wandb`)."""

    enabled: bool = False
    """Send options, curves, videos and final scores to Weights & Biases; `--wandb` is short for it."""
    project: str = "jsrl"
    """Project that the run appears in."""
    entity: str | None = None
    """User or team whose project it is (default: your own)."""
    group: str | None = None
    """Group of runs that belong together, such as seeds."""
    name: str | None = None
    """Name of the run (default: EXPERIMENT/RUN)."""
    mode: typing.Literal["online", "offline"] = "online"
    """online, or offline: everything is kept in RUN/wandb for `wandb sync`, and nothing uses the network."""

    def __post_init__(self) -> None:
        given = [f.name for f in dataclasses.fields(self) if getattr(self, f.name) != f.default]
        if given and not self.enabled:
            raise ConfigError(f"wandb.{given[0]} is given, but Weights & Biases is off; add --wandb.")


@dataclass(frozen=True)
class SlurmOptions:
    """How a run is submitted with `--launcher slurm`."""

    partition: str | None = None
    """Partition of the controller and the learners."""
    actor_partition: str | None = None
    """Partition of the actor hosts, such as a preemptible one (default: the same)."""
    gres: str | None = None
    """Generic resources of the controller's job, such as gpu:4."""
    actor_gres: str | None = None
    """Generic resources of each actor host, such as gpu:1 for inference servers there."""
    cpus: int | None = None
    """Cores of the controller's job."""
    actor_cpus: int | None = None
    """Cores of each actor host."""
    account: str | None = None
    """Account of both jobs."""
    qos: str | None = None
    """Quality of service of both jobs."""
    time: str | None = None
    """Time limit of both jobs, as sbatch takes it."""
    constraint: str | None = None
    """Features of the nodes of both jobs."""
    container: str | None = None
    """OCI container bundle in which both jobs run; it has the Python of the login node under the same path."""
    setup: str | None = None
    """Shell commands before jsrl, such as `module load cuda`; JSRL_ADDRESS=IP there sets the address that other hosts use."""
    extra: tuple[str, ...] = ()
    """Further options of sbatch for both jobs, without their dashes: exclusive mem=0."""


@dataclass(frozen=True)
class RayOptions:
    """What a run asks of Ray with `--launcher ray`."""

    address: str | None = None
    """HOST:PORT of Ray's head node, or local (default: RAY_ADDRESS, else the Ray of this host, else a local one)."""
    cpus: int | None = None
    """CPUs of each host (default: those of its node)."""
    gpus: int | None = None
    """GPUs of each host, such as for inference servers there (default: none)."""
    memory_mb: int | None = None
    """Memory of each host, in MB (default: that of its node, not reserved)."""
    place_s: float = 60.0
    """How long to wait for Ray to place the hosts, in seconds."""


@dataclass(frozen=True)
class RunOptions:
    """Options that are not part of the experiment."""

    runs_dir: str = "runs"
    """Folder of all runs; a run goes to RUNS_DIR/EXPERIMENT/RUN."""
    run_name: str | None = None
    """Name of this run (default: the time and the seed)."""
    overwrite: bool = False
    """Delete a run of the same name first."""
    resume: str | None = None
    """Continue RUN from its latest snapshot; limits, placement, learning rates, coefficients and the environment may
    change, network and spaces may not."""
    init_from: str | None = None
    """Start with the params of RUN@TAG (a fresh optimizer, counters at 0). In a run with several
    policies, RUN@TAG,NAME=RUN@TAG also gives the policy NAME params."""
    graph: str | None = None
    """Change the dataflow: MODULE:FUNCTION that gets the experiment's graph and returns the one to run.
    A resume continues with the graph of the run; `own` is the experiment's own."""
    hooks: tuple[str, ...] = ()
    """Call your own code while the run trains: MODULE:FUNCTION that makes a hook or a list of hooks (docs/hooks.md)."""
    sinks: tuple[str, ...] = ()
    """Further places for metrics: MODULE:FUNCTION that makes a sink or a list of sinks (docs/hooks.md)."""
    wandb: WandbOptions = WandbOptions()
    display: typing.Literal["auto", "live", "plain", "quiet", "log-only"] = "auto"
    """What to display: auto, live, plain, quiet or log-only; auto: live on a terminal, else plain lines."""
    detach: bool = False
    """Start the run in the background, and return; `jsrl status`, `jsrl logs` and `jsrl stop` reach it."""
    plan: bool = False
    """Print the workers, streams and memory of the run, and do not run."""
    plan_file: str | None = None
    """Draw the plan to this SVG file as well; `--plan graph.svg` is short for it."""
    hosts_file: str | None = None
    """With --plan: show on which hosts of this JSON file the workers would run; the first entry is the host of `jsrl run`."""
    listen: str | None = None
    """Let other hosts run workers: IP address of this host, with a port or without, at which they join (`jsrl join`)."""
    num_hosts: int = 1
    """With --listen, --launcher slurm or --launcher ray: how many other hosts to wait for."""
    min_hosts: int | None = None
    """With --listen, --hosts or --launcher slurm: start when this many have joined; others may come later (default: all)."""
    join_key: str | None = None
    """With --listen, --hosts or --launcher ray: the key file that hosts join with (default: RUNS_DIR/join-ADDRESS.key)."""
    launcher: typing.Literal["local", "slurm", "ray"] = "local"
    """slurm: submit a job for the controller and an array of num-hosts jobs for the actors, and return; inside a job of
    several nodes: run on these nodes.
    ray: Ray gives num-hosts nodes for the workers of a run that stays here."""
    print: bool = False
    """With --launcher slurm: print the script, and submit nothing."""
    slurm: SlurmOptions = SlurmOptions()
    ray: RayOptions = RayOptions()
    hosts: str | None = None
    """Run workers on these hosts, such as a,b,me@10.0.0.7. They are reached by ssh, which must not ask for a password."""
    keep_here: tuple[str, ...] = ()
    """With other hosts: kinds of workers to keep on this host, such as inference."""
    learner_on: str | None = None
    """With other hosts: the name of the host that trains (default: this one, or if only others have GPUs, one of these)."""
    host_python: str | None = None
    """With --hosts or --launcher ray: the Python interpreter there that has jsrl (default: the path of this one)."""
    join_s: float = 600.0
    """With --listen, --hosts or --launcher ray: how long to wait for them, in seconds."""
    seeds: str | None = None
    """A run for each seed, such as 0-4 or 1,5,9, and one table; with --launcher slurm one array of jobs."""
    jobs: int = 1
    """With --seeds: how many run at once."""
    profile: str = "auto"
    """Settings that a tuning found: auto (those of this machine and experiment, if any), none, or a file."""
    profiles_dir: str | None = None
    """Folder of profiles (default: JSRL_PROFILES, else the user's cache)."""
    tune: bool = False
    """Find this machine's fastest settings first, keep them as its profile, and run with them."""
    tune_minutes: float = 3.0
    """With --tune: time for the tuning, in minutes."""
    tune_batch: bool = False
    """With --tune: tune the number of environments and the batch as well, which changes what is learned."""


ABSENT = "(absent)"  # an option that one of two experiments does not have
WHETHER_REPLAY = typing.Literal["auto"] | None  # of --replay; --replay.NAME gives its settings
INDENT = " " * 8  # of an option's text
COMMON = (
    ("how long", ("total-env-steps", "max-minutes", "stop-at-return", "seed", "seeds")),
    ("what", ("env.id", "env.kwargs.KEY", "num-envs", "rollout-length", "batch-envs", "max-policy-lag")),
    (
        "algorithm",
        ("agent.learning-rate", "agent.gamma", "agent.num-epochs", "agent.num-minibatches", "agent.entropy-coef",
         "agent.network.torso", "agent.network.hidden", "agent.network.core"),
    ),
    ("where", ("placement", "num-actors", "num-inference-servers", "transport", "learner.num-devices", "deterministic",
               "restart", "tune")),
    ("the run", ("runs-dir", "run-name", "overwrite", "resume", "init-from", "display", "detach", "plan")),
)  # fmt: skip


@dataclass(frozen=True)
class Option:
    """One option: its name without dashes, type, default, and help text."""

    name: str
    kind: Any
    default: Any
    text: str


def options_of(value: Any, prefix: str = "") -> dict[str, Option]:
    """Return every option of a config value (a dataclass instance), by name."""
    options: dict[str, Option] = {}
    cls: type = type(value)
    texts, hints = field_texts(cls), type_hints(cls)
    for field in dataclasses.fields(value):
        name = f"{prefix}{field.name.replace('_', '-')}"
        default = getattr(value, field.name)
        if hasattr(value, "buffer") and field.name == "replay":
            default = value.buffer
            options[name] = Option(name, WHETHER_REPLAY, None if default is None else AUTO, texts[field.name])
            if default is None:
                continue
        if (dataclasses.is_dataclass(default) and not isinstance(default, type) and hints[field.name] is not Any) or (
            field.name in ("agent", "director") and dataclasses.is_dataclass(default)
        ):
            options |= options_of(default, f"{name}.")
        elif field.name == "policies" and isinstance(default, dict) and default:
            for policy, config in default.items():
                options |= options_of(config, f"{name}.{policy.replace('_', '-')}.")
        else:
            options[name] = Option(name, hints[field.name], default, texts.get(field.name, ""))
    return options


@functools.lru_cache(256)
def type_hints(cls: type, include_extras: bool = False) -> dict[str, Any]:
    """Return the types of a class's fields; evaluates each annotation as code, which takes milliseconds."""
    return typing.get_type_hints(cls, include_extras=include_extras)


def field_texts(cls: type) -> dict[str, str]:
    """Return the help text of each field: the string below it, or its entry under `Attributes:`."""
    texts: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if dataclasses.is_dataclass(base):
            texts |= _attribute_entries(inspect.getdoc(base) or "") | _strings_below(base)
    return texts


@functools.cache
def _strings_below(cls: type) -> dict[str, str]:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    except (OSError, TypeError, SyntaxError):
        return {}
    texts: dict[str, str] = {}
    body = getattr(tree, "body", [])
    for statement, following in itertools.pairwise(body):
        is_field = isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
        if is_field and isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            texts[statement.target.id] = " ".join(str(following.value.value).split())
    return texts


def _attribute_entries(doc: str) -> dict[str, str]:
    """Read `name, other: text` and `name: text. other: text.` entries of an Attributes section."""
    _, found, section = doc.partition("Attributes:")
    if not found:
        return {}
    flat = " ".join(section.split())
    pattern = re.compile(r"(?:(?<=^)|(?<=[.)] ))((?:[a-z_]+(?:, )?)+): ")
    pieces = pattern.split(flat)
    texts: dict[str, str] = {}
    for names, text in zip(pieces[1::2], pieces[2::2], strict=False):
        for name in names.split(", "):
            texts[name] = text.strip()
    return texts


def find_option(name: str, options: dict[str, Option]) -> Option:
    """Return the option of a name, or the dict option that has it as a key.

    Raises:
      ConfigError: there is none; the message gives its name here, or the nearest names.
    """
    if name in options:
        return options[name]
    for known in options.values():
        if name.startswith(known.name + ".") and isinstance(known.default, dict):
            return known
    usual = ELSEWHERE.get(name) or ELSEWHERE.get(name.rpartition(".")[2])
    if usual in options and usual != name:
        raise ConfigError(f"there is no option --{name}; here it is called --{usual}.")
    off = options.get(name.partition(".")[0]) or options.get(name.rpartition(".")[0])
    of_policies = [known for known in options if known.startswith("policies.") and known.endswith(f".{name}")]
    if of_policies:
        raise ConfigError(f"there is no option --{name}: each policy has its own: --{' or --'.join(of_policies)}.")
    if off is not None and off.default is None and "." in name and "agent" in {n.partition(".")[0] for n in options}:
        raise ConfigError(f"there is no option --{name}: this experiment has no {off.name}.")
    hint = " or ".join(f"--{n}" for n in nearest(name, options))
    raise ConfigError(f"there is no option --{name}; {f'did you mean {hint}?' if hint else '--help-all lists all.'}")


def nearest(name: str, options: dict[str, Option]) -> list[str]:
    """Return the names of at most two options that look like `name`, with or without the part before their last dot."""
    tails = {known.rpartition(".")[2]: known for known in reversed(list(options))}
    near = difflib.get_close_matches(name, options, n=2, cutoff=0.6)
    near += [tails[t] for t in difflib.get_close_matches(name.rpartition(".")[2], tails, n=2, cutoff=0.6)]
    return list(dict.fromkeys(near))[:2]


def with_changes(experiment: Any, changes: dict[str, Any]) -> Any:
    """Return an experiment with other values of the fields in `changes`.

    Raises:
      ConfigError: it has no such field; the message gives its name here, or the nearest names.
    """
    for name in changes.keys() - {f.name for f in dataclasses.fields(experiment)}:
        option, options = name.replace("_", "-"), options_of(experiment)
        usual = [ELSEWHERE[option]] if ELSEWHERE.get(option) in options else nearest(option, options)
        hint = f"; did you mean {' or '.join(usual).replace('-', '_')}?" if usual else "."
        raise ConfigError(f"an experiment has no field {name!r}{hint}")
    return dataclasses.replace(experiment, **changes)


def is_sequence(kind: Any) -> bool:
    """Return whether a type holds several values."""
    return typing.get_origin(kind) in (tuple, list)


def alternatives(kind: Any) -> tuple[Any, ...]:
    """Return the members of a union type (None first, so that `none` is never a string), or the type itself."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return tuple(sorted(typing.get_args(kind), key=lambda member: member is not type(None)))
    return (kind,)


def type_text(kind: Any, name: str) -> str:
    """Return an option's type for help texts; `name` is the option's."""
    names = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", type(None): "none"}
    if typing.get_origin(kind) is typing.Literal:
        return "one of " + ", ".join(map(str, typing.get_args(kind)))
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return " or ".join(type_text(member, name) for member in reversed(alternatives(kind)))
    if is_sequence(kind):
        example = {str: "a,b", Any: '["module:Class"]'}.get(typing.get_args(kind)[0], "64,64")
        return f"a list such as {example}"
    if kind is dict or typing.get_origin(kind) is dict:
        return f"a JSON object, or keys one by one: --{name}.KEY VALUE"
    return names.get(kind, "a value that only a config in Python can give")


def differences(old: Any, new: Any) -> dict[str, tuple[Any, Any]]:
    """Return option name -> (old, new) for every option that differs."""
    before, after = options_of(old), options_of(new)
    names = list(dict.fromkeys([*before, *after]))
    missing = Option("", None, ABSENT, "")
    pairs = {n: (before.get(n, missing).default, after.get(n, missing).default) for n in names}
    return {name: pair for name, pair in pairs.items() if not is_equal(*pair)}


def short_help(default: Any, usage: str, names: dict[str, str]) -> str:
    """Return the help of about 40 lines: usage, experiments, and the common options."""
    options = options_of(default) | options_of(RunOptions())
    lines = [usage, "", *textwrap.wrap("experiments: " + ", ".join(names), _width(), subsequent_indent="  ")]
    for title, members in COMMON:
        lines += ["", f"{title}:"]
        for name in members:
            if name == "env.kwargs.KEY":
                lines.append(f"  --{name:<24} {'':<13} a keyword argument of the environment")
            elif name in options:
                lines.append(_option_line(options[name]))
    lines += ["", "--help-all lists every option."]
    return "\n".join(lines)


def full_help(default: Any) -> str:
    """Return every option with its default, its choices and its whole text, by part of the experiment."""
    options = options_of(default) | options_of(RunOptions())
    parts: dict[str, list[Option]] = {"run": []}
    for option in options.values():
        parts.setdefault(option.name.rpartition(".")[0] or "run", []).append(option)
    lines: list[str] = []
    for part, members in parts.items():
        lines += ["", f"{part}:"]
        lines += [line for option in members for line in option_lines(option)]
    return "\n".join(lines[1:])


def option_lines(option: Option) -> list[str]:
    """Return one option as lines of help: its default, its choices and its whole text."""
    text = _explained(option, option.text)
    wrapped = textwrap.wrap(text, _width(), initial_indent=INDENT, subsequent_indent=INDENT)
    return [f"  --{option.name}  (default {_shown(option)})", *wrapped]


def _option_line(option: Option) -> str:
    """Return one option as a line of help: its default and the first clause of its text, cut to fit."""
    text = _explained(option, re.split(r"[.;] ", option.text)[0].rstrip("."))
    return f"  --{option.name:<24} {_shown(option):<13} {textwrap.shorten(text, 76, placeholder=' ...')}".rstrip()


def _explained(option: Option, text: str) -> str:
    """Return the text with the choices that it does not mention."""
    choices = typing.get_args(option.kind) if typing.get_origin(option.kind) is typing.Literal else ()
    if not choices or str(choices[0]) in text:
        return text
    return f"{' | '.join(map(str, choices))}. {text}" if text else " | ".join(map(str, choices))


def _shown(option: Option) -> str:
    """Return a default in the form of the command line."""
    if option.default is None:
        return "none"
    return ",".join(map(str, option.default)) if isinstance(option.default, tuple) else str(option.default)


def _width() -> int:
    return min(120, max(60, shutil.get_terminal_size((100, 24)).columns))
