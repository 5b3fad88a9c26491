"""Run commands of `jsrl run` twice or more and compare the bits of their final params.

  python benchmarks/repeats.py "ppo --placement serial --deterministic" "ppo --placement served --deterministic"

Both commands run twice on this machine's default devices. A hash is printed for each run. Exit status 1: two runs of one
command have different bits. Several commands show whether placements agree with each other.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

from benchmarks.golden import hash_of
from jsrl.services.runs.provenance import environment_facts


def main(words: list[str] | None = None) -> int:
    """Run every command, print the hashes, and return 1 if two runs of one command differ."""
    line = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    line.add_argument("commands", nargs="+", metavar="'NAME [options]'", help="arguments of jsrl run, in one word")
    line.add_argument("--times", type=int, default=2, help="runs of each command (default: %(default)s)")
    line.add_argument("--json", type=Path, metavar="FILE", help="write hashes and machine there")
    given = line.parse_args(words)
    found: dict[str, list[str]] = {}
    for command in given.commands:
        for _ in range(given.times):
            begin = time.monotonic()
            found.setdefault(command, []).append(hash_of(ROOT, shlex.split(command)))
            print(f"{found[command][-1][:16]}  {command}  ({time.monotonic() - begin:.0f} s)", flush=True)
    differing = [command for command, hashes in found.items() if len(set(hashes)) > 1]
    print("\n".join([f"DIFFERS: {command}" for command in differing]) or "every command repeats its bits")
    if given.json:
        given.json.write_text(json.dumps({"hashes": found, "facts": environment_facts(ROOT)}, indent=1) + "\n")
    return int(bool(differing))


if __name__ == "__main__":
    sys.exit(main())
