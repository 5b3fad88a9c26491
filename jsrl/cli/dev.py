"""`jsrl dev COMMAND ...`: measure, simulate and test an experiment; `jsrl dev` alone lists the commands."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from jsrl.cli.main import DEV, load


def main(arguments: Sequence[str] | None = None) -> int:
    args = list(sys.argv[2:] if arguments is None else arguments)
    if not args or args[0] in ("-h", "--help"):
        lines = (f"  {name:<14} {text}" for name, text in DEV.items())
        print("\n".join(["usage: jsrl dev COMMAND ...", "", *lines]))
        return 0
    if args[0] not in DEV:
        print(f"ConfigError: there is no command dev {args[0]!r}; there are: {', '.join(DEV)}.", file=sys.stderr)
        return 2
    return int(load(args[0]).main(args[1:]))
