"""`jsrl list`: the available experiments, including those in the working directory's folder `configs`."""

from __future__ import annotations

from collections.abc import Sequence

from jsrl.cli.arguments import Parser
from jsrl.cli.experiments import summaries


def main(arguments: Sequence[str] | None = None) -> int:
    Parser(prog="jsrl list", description=__doc__).parse_args(arguments)
    print(listing())
    return 0


def listing() -> str:
    found = summaries()
    width = max(map(len, found))
    return "\n".join(f"  {name:<{width}}  {text}" for name, text in found.items())
