"""The parser of the commands other than `jsrl run`."""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from pathlib import Path
from typing import NoReturn

from jsrl.services.runs.door import printable

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
