"""`jsrl COMMAND ...`: every command of jsrl; `jsrl` alone lists them."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import importlib
import io
import os
import re
import select
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import jsrl
from jsrl.interrupts import remembered, repeated
from jsrl.services.runs.message_limits import printable

CHAPTERS = {
    "Train": {
        "run": "run an experiment, or continue a run",
        "list": "list the experiments",
        "new": "create your own project: config, environment, algorithm, test",
        "search": "search hyperparameters of an experiment",
        "tune": "find the fastest settings of an experiment on this machine",
    },
    "Follow a run": {
        "status": "show the state of a run, or of all runs of a folder; --follow: as if it ran here",
        "logs": "show the log of a run's controller or of a worker",
        "watch": "show the runs of a folder in a browser while they run",
        "report": "write a run's report again; of several runs: compare them",
        "stop": "stop a run cleanly, on any host; --host: remove a joined host from it",
    },
    "Use its policy": {
        "evaluate": "play a run's snapshot and print its score; --show: in a window",
        "record": "record a trained policy's episodes",
        "export": "write a trained policy to a file that plays without jsrl",
    },
    "Machines": {
        "join": "let this host run workers of a run that another host controls",
        "doctor": "report what is missing, slow or unusual on this machine",
        "dev": "test your experiment: chaos, replay-update",
    },
}
COMMANDS = {name: text for chapter in CHAPTERS.values() for name, text in chapter.items()}
DEV = {  # after `jsrl dev`
    "chaos": "kill workers of a run at random and check that it recovers",
    "replay-update": "repeat the update of a failed run, and name the first operation that made a NaN",
}

FILES = {"list": "experiments"}  # of commands with another name than their file
LOADING = "loading jsrl ..."


def main(arguments: Sequence[str] | None = None) -> int:
    """Execute a command line; return the exit status."""
    _open_closed()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a result with ± is shown in any encoding
    args = list(sys.argv[1:] if arguments is None else arguments)
    if not args or args[0] in ("-h", "--help", "help"):
        print(overview())
        return 0
    if args[0] == "--version":
        print(f"jsrl {jsrl.__version__}")
        return 0
    known = COMMANDS
    if args[0] == "dev":
        args, known = args[1:], DEV
        if not args or args[0] in ("-h", "--help"):
            lines = (f"  {name:<14} {text}" for name, text in DEV.items())
            print("\n".join(["usage: jsrl dev COMMAND ...", "", *lines]))
            return 0
    command = args[0]
    if command not in known:
        hint = _hint(command) if known is COMMANDS else f"there are: {', '.join(DEV)}."
        name = repr(command) if known is COMMANDS else f"dev {command!r}"
        print(f"ConfigError: there is no command {name}; {hint}", file=sys.stderr)
        return 2
    try:
        os.getcwd()
    except FileNotFoundError:
        print("ConfigError: the working directory was deleted; go to another one.", file=sys.stderr)
        return 2
    try:
        with repeated(), remembered(ends=()):
            status: int = load(command).main(args[1:])
        sys.stdout.flush()
    except BrokenPipeError:  # `jsrl list | head`
        if not _reader_has_gone():
            raise
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    return status


def _open_closed() -> None:
    """Discard what goes to standard output or standard error if it is closed, as in `jsrl run NAME 2>&-`."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115


def _reader_has_gone() -> bool:
    """Return whether stdout is a pipe that nobody reads; if so, discard what is still to be written to it."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    if not any(event & select.POLLERR for _, event in poll.poll(0)):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return True


def load(command: str) -> Any:
    """Return the module of a command."""
    with shown(LOADING):
        return importlib.import_module(f"jsrl.cli.{FILES.get(command, command.replace('-', '_'))}")


@contextlib.contextmanager
def shown(text: str) -> Iterator[None]:
    """Show a short text on the terminal, if there is one, while something loads: jax takes seconds on a slow machine."""
    if not sys.stderr.isatty():
        yield
        return
    print(text, end="\r", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        print(" " * len(text), end="\r", file=sys.stderr, flush=True)


def overview() -> str:
    """Return the commands by chapter, one line each."""
    lines = ["usage: jsrl COMMAND ..."]
    for chapter, commands in CHAPTERS.items():
        lines += ["", f"{chapter}:", *(f"  {name:<10} {text}" for name, text in commands.items())]
    return "\n".join([*lines, "", "`jsrl run ppo_cartpole` trains; `jsrl COMMAND --help` shows the options of one."])


def _hint(command: str) -> str:
    from jsrl.cli.experiments import files

    if command in files():
        return f"to run the experiment: jsrl run {command}"
    if command in DEV:
        return f"it is jsrl dev {command}"
    near = difflib.get_close_matches(command, COMMANDS, n=1)
    return f"did you mean {near[0]}?" if near else f"there are: {', '.join(COMMANDS)}."


UNKNOWN = re.compile(r"unrecognized arguments: .*?(--[\w-]+)")


def user_path(text: str) -> Path:
    """Return a path of the user as an absolute one: an environment may change the working directory."""
    return Path(text).expanduser().absolute()


def show_error(error: Exception, status: int = 2) -> int:
    """Print the error that ends a command; return its exit status. Texts of users cannot change the terminal."""
    print(printable(f"{type(error).__name__}: {error}"), file=sys.stderr)
    return status


class Parser(argparse.ArgumentParser):
    """argparse's parser whose refusals are one sentence, without the usage, and suggest an option."""

    def error(self, message: str) -> NoReturn:
        """Print the sentence and exit with status 2."""
        options = re.findall(r"--[\w-]+", self.format_usage())
        unknown = UNKNOWN.match(message)
        near = difflib.get_close_matches(unknown[1], options, n=1) if unknown else []
        hint = f"did you mean {near[0]}?" if near else f"`{self.prog} --help` lists the options."
        self.exit(2, f"{printable(f'{self.prog}: {message}; {hint}')}\n")

    def add_runs_dir(self) -> None:
        self.add_argument("--runs-dir", type=user_path, default="runs", help="folder of all runs (default: runs)")


def run_parser(command: str, about: str | None) -> Parser:
    """Return the parser of a command about one run: RUN and --runs-dir."""
    parser = Parser(prog=f"jsrl {command}", description=about)
    parser.add_argument("run", metavar="RUN", help="a path, EXPERIMENT/NAME, NAME, or EXPERIMENT for its newest run")
    parser.add_runs_dir()
    return parser


if __name__ == "__main__":
    sys.exit(main())
