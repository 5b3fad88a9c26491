"""The command line: applies NAME and plain options to an Experiment. No subcommands; the order never matters."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import io
import json
import typing
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import tyro

from jsrl.errors import ConfigError
from jsrl.experiment import Experiment, PolicyConfig, numbers
from jsrl.experiment.automatic import with_replays
from jsrl.experiment.options import (
    ABSENT,
    WHETHER_REPLAY,
    Option,
    RunOptions,
    alternatives,
    differences,
    find_option,
    is_sequence,
    options_of,
    type_hints,
    type_text,
)
from jsrl.experiment.settings import AUTO

RUN_OPTIONS = RunOptions()


@dataclass(frozen=True)
class CommandLine:
    """A parsed command line: the experiment with its options, the run's options, and the names of the given ones.

    Attributes:
      followed: which numbers follow from the given ones, as text.
    """

    experiment: Experiment
    run: Any
    given: frozenset[str] = frozenset()
    followed: str = ""


def _taken_plan_file(arguments: list[str]) -> str | None:
    """Remove FILE from `--plan FILE.svg` in the arguments, and return it.

    Raises:
      ConfigError: the file has another suffix.
    """
    for index, (arg, file) in enumerate(pairwise(arguments)):
        if arg == "--plan" and file.endswith(".svg"):
            return arguments.pop(index + 1)
        if arg == "--plan" and Path(file).suffix and not file.startswith("-"):
            raise ConfigError(f"--plan draws SVG files, got {file}; give it a name that ends in .svg.")
    return None


def parse(arguments: Sequence[str], default: Experiment, run: Any = RUN_OPTIONS) -> CommandLine:
    """Apply `--option value` pairs to a default experiment; tyro converts the values and every check runs again.

    Args:
      arguments: of the command line. default: the experiment. run: the command's other options, a dataclass.

    Raises:
      ConfigError: an unknown option (with the nearest known one), or an invalid value.
    """
    default, of_run = _for_environment(arguments, default), options_of(run)
    options = options_of(default) | of_run
    keys: dict[str, dict[str, Any]] = {}
    whole: dict[str, Any] = {}
    args: list[tuple[Option, list[str]]] = []
    remaining = list(arguments)
    if plan_file := _taken_plan_file(remaining):
        run = dataclasses.replace(run, plan_file=plan_file)
    while remaining:
        token = remaining.pop(0)
        if not token.startswith("--"):
            hint = f" An environment is given as --env.id {token}." if ":" in token or "-v" in token else ""
            raise ConfigError(f"{token!r} is not an option; options begin with --; only NAME does not.{hint}")
        name, given, text = token[2:].partition("=")
        name = full_name(name.replace("_", "-"), options)
        option = find_option(positive(name, options), options)
        values = [text] if given else []
        while remaining and not remaining[0].startswith("--") and not given:
            values.append(remaining.pop(0))
        if option.name != name and isinstance(option.default, dict):
            if not values:
                raise ConfigError(f"--{name} needs a value.")
            keys.setdefault(option.name, {})[name[len(option.name) + 1 :].replace("-", "_")] = plain(" ".join(values))
        elif values and (isinstance(option.default, dict) or (is_sequence(option.kind) and values[0][:1] == "[")):
            whole[option.name] = json_value(option, " ".join(values))
        elif values and typing.get_args(option.kind)[:1] == (Any,):  # tyro would expect the type of the default
            whole[option.name] = tuple(arg for value in values for arg in value.split(",") if arg)
        elif option.kind is WHETHER_REPLAY and values in (["auto"], ["none"]):
            whole[option.name] = None if values == ["none"] else AUTO
        else:
            args.append((option, option_args(option, name, values)))
    parts = {option.name.rpartition(".")[0] for option, _ in args}
    replays = {part for part in parts if part in options and options[part].kind is WHETHER_REPLAY}
    for part in replays:
        if whole.get(part, AUTO) is None:
            raise ConfigError(f"--{part} none leaves no replay for --{part}.NAME; leave one of them out.")
    for name in whole.keys() - of_run.keys():  # other values may need these; those that need others are set below
        with contextlib.suppress(ConfigError):
            default = _with(default, _path(name), whole[name])
    for path in map(_path, replays):  # their settings change what auto gives
        default = _with(default, path, _at(default, path[:-1]).buffer)
    line = _tyro(args, default, run)
    for name in [*whole, *keys]:
        part = "run" if name in of_run else "experiment"
        path = [part, *_path(name)]
        value = whole[name] if name in whole else _at(line, path)
        line = _with(line, path, {**value, **keys[name]} if name in keys else value)
    names = frozenset({option.name for option, _ in args} | set(whole) | set(keys))
    return dataclasses.replace(line, given=names)


def _for_environment(arguments: Sequence[str], default: Experiment) -> Experiment:
    """Return the default without the options of its own environment, if the arguments name another environment.

    Environments of one family (`hide_and_seek:empty`, `hide_and_seek:quadrant`) report the same statistics: these stay.
    """
    args = [arg for argument in arguments for arg in argument.split("=", 1)]
    named = [after for arg, after in pairwise(args) if arg == "--env.id"]
    if not named or named[-1] == default.env.id:
        return default
    (family, colon, _), (of_named, _, _) = default.env.id.partition(":"), named[-1].partition(":")
    metrics = default.env.episode_metrics if colon and family == of_named else ()
    return dataclasses.replace(
        default, env=dataclasses.replace(default.env, kwargs={}, wrappers=(), episode_metrics=metrics)
    )


def json_value(option: Option, text: str) -> Any:
    """Return the JSON object or list that was given for an option.

    Raises:
      ConfigError: it is not JSON.
    """
    value = plain(text)
    if is_sequence(option.kind) and isinstance(value, list):
        member = typing.get_args(option.kind)[0]
        if member not in (int, str) or all(type(each) is member for each in value):
            return tuple(value)
    if isinstance(option.default, dict) and isinstance(value, dict):
        return value
    raise ConfigError(f"--{option.name} is {text!r}, expected {type_text(option.kind, option.name)}.")


def full_name(name: str, options: dict[str, Option]) -> str:
    """Return the switch for the name of a group: `wandb` is `wandb.enabled`."""
    return f"{name}.enabled" if name not in options and f"{name}.enabled" in options else name


def positive(name: str, options: dict[str, Option]) -> str:
    """Return the switch that `no-a.b` or `a.no-b` turns off, or the name itself."""
    for candidate in (name.removeprefix("no-"), name.replace(".no-", ".")):
        if name not in options and candidate in options and options[candidate].kind is bool:
            return candidate
    return name


def option_args(option: Option, name: str, values: list[str]) -> list[str]:
    """Return tyro's arguments for one option.

    Raises:
      ConfigError: a value is missing, or there are too many.
    """
    if option.kind is bool:
        negated = name != option.name
        if values and (negated or values[0].lower() not in ("true", "false")):
            raise ConfigError(f"--{name} is a switch; give it alone, or --{option.name} true or false.")
        parent, dot, last = option.name.rpartition(".")
        on = values[0].lower() == "true" if values else not negated
        return [f"--{option.name}" if on else f"--{parent}{dot}no-{last}"]
    if not values:
        raise ConfigError(f"--{option.name} needs a value ({type_text(option.kind, option.name)}).")
    if is_sequence(option.kind):
        values = [arg for value in values for arg in value.strip("()[]").split(",") if arg]
    elif len(values) > 1:
        raise ConfigError(f"--{option.name} takes one value, got {' '.join(values)!r}; options begin with --.")
    kinds = alternatives(option.kind)
    if float in (typing.get_args(option.kind) if is_sequence(option.kind) else kinds):
        for value in values:
            if value.lower().lstrip("+-") == "nan":  # a number to float(), but to no option
                raise ConfigError(_unreadable(option, value))
    return [f"--{option.name}", *(_spelled(value, kinds) for value in values)]


def _spelled(text: str, kinds: tuple[Any, ...]) -> str:
    """Write none as None, 1e6 and 100_000 as whole numbers; keep everything else."""
    if type(None) in kinds and text.lower() == "none":
        return "None"
    try:
        number = float(text)
    except ValueError:
        return text
    return str(int(number)) if int in kinds and number.is_integer() else text


# its help is not shown: reading comments for it would double the parsing time
TYRO = (tyro.conf.AvoidSubcommands, tyro.conf.HelptextFromCommentsOff)


def _tyro(args: list[tuple[Option, list[str]]], default: Experiment, run: Any) -> CommandLine:
    """Build the values that the arguments give with tyro; after a failure find the option that it could not read."""
    typed, of_run = _typed(default), {f.name for f in dataclasses.fields(run)}
    holders = {name: run if name in of_run else typed for name in (_path(option.name)[0] for option, _ in args)}
    classes: dict[str, type] = {name: type(holder) for name, holder in holders.items()}
    kinds = {name: type_hints(cls, include_extras=True)[name] for name, cls in classes.items()}
    before = dataclasses.make_dataclass("Given", kinds.items())(*(getattr(h, name) for name, h in holders.items()))

    def read(some: list[tuple[Option, list[str]]]) -> Any:
        arguments = [arg for _, option in some for arg in option]
        with contextlib.redirect_stderr(io.StringIO()):  # replaced by our one-sentence message
            return tyro.cli(type(before), args=arguments, default=before, config=TYRO, console_outputs=False)

    try:
        given = vars(read(args)) if args else {}
    except SystemExit:
        for option, spelled in args:
            try:
                read([(option, spelled)])
            except ConfigError:
                continue  # it was read, and needs the others
            except SystemExit:
                raise ConfigError(_unreadable(option, " ".join(spelled[1:]))) from None
        raise ConfigError(f"these options cannot be read together: {[o.name for o, _ in args]}.") from None
    if isinstance(policies := given.get("policies"), _NamedPolicies):
        given["policies"] = policies.plain()
    run = dataclasses.replace(run, **{n: value for n, value in given.items() if n in of_run})
    changes = {n: value for n, value in given.items() if n not in of_run}
    names = {option.name for option, _ in args} | (numbers.ALL if getattr(run, "resume", None) is not None else set())
    experiment, line = numbers.followed(default, changes, names)
    return CommandLine(experiment, run, followed=line)


class _NamedPolicies(Mapping[str, PolicyConfig]):
    """The policies of an experiment as fields of a dataclass, for tyro, and as a mapping."""

    def __getitem__(self, name: str) -> PolicyConfig:
        return getattr(self, name)

    def __iter__(self) -> Iterator[str]:
        return (f.name for f in dataclasses.fields(self))  # type: ignore[arg-type]

    def __len__(self) -> int:
        return len(dataclasses.fields(self))  # type: ignore[arg-type]

    @classmethod
    def of(cls, policies: Mapping[str, PolicyConfig]) -> Any:
        """Return policies with their agents' own types."""
        values = {name: _agent_typed(PolicyConfig, policy)(**vars(policy)) for name, policy in policies.items()}
        members = [(name, type(value), dataclasses.field(default=value)) for name, value in values.items()]
        return dataclasses.make_dataclass("Policies", members, bases=(cls,), frozen=True)()

    def plain(self) -> dict[str, PolicyConfig]:
        """Return them as a plain dict, as in an experiment."""
        names = [f.name for f in dataclasses.fields(PolicyConfig)]
        return {policy: PolicyConfig(**{n: getattr(value, n) for n in names}) for policy, value in self.items()}


