"""The command line: applies NAME and plain options to an Experiment. No subcommands; the order never matters."""

from __future__ import annotations

import dataclasses
import enum
import json
import typing
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsrl
from jsrl.errors import ConfigError
from jsrl.experiment import Experiment, numbers
from jsrl.experiment.automatic import with_replays
from jsrl.experiment.checks import leaves_host
from jsrl.experiment.options import (
    ABSENT,
    ELSEWHERE,
    Option,
    RunOptions,
    differences,
    either,
    nearest,
    options_of,
)
from jsrl.experiment.settings import AUTO
from jsrl.fields import InvalidValue, alternatives, check_value, is_sequence, type_hints, type_text
from jsrl.references.importing import import_target

RUN_OPTIONS = RunOptions()
NEW = {"run-name", "overwrite"}  # options of a new run


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
    """Apply `--option value` pairs to a default experiment; the fields of the configs say which values they take.

    Args:
      arguments: of the command line. default: the experiment. run: the command's other options, a dataclass.

    Raises:
      ConfigError: an unknown option (with the nearest known one), or an invalid value.
    """
    default, of_run = _for_environment(arguments, default), options_of(run)
    options = options_of(default) | of_run
    remaining = list(arguments)
    if plan_file := _taken_plan_file(remaining):
        run = dataclasses.replace(run, plan_file=plan_file)
    values: dict[str, Any] = {}
    texts: dict[str, str] = {}  # as they were given
    keys: dict[str, dict[str, Any]] = {}
    for name, words in _pairs(remaining):
        name = full_name(name, options)
        option = find_option(positive(name, options), options)
        texts[option.name] = " ".join(words)
        if option.name == name or not isinstance(option.default, dict):
            values[option.name] = _value(option, name, words)
            continue
        key = name.removeprefix(f"{option.name}.")
        if not words:
            raise ConfigError(f"--{name} needs a value.")
        keys.setdefault(option.name, {})[key.replace("-", "_")] = plain(" ".join(words))
        texts[name] = texts.pop(option.name)
    for name, given in keys.items():
        values[name] = {**values.get(name, options[name].default), **given}
    changes = _by_part(values, options)
    in_run = {field: changes.pop(field) for field in changes.keys() & {f.name for f in dataclasses.fields(run)}}
    run = _changed(run, in_run, texts)
    names = values.keys() | (numbers.ALL if getattr(run, "resume", None) is not None else set())
    try:
        experiment, line = numbers.followed(default, _made(default, changes, texts), names)
    except InvalidValue as error:
        raise _respelled(error, Experiment, "", texts) from error
    return CommandLine(experiment, run, frozenset(values), line)


