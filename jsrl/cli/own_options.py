"""Commands about an experiment that have options of their own, such as `jsrl tune`: help, parsing, errors."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from typing import Any

from jsrl.cli.arguments import show_error
from jsrl.cli.command_line import CommandLine, parse
from jsrl.cli.experiments import files, load, take_name, use_working_directory
from jsrl.cli.option_help import option_lines
from jsrl.errors import ConfigError, JsrlError
from jsrl.experiment.options import options_of


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
    """Return the name of the experiment in a command line, and the rest parsed; `options`: the command's own."""
    name = take_name(args)
    if name is None:
        raise ConfigError(f"name an experiment; there are: {', '.join(files())}.")
    return name, parse(args, load(name), options)


def help_of(usage: str, about: str | None, options: Any, names: Collection[str] | None = None) -> str:
    """Return the help of a command with options of its own, beside those of an experiment. names: which; None: all."""
    own = [option for name, option in options_of(options).items() if names is None or name in names]
    lines = [f"usage: {usage}", "", *(about or "").splitlines(), "", *(line for o in own for line in option_lines(o))]
    return "\n".join([*lines, "", "Every option of `jsrl run NAME` that belongs to the experiment may be given, too."])
