"""Record the bits of trained params and compare them later: did a change alter the arithmetic?

  python benchmarks/golden.py record --out golden.json     train every case, write name -> seed -> hash
  python benchmarks/golden.py compare golden.json          train again, print the differences; exit status 1 if any

Each case is a serial run in a separate process, so the result depends only on the code, the versions and the machine.
A hash covers the final params (values, shapes and types of the leaves) and not their names: a rename changes nothing.
Compare on the machine that recorded: another processor may round differently.
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
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

from jsrl.runs.provenance import environment_facts

STEPS = 20_000
SEEDS = (0, 1)
CASES: dict[str, list[str]] = {
    "ppo_cartpole": ["ppo_cartpole", "--stop-at-return", "None"],
    "ppo_memory": ["ppo_memory"],
    "ppo_masked": ["ppo", "--env.id", "probe:masked"],  # a dict observation with an action mask
    "impala": ["impala"],
    "dqn_cartpole": ["dqn_cartpole", "--stop-at-return", "None"],
    "r2d2_memory": ["r2d2", "--env.id", "probe:memory"],
    "sac_pendulum": ["sac_pendulum", "--stop-at-return", "None", "--replay.samples-per-insert", "32"],
    "td3": ["td3", "--replay.samples-per-insert", "32"],  # an update per 8 env steps: a minute instead of ten
}
QUIETLY = ["--no-evaluator.enabled", "--profile", "none", "--display", "quiet"]


def digest(params: Any) -> str:
    """Return the SHA-256 of the leaves of a tree of arrays, independent of their names and order."""
    import jax
    import numpy as np

    leaves = [np.ascontiguousarray(leaf) for leaf in jax.tree.leaves(params)]
    each = sorted(hashlib.sha256(f"{leaf.dtype.str}{leaf.shape}".encode() + leaf.tobytes()).digest() for leaf in leaves)
    return hashlib.sha256(b"".join(each)).hexdigest()


def hash_of(words: list[str], **variables: str) -> str:
    """Run a command of `jsrl run` in a separate process and return the hash of its final params.

    Raises:
      SystemExit: the run failed; its output has been printed.
    """
    from jsrl.snapshots.store import SnapshotStore

    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    with tempfile.TemporaryDirectory() as runs_dir:
        asked = [str(ROOT / "experiments" / "run.py"), *words, *QUIETLY, "--runs-dir", runs_dir, "--run-name", "run"]
        ran = subprocess.run([sys.executable, *asked], env=environment, capture_output=True, text=True, check=False)
        if ran.returncode != 0:
            sys.exit(f"{shlex.join(words)} failed with status {ran.returncode}:\n{ran.stdout}{ran.stderr}")
        folder = next(Path(runs_dir).glob("*/run"))
        return digest(SnapshotStore(folder / "snapshots" / "state").load("latest").tree["state"]["params"])


def train(name: str, seed: int, steps: int) -> str:
    """Train a case and return the hash of its final params."""
    words = [*CASES[name], "--placement", "serial", "--seed", str(seed), "--total-env-steps", str(steps)]
    return hash_of(words, JAX_PLATFORMS="cpu", JSRL_PROFILES="")


def hashes(names: list[str], seeds: list[int], steps: int) -> dict[str, dict[str, str]]:
    """Return name -> seed -> hash, printing each one."""
    found: dict[str, dict[str, str]] = {}
    for name in names:
        for seed in seeds:
            begin = time.monotonic()
            found.setdefault(name, {})[str(seed)] = text = train(name, seed, steps)
            print(f"{name} seed {seed}: {text[:16]}  ({time.monotonic() - begin:.0f} s)", flush=True)
    return found


def differences(before: dict[str, dict[str, str]], after: dict[str, dict[str, str]]) -> list[str]:
    """Return "NAME seed SEED" of every hash of `after` that is not in `before`."""
    return [
        f"{name} seed {seed}"
        for name, seeds in after.items()
        for seed, text in seeds.items()
        if before.get(name, {}).get(seed) != text
    ]


def other_machine(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return the differences of the machine and the versions, which can explain different bits."""
    pairs = [("python", before["python"], now["python"])]
    pairs += [(what, before["hardware"][what], now["hardware"][what]) for what in ("processor", "cores")]
    packages = sorted({*before["packages"], *now["packages"]} - {"jsrl"})
    pairs += [(name, before["packages"].get(name), now["packages"].get(name)) for name in packages]
    return [f"{what}: {old} before, {new} now" for what, old, new in pairs if old != new]


def record(given: argparse.Namespace) -> int:
    """Train and write the file."""
    names = given.only or list(CASES)
    found = hashes(names, given.seeds, given.steps)
    facts = {key: fact for key, fact in environment_facts(ROOT).items() if key != "working_directory"}
    Path(given.out).write_text(json.dumps({"steps": given.steps, "hashes": found, "facts": facts}, indent=1) + "\n")
    return 0


def compare(given: argparse.Namespace) -> int:
    """Train the cases of the file again and print the differences."""
    kept = json.loads(Path(given.file).read_text())
    for line in other_machine(kept["facts"], environment_facts(ROOT)):
        print(f"not the same machine: {line}")
    names = [name for name in kept["hashes"] if not given.only or name in given.only]
    seeds = sorted({int(seed) for name in names for seed in kept["hashes"][name]})
    changed = differences(kept["hashes"], hashes(names, seeds, kept["steps"]))
    print("\n".join([f"DIFFERS: {line}" for line in changed]) or f"same bits: {', '.join(names)}")
    return 1 if changed else 0


def main(words: list[str] | None = None) -> int:
    """Run the command of the command line."""
    line = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = line.add_subparsers(required=True)
    recording = parts.add_parser("record", help="train every case and write the hashes")
    recording.add_argument("--out", required=True, metavar="FILE")
    recording.add_argument("--steps", type=int, default=STEPS, help="env steps of each run (default: %(default)s)")
    recording.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    recording.set_defaults(call=record)
    comparing = parts.add_parser("compare", help="train again and compare with a file")
    comparing.add_argument("file", metavar="FILE")
    comparing.set_defaults(call=compare)
    for part in (recording, comparing):
        part.add_argument("--only", nargs="+", choices=list(CASES), metavar="NAME", help="some of the cases")
    given = line.parse_args(words)
    return int(given.call(given))


if __name__ == "__main__":
    sys.exit(main())
