"""Compare the updates of two commits: `python benchmarks/paired.py main HEAD`.

Both commits are checked out side by side, and each makes the updates of some experiments in a separate process that
stays warm. Blocks alternate (A B, B A, ...). The figure is CPU microseconds per trained row, on one math thread; the ratio
is before / after, so a value below 1 means the change costs time. Verdicts, by the 95% interval of the median of the pairs'
ratios:

  passed         the lower bound is above 0.97
  failed         the upper bound is below 0.97 (exit status 1)
  not resolved   neither: measure more pairs, on a quieter machine (exit status 3)

`--self-check [COMMIT]` checks the measurement itself: a commit against itself must pass, and with a planted slowdown of 5%
fail.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

from benchmarks.srl.blocks import Arm, Figures, Record, alternate, paired_ratio

DRIVER = Path(__file__).with_name("paired_updates.py")
WORKS = ("ppo_cartpole", "ppo_halfcheetah", "ppo_pong", "sac_halfcheetah")
LIMIT = 0.97
PLANTED = 0.05
STATUS = {"passed": 0, "failed": 1, "not resolved": 3}


class Updates:
    """A process that makes updates of one checkout."""

    def __init__(self, checkout: Path) -> None:
        own = checkout / "benchmarks" / DRIVER.name  # a commit's own driver uses the names of that commit
        environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(checkout)}
        self._process = subprocess.Popen(
            [sys.executable, str(own if own.exists() else DRIVER), str(checkout)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=checkout,
        )

    def block(self, name: str, updates: int, extra: float = 0.0) -> Figures:
        """Return the figures of one block.

        Raises:
          SystemExit: the process has ended; its error is printed above.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{name} {updates} {extra}\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            sys.exit(f"the process that makes updates of {name} ended with status {self._process.wait()}; see above.")
        return dict(json.loads(line))

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)


@contextlib.contextmanager
def checked_out(commit: str, folder: Path) -> Iterator[Path]:
    """Yield a worktree of a commit, which is removed afterwards."""
    git = ["git", "-C", str(ROOT), "worktree"]
    subprocess.run([*git, "add", "--quiet", "--detach", str(folder), commit], check=True)
    try:
        yield folder
    finally:
        subprocess.run([*git, "remove", "--force", str(folder)], check=True)


def verdict(ratio: dict[str, float]) -> str:
    """Return the verdict of an interval of before / after."""
    if ratio["low"] > LIMIT:
        return "passed"
    return "failed" if ratio["high"] < LIMIT else "not resolved"


def measure(name: str, before: Updates, after: Updates, given: argparse.Namespace, extra: float = 0.0) -> str:
    """Measure one experiment's updates in pairs, print the ratio, and return the verdict."""
    for updates in (before, after):
        updates.block(name, 1)
    one = before.block(name, 2)["cpu_s"] / 2
    number = max(1, round(given.seconds / one))

    def arm(updates: Updates, slower: float) -> Callable[[], Figures]:
        return lambda: updates.block(name, number, slower)

    record = Record("paired", "us_per_row", {})
    alternate(record, [Arm("before", arm(before, 0.0)), Arm("after", arm(after, extra))], given.pairs, show=False)
    ratio = paired_ratio(record, "before", "after")
    text = verdict(ratio)
    print(
        f"{name:<16} {record.median('before'):9.3f} us/row before  {record.median('after'):9.3f} after   "
        f"ratio {ratio['median']:.3f} ({ratio['low']:.3f} - {ratio['high']:.3f}, {ratio['pairs']} pairs)  {text}",
        flush=True,
    )
    return text


def compare(given: argparse.Namespace) -> int:
    """Compare two commits; return the exit status of the worst verdict."""
    with arms(given.before, given.after) as (before, after):
        verdicts = {measure(name, before, after, given) for name in given.works}
    return 1 if "failed" in verdicts else max(STATUS[word] for word in verdicts)


def self_check(given: argparse.Namespace) -> int:
    """Compare a commit with itself, and with itself slowed down; return 0 if both verdicts are as expected."""
    wrong = []
    with arms(given.self_check, given.self_check) as (before, after):
        for name in given.works:
            for extra, expected in ((0.0, "passed"), (PLANTED, "failed")):
                if measure(name, before, after, given, extra) != expected:
                    wrong.append(f"{name} with a planted slowdown of {extra:.0%} is not {expected!r}")
    print("\n".join(wrong) or "self-check: as expected")
    return 1 if wrong else 0


@contextlib.contextmanager
def arms(before: str, after: str) -> Iterator[tuple[Updates, Updates]]:
    """Yield the processes of two commits."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        both = []
        for side, commit in (("before", before), ("after", after)):
            updates = Updates(stack.enter_context(checked_out(commit, Path(folder, side))))
            stack.callback(updates.close)
            both.append(updates)
        yield both[0], both[1]


def main(words: list[str] | None = None) -> int:
    """Run the command of the command line."""
    line = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    line.add_argument("before", nargs="?", default="main", help="a commit (default: %(default)s)")
    line.add_argument("after", nargs="?", default="HEAD", help="a commit (default: %(default)s)")
    line.add_argument("--self-check", nargs="?", const="HEAD", metavar="COMMIT", help="check the measurement itself")
    line.add_argument("--works", nargs="+", choices=WORKS, default=list(WORKS), metavar="NAME")
    line.add_argument("--pairs", type=int, default=30, help="of blocks (default: %(default)s)")
    line.add_argument("--seconds", type=float, default=0.3, help="CPU time of a block (default: %(default)s)")
    given = line.parse_args(words)
    return self_check(given) if given.self_check else compare(given)


if __name__ == "__main__":
    sys.exit(main())