def _agent_typed(cls: type, value: Any) -> type:
    """Return a config's class with its agent's own type, so that tyro sees the algorithm's options."""
    # A factory, since dataclasses refuse a default that is not frozen.
    agent = ("agent", type(value.agent), dataclasses.field(default_factory=lambda: value.agent))
    return dataclasses.make_dataclass(f"Typed{cls.__name__}", [agent], bases=(cls,), frozen=True)


def _typed(default: Experiment) -> Any:
    """Return an experiment whose class has its agents' own types."""
    fields = {f.name: getattr(default, f.name) for f in dataclasses.fields(Experiment)}
    cls = _agent_typed(Experiment, default)
    if default.policies:
        fields["policies"] = _NamedPolicies.of(default.policies)
        policies = ("policies", type(fields["policies"]), dataclasses.field(default=fields["policies"]))
        cls = dataclasses.make_dataclass("TypedExperiment", [policies], bases=(cls,), frozen=True)
    return cls(**fields)


def _unreadable(option: Option, text: str) -> str:
    choices = [
        choice
        for kind in alternatives(option.kind)
        if typing.get_origin(kind) is typing.Literal
        for choice in typing.get_args(kind)
    ]
    if option.name == "placement" and text == "fused":
        return "--placement fused (environment and agent in one compiled program) is not available yet; use serial or inline."
    near = difflib.get_close_matches(text, [str(c) for c in choices], n=1, cutoff=0.3)
    hint = f"; did you mean {near[0]}?" if near else "."
    return f"--{option.name} is {text!r}, expected {type_text(option.kind, option.name)}{hint}"


