"""Commands about an experiment: help about its options and the command's own, parsing, errors."""

from __future__ import annotations

import dataclasses
import inspect
import re
import shutil
import sys
import textwrap
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from jsrl.cli.command_line import CommandLine, parse, take_name, without
from jsrl.cli.experiments import files, load, use_working_directory
from jsrl.cli.main import show_error
from jsrl.cli.tuned import SWITCH, with_settings
from jsrl.errors import ConfigError, JsrlError
from jsrl.experiment.options import RunOptions
from jsrl.fields import AUTO, Option, either, offered_options, options_of

INDENT = " " * 8  # of an option's text
COMMON = (
    ("how long", ("total-env-steps", "max-minutes", "stop-at-return", "seed", "seeds")),
    ("what", ("env.id", "env.kwargs.KEY", "num-envs", "rollout-length", "batch-envs", "max-policy-lag",
              "replay.capacity", "replay.batch-size", "replay.updates-per-env-step")),
    (
        "algorithm",
        ("agent.learning-rate", "agent.gamma", "agent.num-epochs", "agent.num-minibatches", "agent.minibatch-size",
         "agent.entropy-coef", "agent.network.torso", "agent.network.hidden", "agent.network.core"),
    ),
    ("where", ("placement", "num-actors", "num-inference-servers", "transport", "learner.num-devices", "deterministic",
               "restart", "tune")),
    ("the run", ("runs-dir", "run-name", "overwrite", "resume", "init-from", "display", "detach", "plan",
                 "video.enabled", "wandb.enabled")),
)  # fmt: skip
CHAPTERS = {  # of the options without a part
    "how long": ("total-env-steps", "max-minutes", "stop-at-return", "seed", "seeds", "jobs"),
    "data": ("num-envs", "rollout-length", "batch-envs", "max-policy-lag", "replay", "record", "recording"),
    "where": ("placement", "num-actors", "num-groups", "num-inference-servers", "transport", "bind", "encrypt", "compress",
              "deterministic", "restart", "graph", "tune", "tune-minutes"),
    "the run": ("settings", "runs-dir", "run-name", "overwrite", "resume", "init-from", "display", "detach", "plan", "trace",
                "hooks", "sinks"),
    "other hosts": ("listen", "hosts", "launcher", "num-hosts", "min-hosts", "join-key", "join-s", "keep-here", "learner-on",
                    "host-python", "hosts-file", "print"),
}  # fmt: skip


def short_help(default: Any, usage: str, names: dict[str, str]) -> str:
    """Return the help of about 40 lines: usage, experiments, and the common options."""
    options = offered_options(default, RunOptions())
    void = {each.name if each.default is None else each.instead_of for each in options.values() if each.instead_of}
    lines = [usage, "", *textwrap.wrap("experiments: " + ", ".join(names), _width(), subsequent_indent="  ")]
    for title, members in COMMON:
        lines += ["", f"{title}:"]
        for name in members:
            if name == "env.kwargs.KEY":
                lines.append(f"  --{name:<26} {'':<13} A keyword argument of the environment")
            elif name in options.keys() - void:
                lines.append(_option_line(options[name]))
        if title == "algorithm" and default.policies:
            lines.append(
                f"  each policy has its own: --policies.NAME.agent.gamma, ...; NAME: {', '.join(default.policies)}"
            )
    lines += ["", "--help-all lists every option."]
    return "\n".join(lines)


def full_help(default: Any) -> str:
    """Return every option with its default, its choices and its whole text, in chapters."""
    options = offered_options(default, RunOptions())
    chapters: dict[str, list[Option]] = {title: [options[name] for name in names] for title, names in CHAPTERS.items()}
    titles = _titles(default) | _titles(RunOptions())
    for each in options.values():
        if part := each.name.rpartition(".")[0]:
            chapters.setdefault(f"{part} ({titles[part]})", []).append(each)
    lines: list[str] = []
    for title, members in chapters.items():
        lines += ["", f"{title}:", *(line for member in members for line in option_lines(member))]
    return "\n".join(lines[1:])


