"""Compare the bits of trained params of two commits: `python benchmarks/golden.py BEFORE AFTER`.

Both commits are checked out, and every case is trained by both, one after the other: serial runs in processes of their own,
so that a result depends only on the code, the versions and the machine. Prints a line per case; exit status 1 if any differs.
A hash covers the params of every policy (values, shapes and types of the leaves), not their names: a rename changes nothing.

BEFORE may also be a file that this command has written on the same machine (`--json`): then only AFTER is trained.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.paired import checked_out

TAG = "6eb8cb0b"
STEPS = 20_000
EIGHTH = ("sac_pendulum", "td3")  # an update per env step: an eighth of the steps takes seconds, not minutes
CASES: dict[str, tuple[str, ...]] = {
    "ppo_cartpole": ("ppo_cartpole", "--stop-at-return", "none"),
    "ppo_memory": ("ppo_memory",),
    "ppo_masked": ("ppo", "--env.id", "probe:masked"),  # a dict observation with an action mask
    "impala": ("impala",),
    "dqn_device": ("dqn_cartpole", "--stop-at-return", "none"),
    "dqn_worker": ("dqn_cartpole", "--stop-at-return", "none", "--replay.kind", "host"),
    "r2d2_memory": ("r2d2", "--env.id", "probe:memory"),
    "sac_pendulum": ("sac_pendulum", "--stop-at-return", "none"),
    "td3": ("td3", "--settings", "none", "--stop-at-return", "none"),
    "two_policies": ("league_tic_tac_toe", "--director.min-env-steps", "2000", "--director.max-env-steps", "6000"),
    "resumed": ("ppo_cartpole", "--stop-at-return", "none", "--snapshots.exact", "true"),  # half, then the rest
}
POLICIES = {"two_policies": ("main", "hunter")}
QUIETLY = ("--no-evaluator.enabled", "--display", "quiet")
# The public surface alone, as it must work in both commits.
READ = """
import sys, jsrl
from benchmarks.golden import digest
policies = [jsrl.load_policy(sys.argv[1], "latest", policy=name) for name in sys.argv[2:] or [""]]
print(digest([[policy.params, policy.version] for policy in policies]))
"""


def digest(params: Any) -> str:
    """Return the SHA-256 of the leaves of a tree of arrays, independent of their names and order."""
    import jax
    import numpy as np

    leaves = [np.ascontiguousarray(leaf) for leaf in jax.tree.leaves(params)]
    each = sorted(hashlib.sha256(f"{leaf.dtype.str}{leaf.shape}".encode() + leaf.tobytes()).digest() for leaf in leaves)
    return hashlib.sha256(b"".join(each)).hexdigest()


def python(checkout: Path, words: list[str], variables: dict[str, str]) -> str:
    """Run Python on the sources of a checkout; return its output.

    Raises:
      SystemExit: it failed; its output is in the message.
    """
    environment = {**os.environ, "PYTHONPATH": str(checkout), **variables}
    ran = subprocess.run(
        [sys.executable, *words], env=environment, capture_output=True, text=True, cwd=checkout, check=False
    )
    if ran.returncode != 0:
        sys.exit(f"{checkout.name}: {shlex.join(words)} failed with status {ran.returncode}:\n{ran.stdout}{ran.stderr}")
    return ran.stdout.strip()


def hash_of(
    checkout: Path, options: Sequence[str], more: Sequence[str] = (), policies: Sequence[str] = (), **variables: str
) -> str:
    """Train with the sources of a checkout and return the hash of the final params.

    Args:
      options: of `jsrl run`, its name included. more: if given, the run is then resumed with these options.
      policies: names of those to hash, in a run of several. variables: of the environment.
    """
    script = str(checkout / "experiments" / "run.py")
    with tempfile.TemporaryDirectory() as folder:
        python(checkout, [script, *options, *QUIETLY, "--runs-dir", folder, "--run-name", "run"], variables)
        run = str(next(Path(folder).glob("*/run")))
        if more:
            python(checkout, [script, "--resume", run, *more, "--display", "quiet"], variables)
        return python(checkout, ["-c", READ, run, *policies], variables)


def train(checkout: Path, name: str, seed: int, steps: int) -> str:
    """Train a case with the sources of a checkout and return the hash of its final params."""
    total = ["--total-env-steps", str(steps // 8 if name in EIGHTH else steps)]
    first = total if name != "resumed" else ["--total-env-steps", str(steps // 2)]
    options = [*CASES[name], "--placement", "serial", "--seed", str(seed), *first]
    more = total if name == "resumed" else ()
    return hash_of(checkout, options, more, POLICIES.get(name, ()), JAX_PLATFORMS="cpu")


def compare(
    given: argparse.Namespace, known: dict[str, str], before: Path | None, after: Path
) -> dict[str, dict[str, str]]:
    """Return case -> side -> hash, printing a line per case."""
    found: dict[str, dict[str, str]] = {}
    for name in given.cases:
        for seed in given.seeds:
            case, begin = f"{name} seed {seed}", time.monotonic()
            old = train(before, name, seed, given.steps) if before else known[case]
            new = train(after, name, seed, given.steps)
            found[case] = {"before": old, "after": new}
            verdict = "same" if old == new else "DIFFERS"
            print(f"{case:<22} {old[:12]} {new[:12]}  {verdict}  ({time.monotonic() - begin:.0f} s)", flush=True)
    return found


def main(words: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    line = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    line.add_argument("before", nargs="?", default=TAG, help="a commit or a file (default: %(default)s)")
    line.add_argument("after", nargs="?", default="HEAD", help="a commit (default: %(default)s)")
    line.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), metavar="NAME")
    line.add_argument("--seeds", type=int, nargs="+", default=[0])
    line.add_argument("--steps", type=int, default=STEPS, help="env steps of each run (default: %(default)s)")
    line.add_argument("--json", type=Path, metavar="FILE", help="write the hashes")
    given = line.parse_args(words)
    known: dict[str, str] = {}
    if Path(given.before).is_file():
        kept = json.loads(Path(given.before).read_text())
        given.before, given.steps = kept["before"], kept["steps"]
        known = {case: sides["before"] for case, sides in kept["hashes"].items()}
        given.seeds = sorted({int(case.rsplit(maxsplit=1)[1]) for case in known})
    with tempfile.TemporaryDirectory() as name, checked_out(given.after, Path(name, "after")) as after:
        if known:
            found = compare(given, known, None, after)
        else:
            with checked_out(given.before, Path(name, "before")) as before:
                found = compare(given, known, before, after)
    if given.json:
        facts = {"before": given.before, "after": given.after, "steps": given.steps, "hashes": found}
        given.json.write_text(json.dumps(facts, indent=1) + "\n")
    return int(any(sides["before"] != sides["after"] for sides in found.values()))


if __name__ == "__main__":
    sys.exit(main())