def _path(name: str) -> list[str]:
    return name.replace("-", "_").split(".")


def _at(value: Any, path: list[str]) -> Any:
    """Return the field of a config at `path`."""
    return functools.reduce(_member, path, value)


def _member(value: Any, name: str) -> Any:
    return value[name] if isinstance(value, Mapping) else getattr(value, name)


def _with(value: Any, path: list[str], new: Any) -> Any:
    """Return a config with `new` as its field at `path`."""
    changed = new if len(path) == 1 else _with(_member(value, path[0]), path[1:], new)
    if isinstance(value, Mapping):
        return {**value, path[0]: changed}
    return dataclasses.replace(value, **{path[0]: changed})


def spelled(experiment: Experiment, default: Experiment) -> list[str]:
    """Return the arguments that turn the default experiment into this one, such as `--seed 3`.

    Raises:
      ConfigError: no arguments can express it.
    """
    args: list[str] = []
    for name, (_, value) in differences(default, experiment).items():
        args += [f"--{name}", option_text(value)] if value != ABSENT else []
    if with_replays(parse(args, default).experiment)[0] != with_replays(experiment)[0]:
        raise ConfigError(
            "this experiment cannot be written as options; put the differences into its file, configs/NAME.py."
        )
    return args


def option_text(value: Any) -> str:
    """Return an option's value in the form of the command line."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict) or (
        isinstance(value, tuple) and not all(isinstance(v, str | int | float) for v in value)
    ):
        return json.dumps(value)
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def plain(text: str) -> Any:
    """Return the JSON value of a text, or the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return {"True": True, "False": False, "None": None}.get(text, text)


def without(args: Sequence[str], names: Collection[str]) -> tuple[str, ...]:
    """Return the arguments of a command line without these options and their values; `slurm`: also its parts."""
    found: list[str] = []
    dropping = False
    for arg in args:
        if arg.startswith("--"):
            option = arg[2:].partition("=")[0].replace("_", "-").removeprefix("no-")
            dropping = option in names or option.partition(".")[0] in names
        if not dropping:
            found.append(arg)
    return tuple(found)
