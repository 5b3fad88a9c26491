"""The parser of the commands other than `jsrl run`."""

from __future__ import annotations

import argparse
import difflib
import re
from typing import NoReturn

UNKNOWN = re.compile(r"unrecognized arguments: .*?(--[\w-]+)")


class Parser(argparse.ArgumentParser):
    """argparse's parser whose refusals are one sentence, without the usage, and suggest an option."""

    def error(self, message: str) -> NoReturn:
        """Print the sentence and exit with status 2."""
        options = re.findall(r"--[\w-]+", self.format_usage())
        unknown = UNKNOWN.match(message)
        near = difflib.get_close_matches(unknown[1], options, n=1) if unknown else []
        hint = f"did you mean {near[0]}?" if near else f"`{self.prog} --help` lists the options."
        self.exit(2, f"{self.prog}: {message}; {hint}\n")
