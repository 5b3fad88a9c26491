"""Insert every fault of the table into a copy of the sources, one at a time: `python tests/faults/plant.py`.

Runs the tests of a fault first without any fault (they must pass), then with each. A fault whose tests still pass
has survived: the suite has a gap. Exit status 1 if any survived.
"""

from __future__ import annotations

import argparse
import functools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.faults.table import FAULTS, Fault  # noqa: E402 (where it lies is said above)

PASSED, FAILED = 0, 1  # of pytest
COPIED = ("jsrl", "tests", "experiments", "benchmarks", "pyproject.toml")


@functools.cache
def sources(root: Path) -> dict[Path, str]:
    """Return the files below jsrl/ and their texts."""
    return {path: path.read_text() for path in sorted((root / "jsrl").rglob("*.py"))}


def places(fault: Fault, root: Path) -> list[Path]:
    """Return the files below jsrl/ that contain a fault's old text, once per occurrence."""
    return [path for path, text in sources(root).items() for _ in range(text.count(fault.old))]


def copy_sources(folder: Path) -> None:
    """Copy the files that tests need."""
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "results"))
        else:
            shutil.copy2(ROOT / name, folder / name)


def run_tests(folder: Path, tests: tuple[str, ...], timeout_s: float) -> tuple[int, str]:
    """Return pytest's exit status (1 on a time-out) and the line that names the failure."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--tb=no", *tests]
    environment = {**os.environ, "PYTHONPATH": str(folder), "JAX_PLATFORMS": "cpu"}
    try:
        ran = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        return FAILED, f"no end within {timeout_s:g} s"
    failed = [line for line in ran.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return ran.returncode, failed[0][:110] if failed else ran.stdout.strip().splitlines()[-1][:110]


def plant(fault: Fault, folder: Path, given: argparse.Namespace) -> bool:
    """Insert a fault, run its tests, remove it again; return whether it was caught."""
    (path,) = places(fault, folder)
    text, since, began = path.read_text(), path.stat(), time.monotonic()
    path.write_text(text.replace(fault.old, fault.new))  # with a new mtime, so that no bytecode of the old text is used
    try:
        status, told = run_tests(folder, fault.tests, given.timeout_s)
    finally:
        path.write_text(text)
        os.utime(path, ns=(since.st_atime_ns, since.st_mtime_ns))
    verdict = {PASSED: "SURVIVED", FAILED: "caught"}.get(status, f"not run, status {status}")
    print(f"{verdict:<10} {time.monotonic() - began:4.0f} s  {fault.name}\n           {told}", flush=True)
    return status == FAILED


def main() -> int:
    """Insert the faults given on the command line."""
    line = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    line.add_argument("--only", nargs="+", metavar="TEXT", help="faults whose name holds one of these")
    line.add_argument("--timeout-s", type=float, default=300.0, help="of each run (default: %(default)s)")
    given = line.parse_args()
    chosen = [fault for fault in FAULTS if not given.only or any(text in fault.name for text in given.only)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copy_sources(folder)
        clean = tuple(dict.fromkeys(test for fault in chosen for test in fault.tests))
        status, told = run_tests(folder, clean, 4 * given.timeout_s)
        if status != PASSED:
            print(f"without any fault, the tests end with status {status}: {told}")
            return 2
        missed = [fault.name for fault in chosen if not plant(fault, folder, given)]
    print(f"{len(chosen) - len(missed)} of {len(chosen)} caught" + "".join(f"\nnot caught: {name}" for name in missed))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