def _titles(value: Any, name: str = "") -> dict[str, str]:
    """Return a title for each part of a config, from the first line about it: `actor` -> how actors work."""
    first = re.split(r"[.:(,]", inspect.getdoc(type(value)) or "")[0].strip()
    parts = value if isinstance(value, Mapping) else {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    found = {name: first[:1].lower() + first[1:]}
    for part, inner in parts.items():
        if (dataclasses.is_dataclass(inner) and not isinstance(inner, type)) or (
            part == "policies" and isinstance(inner, Mapping)
        ):
            found |= _titles(inner, f"{name}.{part}".lstrip(".").replace("_", "-"))
        if part == "replay" and inner == AUTO and value.buffer is not None:
            found |= _titles(value.buffer, f"{name}.{part}".lstrip("."))
    return found


def option_lines(option: Option) -> list[str]:
    """Return one option as lines of help: its default, its choices and its whole text."""
    text = _explained(option, option.text)
    wrapped = textwrap.wrap(text, _width(), initial_indent=INDENT, subsequent_indent=INDENT)
    return [f"  --{option.name}  (default {_shown(option)})", *wrapped]


def _option_line(option: Option) -> str:
    """Return one option as a line of help: its default and the first clause of its text, cut to fit."""
    text = _explained(option, re.split(r"[.;] ", option.text)[0].rstrip("."))
    begin = f"  --{option.name:<26} {_shown(option):<13} "
    return (begin + textwrap.shorten(text, max(30, 118 - len(begin)), placeholder=" ...")).rstrip()


def _explained(option: Option, text: str) -> str:
    """Return the text as a sentence, with the choices that it does not mention."""
    if option.needs:
        text = f"with {either(option.needs)}: {text[:1].lower()}{text[1:]}"
    choices = typing.get_args(option.kind) if typing.get_origin(option.kind) is typing.Literal else ()
    first = re.split(r"[ ,:]", text)[0]
    if first.isalpha() and first not in (*choices, str(option.default)):
        text = text[:1].upper() + text[1:]
    if not choices or str(choices[0]) in text:
        return text
    return f"{' | '.join(map(str, choices))}. {text}" if text else " | ".join(map(str, choices))


def _shown(option: Option) -> str:
    """Return a default in the form of the command line."""
    if option.default is None or isinstance(option.default, bool):
        return str(option.default).lower()
    if option.default in ((), {}):
        return "empty"
    return ",".join(map(str, option.default)) if isinstance(option.default, tuple) else str(option.default)


def _width() -> int:
    return min(120, max(60, shutil.get_terminal_size((100, 24)).columns))


# -- commands that have options of their own beside those of an experiment, such as `jsrl tune` -------------------------


def execute(
    arguments: Sequence[str] | None,
    act: Callable[[list[str]], int],
    text: Callable[[], str],
    interrupted: str = "interrupted",
) -> int:
    """Execute a command line; return the exit status.

    Args:
      act: (words) -> exit status. text: returns the help. interrupted: shown after Ctrl-C.
    """
    args = list(sys.argv[1:] if arguments is None else arguments)
    if {"-h", "--help", "--help-all"} & set(args):
        print(text())
        return 0
    use_working_directory()
    try:
        return act(args)
    except JsrlError as error:
        return show_error(error, 2 if isinstance(error, ConfigError) else 1)
    except KeyboardInterrupt:
        print(interrupted, file=sys.stderr)
        return 130


def asked_of(args: list[str], options: Any) -> tuple[str, CommandLine]:
    """Return the name of the experiment in a command line, and the rest as parsed by `jsrl run`. options: its own."""
    name = take_name(args)
    if name is None:
        raise ConfigError(f"name an experiment; there are: {', '.join(files())}.")
    default, settings = with_settings(name, args, load(name))
    if settings:
        print(settings)
    return name, parse(without(args, (SWITCH,)), default, options)


def help_of(usage: str, about: str | None, options: Any, names: Collection[str] | None = None) -> str:
    """Return the help of a command with options of its own, beside those of an experiment. names: which; None: all."""
    own = [option for name, option in options_of(options).items() if names is None or name in names]
    lines = [f"usage: {usage}", "", *(about or "").splitlines(), "", *(line for o in own for line in option_lines(o))]
    return "\n".join([*lines, "", "Every option of `jsrl run NAME` that belongs to the experiment may be given, too."])
