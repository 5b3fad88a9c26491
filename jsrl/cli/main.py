"""`jsrl COMMAND ...`: every command of jsrl; `jsrl` alone lists them."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import io
import os
import select
import signal
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import jsrl
from jsrl.cli.arguments import Parser
from jsrl.interrupts import remembered, repeated

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
        "dev": "measure, simulate and test your experiment: bench, simulate, chaos, replay-update",
    },
}
COMMANDS = {name: text for chapter in CHAPTERS.values() for name, text in chapter.items()}
DEV = {  # after `jsrl dev`
    "bench": "measure an experiment's speed in each placement on this machine",
    "simulate": "predict a run's speed on other hosts, and what would limit it",
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
    command = args[0]
    if command not in COMMANDS:
        print(f"ConfigError: there is no command {command!r}; {_hint(command)}", file=sys.stderr)
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


def run_parser(command: str, about: str | None) -> Parser:
    """Return the parser of a command about one run: RUN and --runs-dir."""
    parser = Parser(prog=f"jsrl {command}", description=about)
    parser.add_argument("run", metavar="RUN", help="a path, EXPERIMENT/NAME, NAME, or EXPERIMENT for its newest run")
    parser.add_runs_dir()
    return parser


if __name__ == "__main__":
    sys.exit(main())