def _pairs(words: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield the name of each option, and the words that follow it."""
    while words:
        word = words.pop(0)
        if not word.startswith("--"):
            hint = f" An environment is given as --env.id {word}." if ":" in word or "-v" in word else ""
            raise ConfigError(f"{word!r} is not an option; options begin with --; only NAME does not.{hint}")
        name, equals, text = word[2:].partition("=")
        values = [text] if equals else []
        while words and not words[0].startswith("--") and not equals:
            values.append(words.pop(0))
        yield name.replace("_", "-"), values


def last_values(arguments: Sequence[str]) -> dict[str, str]:
    """Return the last word after each word of a command line that is not read yet: the value of each option given."""
    return dict(pairwise(word for argument in arguments for word in argument.split("=", 1)))


def _for_environment(arguments: Sequence[str], default: Experiment) -> Experiment:
    """Return the default without the options of its own environment, if the arguments name another environment.

    Environments of one family (`hide_and_seek:empty`, `hide_and_seek:quadrant`) report the same statistics: these stay.
    """
    named = last_values(arguments).get("--env.id", default.env.id)
    if named == default.env.id:
        return default
    (family, colon, _), (of_named, _, _) = default.env.id.partition(":"), named.partition(":")
    metrics = default.env.episode_metrics if colon and family == of_named else ()
    return dataclasses.replace(
        default, env=dataclasses.replace(default.env, kwargs={}, wrappers=(), episode_metrics=metrics)
    )


def find_option(name: str, options: dict[str, Option]) -> Option:
    """Return the option of a name, or the dict option that has it as a key.

    Raises:
      ConfigError: there is none; the message gives its name here, or the nearest names.
    """
    if name in options and options[name].offered:
        return options[name]
    for known in options.values():
        if name.startswith(known.name + ".") and isinstance(known.default, dict):
            return known
    if text := usual_name(name, options):
        raise ConfigError(f"there is no option --{name}; {text}")
    if name in options:
        raise ConfigError(
            f"there is no option --{name}: set {name.replace('-', '_')} of the Experiment in a config in Python "
            "(configs/NAME.py)."
        )
    off = options.get(name.partition(".")[0]) or options.get(name.rpartition(".")[0])
    if off is not None and off.default is None and "." in name and "agent" in {n.partition(".")[0] for n in options}:
        raise ConfigError(f"there is no option --{name}: this experiment has no {off.name}.")
    part, _, last = name.rpartition(".")
    is_absent = part.rpartition(".")[2] in ("", "agent") and not any(known.endswith(f".{last}") for known in options)
    if others := agents_with(last.replace("-", "_")) if is_absent else []:
        raise ConfigError(
            f"there is no option --{name}: the algorithm of this experiment has none; {', '.join(others)} have it, as "
            f"--agent.{last}."
        )
    hint = " or ".join(f"--{n}" for n in nearest(name, options))
    raise ConfigError(f"there is no option --{name}; {f'did you mean {hint}?' if hint else '--help-all lists all.'}")


def usual_name(name: str, options: dict[str, Option]) -> str:
    """Return what to give instead of an option of another library or of each policy, as text; empty: nothing is known."""
    entries = import_target(ELSEWHERE)(name)
    meant = [entry for entry in entries if entry.here in options]
    if meant:
        note = f" ({meant[0].note})" if meant[0].note else ""
        return f"here it is called --{meant[0].here}{note}."
    for here in (name, *(entry.here for entry in entries)):
        if own := [known for known in options if known.startswith("policies.") and known.endswith(f".{here}")]:
            return f"each policy has its own: --{' or --'.join(own)}."
    if not entries:
        return ""
    absent = " or ".join(f"--{entry.here}" for entry in entries)
    return f"it would be {absent}, which this experiment does not have." if entries[0].here else entries[0].note


def agents_with(field: str) -> list[str]:
    """Return the algorithms of jsrl whose configs have a field."""
    configs = [getattr(jsrl, name) for name in dir(jsrl) if name.endswith("Config")]
    agents = [config for config in configs if hasattr(config, "factory")]
    return [a.factory.partition(":")[2] for a in agents if field in {f.name for f in dataclasses.fields(a)}]


def full_name(name: str, options: dict[str, Option]) -> str:
    """Return the switch for the name of a group: `wandb` is `wandb.enabled`."""
    return f"{name}.enabled" if name not in options and f"{name}.enabled" in options else name


def positive(name: str, options: dict[str, Option]) -> str:
    """Return the switch that `no-a.b` or `a.no-b` turns off, or the name itself."""
    for candidate in (name.removeprefix("no-"), name.replace(".no-", ".")):
        if name not in options and candidate in options and options[candidate].kind is bool:
            return candidate
    return name


def _value(option: Option, name: str, words: list[str]) -> Any:
    """Return the value that words give an option; what cannot be read stays a text, which its field refuses.

    Raises:
      ConfigError: a value is missing, or there are too many.
    """
    if option.kind is bool:
        negated = name != option.name
        if words and (negated or words[0].lower() not in ("true", "false")):
            raise ConfigError(f"--{name} is a switch; give it alone, or --{option.name} true or false.")
        return words[0].lower() == "true" if words else not negated
    if not words:
        raise ConfigError(f"--{option.name} needs a value ({type_text(option.kind)}).")
    text = " ".join(words)
    if isinstance(option.default, dict):
        value = plain(text)
        if not isinstance(value, dict):
            ways = f"a JSON object, or keys one by one: --{option.name}.KEY VALUE"
            raise ConfigError(f"--{option.name} is {text!r}; expected {ways}.")
        return value
    if is_sequence(option.kind):
        return _sequence(option.kind, words)
    if len(words) > 1:
        raise ConfigError(f"--{option.name} takes one value, got {text!r}; options begin with --.")
    return read(option.kind, text)


def _sequence(kind: Any, words: list[str]) -> Any:
    """Return the members of a list: JSON in brackets, or texts between commas or spaces."""
    member, text = typing.get_args(kind)[0], " ".join(words)
    if text.startswith("["):
        value = plain(text)
        if isinstance(value, list):
            return tuple(value)
        if member is Any:
            return text
    members = [part.strip() for word in words for part in word.strip("()[]").split(",")]
    return tuple(part if member is Any else read(member, part) for part in members if part)


def read(kind: Any, text: str) -> Any:
    """Return the value of a type that a text stands for; the text itself: none."""
    for each in alternatives(kind):
        if each is type(None) and text.lower() == "none":
            return None
        if typing.get_origin(each) is typing.Literal and text in typing.get_args(each):
            return text
        if each is bool and text.lower() in ("true", "false"):
            return text.lower() == "true"
        if each in (int, float):
            try:
                number = float(text)
                if each is float:
                    return number
                return int(number) if number.is_integer() else number
            except (ValueError, OverflowError):
                continue
        if is_sequence(each) and ("," in text or str not in alternatives(kind)):
            return _sequence(each, [text])
        if isinstance(each, type) and issubclass(each, enum.Enum) and text in each.__members__:
            return each[text]
        if isinstance(each, type) and issubclass(each, Path):
            return each(text)
    return text


class _Part(dict[str, Any]):
    """New values of some fields of a config; those of its own parts are again such dicts."""


def _by_part(values: dict[str, Any], options: dict[str, Option]) -> _Part:
    """Return the values of options as those of fields.

    Raises:
      ConfigError: a replay is left out, and one of its settings is given.
    """
    changes = _Part()
    for name in sorted(values):  # a part is before its fields
        *parts, field = name.replace("-", "_").split(".")
        into = changes
        for part in parts:
            inner = into.setdefault(part, _Part())
            if inner is None:
                whole = name.rpartition(".")[0]
                raise ConfigError(f"--{whole} none leaves no replay for --{whole}.NAME; leave one of them out.")
            into[part] = inner if isinstance(inner, _Part) else _Part()  # auto, of which a setting changes
            into = into[part]
        into[field] = values[name]
    return changes


def _changed(config: Any, changes: dict[str, Any], texts: Mapping[str, str], name: str = "") -> Any:
    """Return a config with changes; errors about a value name its option. name: of the config, with a dot at its end."""
    new = _made(config, changes, texts, name)
    if isinstance(config, Mapping):
        return {**config, **new}
    cls: Any = type(config)
    try:
        for field, value in new.items():  # a user's own class may have no checks
            check_value(cls, field, value, type_hints(cls)[field])
        return dataclasses.replace(config, **new) if new else config
    except InvalidValue as error:
        raise _respelled(error, cls, name, texts) from error


def _made(config: Any, changes: dict[str, Any], texts: Mapping[str, str], name: str = "") -> dict[str, Any]:
    """Return new values of a config's fields, each part made from its own changes."""
    made = dict(changes)
    for field, inner in changes.items():
        if isinstance(inner, _Part):
            old = config[field] if isinstance(config, Mapping) else getattr(config, field)
            old = config.buffer if isinstance(old, str) and old == AUTO else old
            made[field] = _changed(old, inner, texts, f"{name}{field.replace('_', '-')}.")
    return made


def _respelled(error: InvalidValue, owner: type, name: str, texts: Mapping[str, str]) -> ConfigError:
    """Return the error about a field of a config as one about its option, and as it was given."""
    option = name + error.field.replace("_", "-")
    if error.owner is not owner or option not in texts:
        return error
    text = texts[option]
    try:
        float(text)
        shown = text if "nan" not in text.lower() else repr(text)
    except ValueError:
        shown = repr(text)
    return ConfigError(f"--{option} is {shown}; {error.wanted}")


def check_needs(asked: CommandLine) -> None:
    """Refuse options without those that they need, and those that another option makes void."""
    if "num-hosts" in asked.given and asked.run.hosts:
        raise ConfigError(
            f"--num-hosts is given, but --hosts {asked.run.hosts} names the hosts; leave out --num-hosts. --min-hosts N "
            "starts the run when N of them have joined."
        )
    if asked.run.resume and (wrong := sorted(asked.given & NEW)):
        raise ConfigError(
            f"--{wrong[0]} is for a new run, but --resume continues {asked.run.resume} in its own folder; leave one of "
            "them out. (--init-from RUN@TAG begins a new run with the params of another.)"
        )
    present, known = _present(asked), options_of(asked.experiment) | options_of(asked.run)
    for name in sorted(asked.given):
        needs = known[name].needs
        if needs and not present & set(needs):
            raise ConfigError(f"--{name} is given, but it needs {either(needs)}; add that, or leave out --{name}.")


def _present(asked: CommandLine) -> set[str]:
    options, e = asked.run, asked.experiment
    switches = ("listen", "hosts", "hosts-file", "tune", "plan", "seeds")
    found = {f"--{name}" for name in switches if getattr(options, name.replace("-", "_"))}
    found.add(f"--launcher {options.launcher}")
    found |= {f"--placement {e.placement}"} | {f"--placement {policy.placement}" for policy in e.policies.values()}
    if e.placement == "auto" or options.tune:  # decided later
        found.add("--placement served")
    if options.launcher == "slurm" and not options.seeds:
        found.add("--launcher slurm without --seeds")
    return found | ({"--encrypt", "--bind"} if leaves_host(e) else set())


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
