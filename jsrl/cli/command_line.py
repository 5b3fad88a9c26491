"""The command line of `jsrl run`: NAME and `--option words`, in any order.

One pass: `given` reads the words, `find_option` finds their option, `read` decodes them by its type, and `_made` makes the
configs anew, whose fields check them (`jsrl.fields`). Docs: docs/code.md, The way of an option.
"""

from __future__ import annotations

import dataclasses
import difflib
import enum
import json
import typing
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from jsrl.cli.experiments import FOLDER, files
from jsrl.errors import ConfigError
from jsrl.experiment import Experiment, numbers
from jsrl.experiment.automatic import with_replays
from jsrl.experiment.options import RunOptions
from jsrl.fields import (
    ABSENT,
    AUTO,
    CHECKED,
    NAMES,
    InvalidValue,
    Option,
    alternatives,
    check_fields,
    decided,
    differences,
    either,
    is_sequence,
    options_of,
    type_text,
)

RUN_OPTIONS = RunOptions()
NEW = {"run-name", "overwrite"}  # options of a new run
TAKE_A_NAME = ("run-name", "search-name", "resume", "init-from", "record", "recording")  # of a run or folder


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


# -- the words ----------------------------------------------------------------------------------------------------------


def take_name(arguments: list[str]) -> str | None:
    """Remove NAME from the arguments, at any position, and return it."""
    known = files()
    if arguments and not arguments[0].startswith("-"):
        name = arguments.pop(0)
        if name in known:
            return name
        near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(known)}."
        raise ConfigError(f"there is no experiment {name!r}; {hint} (Add your own as {FOLDER}/{name}.py here.)")
    before = ["", *arguments]
    for index, (arg, option) in enumerate(zip(arguments, before, strict=False)):
        if arg in known and option.replace("_", "-").removeprefix("--") not in TAKE_A_NAME:
            return arguments.pop(index)
    for arg, option in zip(arguments, before, strict=False):
        near = difflib.get_close_matches(arg, known, n=1, cutoff=0.8)
        if near and not (option.startswith("--") and "=" not in option):
            raise ConfigError(f"there is no experiment {arg!r}; did you mean {near[0]}?")
    return None


def given(arguments: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield the name of each option of a command line, and the words that follow it."""
    words = list(arguments)
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


def last_texts(arguments: Sequence[str]) -> dict[str, str]:
    """Return option -> its words as text, of the last time that it is given; its name is as it was written."""
    return {name: " ".join(words) for name, words in given(arguments)}


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


# -- from words to configs ----------------------------------------------------------------------------------------------


def parse(arguments: Sequence[str], default: Experiment, run: Any = RUN_OPTIONS) -> CommandLine:
    """Apply `--option value` pairs to a default experiment; the fields of the configs say which values they take.

    Args:
      arguments: of the command line. default: the experiment. run: the command's other options, a dataclass.

    Raises:
      ConfigError: an unknown option (with the nearest known one), or an invalid value.
    """
    default, of_run = _for_environment(arguments, default), options_of(run)
    options = options_of(default) | of_run
    values: dict[str, Any] = {}
    texts: dict[str, str] = {}  # as they were given
    keys: dict[str, dict[str, Any]] = {}
    for name, words in given(arguments):
        if name == "plan" and "plan-file" in of_run and words and (file := _plan_file(words[0])):
            values["plan-file"], words = file, words[1:]
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
    for name, members in keys.items():
        values[name] = {**values.get(name, options[name].default), **members}
    if in_run := {name: values[name] for name in values if name in of_run}:
        run = _changed(run, in_run, texts)
    changes = _made(default, {name: values[name] for name in values if name not in of_run}, texts)
    fixed = values.keys() | (numbers.ALL if getattr(run, "resume", None) is not None else set())
    try:
        experiment, line = numbers.followed(default, changes, fixed)
    except InvalidValue as error:
        raise error.as_option(Experiment, "", texts) from error
    return CommandLine(experiment, run, frozenset(values), line)


def _plan_file(word: str) -> str:
    """Return the file of `--plan FILE.svg`; empty: the word names none."""
    if Path(word).suffix not in ("", ".svg"):
        raise ConfigError(f"--plan draws SVG files, got {word}; give it a name that ends in .svg.")
    return word if word.endswith(".svg") else ""


def _for_environment(arguments: Sequence[str], default: Experiment) -> Experiment:
    """Return the default without the options of its own environment, if the arguments name another environment.

    Environments of one family (`hide_and_seek:empty`, `hide_and_seek:quadrant`) report the same statistics: these stay.
    """
    named = last_texts(arguments).get("env.id", default.env.id)
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
    raise ConfigError(f"there is no option --{name}{import_module(NAMES).unknown_option(name, options)}")


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


def _made(config: Any, values: Mapping[str, Any], texts: Mapping[str, str], prefix: str = "") -> dict[str, Any]:
    """Return new values of a config's fields, each part made from the values of its own options.

    Args:
      values: of options, by name after `prefix`. texts: as they were given, by whole name.
    """
    fields: dict[str, Any] = {}
    of_parts: dict[str, dict[str, Any]] = {}
    for option, value in values.items():
        name, dot, rest = option.partition(".")
        if dot:
            of_parts.setdefault(name, {})[rest] = value
        else:
            fields[name.replace("-", "_")] = value
    for name, inner in of_parts.items():
        field, whole = name.replace("-", "_"), f"{prefix}{name}"
        if field in fields and fields[field] is None:
            raise ConfigError(f"--{whole} none leaves no replay for --{whole}.NAME; leave one of them out.")
        old = (
            config[field] if isinstance(config, Mapping) else decided(config, field)
        )  # auto, of which a setting changes
        fields[field] = _changed(old, inner, texts, f"{whole}.")
    return fields


def _changed(config: Any, values: Mapping[str, Any], texts: Mapping[str, str], prefix: str = "") -> Any:
    """Return a config with new values of its options; errors about a value name its option."""
    fields = _made(config, values, texts, prefix)
    if isinstance(config, Mapping):
        return {**config, **fields}
    for field in dataclasses.fields(config):
        other = field.metadata.get("instead_of")
        if other in fields and fields.setdefault(field.name, None) is not None:
            names = " and ".join(f"--{prefix}{name.replace('_', '-')}" for name in (field.name, other))
            raise ConfigError(f"{names} say the same in two ways; leave one of them out.")
    try:
        changed = dataclasses.replace(config, **fields)
        if type(config) not in CHECKED:  # a user's own class
            check_fields(changed)
        return changed
    except InvalidValue as error:
        raise error.as_option(type(config), prefix, texts) from error


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
    known = options_of(asked.experiment) | options_of(asked.run)
    for name in sorted(asked.given):
        needs, changes = known[name].needs, known[name].default != known[name].usual
        if needs and changes and not any(_holds(need, asked, known) for need in needs):
            raise ConfigError(f"--{name} is given, but it needs {either(needs)}; add that, or leave out --{name}.")


def _holds(need: str, asked: CommandLine, known: Mapping[str, Option]) -> bool:
    """Return whether an experiment, or a policy of it, has an option that others need: `--NAME` or `--NAME VALUE`."""
    name, _, value = need.removeprefix("--").partition(" ")
    if value.endswith(" without --seeds"):
        return asked.run.launcher == "slurm" and not asked.run.seeds
    if name == "placement" and (asked.run.tune or asked.experiment.placement == AUTO):  # decided later
        return True
    return any(each.has(value) for other, each in known.items() if other == name or other.endswith(f".{name}"))


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
