"""Compare the CPU time per trained row of two commits: `python benchmarks/paired.py main HEAD --works serial tcp`.

Both commits are checked out side by side, and blocks of them alternate (A B, B A, ...). A block is either some updates of an
experiment in a process that stays warm, on one math thread (ppo_cartpole, ppo_halfcheetah, ppo_pong, sac_halfcheetah), or a
window of a whole run after its warm-up, with user and system time of all its processes:

  serial, served, ipc, tcp   ppo_cartpole in one process; served over shared memory, over ZeroMQ, over TCP with keys
  halfcheetah                ppo_halfcheetah in one process
  two_policies               league_tic_tac_toe, two learners under a director, in one process

The ratio is before / after, so a value below 1 means the change costs time. Measuring ends when the interval is +-2% and the
verdict is clear, or after 30 pairs. Verdicts, by the 95% interval of the median of the pairs' ratios:

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
from benchmarks.throughput.arithmetic import rates
from benchmarks.throughput.end_to_end import ENDLESS, Watched, command, watch

DRIVER = Path(__file__).with_name("paired_updates.py")
SLOWED = Path(__file__).with_name("slowed")
UPDATES = ("ppo_cartpole", "ppo_halfcheetah", "ppo_pong", "sac_halfcheetah")
RUNS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "serial": ("ppo_cartpole", "serial", ()),
    "served": ("ppo_cartpole", "served", ()),
    "ipc": ("ppo_cartpole", "served", ("--transport", "zeromq")),
    "tcp": ("ppo_cartpole", "served", ("--transport", "zeromq", "--encrypt", "true")),
    "halfcheetah": ("ppo_halfcheetah", "serial", ()),
    "two_policies": ("league_tic_tac_toe", "serial", ()),
}
LIMIT = 0.97
WIDTH = 0.02  # of half the interval
MIN_PAIRS = 6
PLANTED = 0.05
STATUS = {"passed": 0, "failed": 1, "not resolved": 3}


class Commit:
    """One checkout: a process that makes updates, and whole runs."""

    def __init__(self, checkout: Path) -> None:
        self._checkout = checkout
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

    def window(self, name: str, seconds: float, warm_up_s: float, extra: float = 0.0) -> Figures:
        """Return the figures of a window of a whole run."""
        experiment, placement, options = RUNS[name]
        path = f"{SLOWED}:{self._checkout}" if extra else str(self._checkout)
        with tempfile.TemporaryDirectory(prefix="jsrl-paired-") as folder:
            words = command(experiment, placement, Path(folder), ENDLESS, options)
            words[1] = str(self._checkout / "experiments" / "run.py")
            with Watched(words, PYTHONPATH=path, JAX_PLATFORMS="cpu", JSRL_SLOWED=str(extra)) as run:
                samples, _ = watch(run, Path(folder), seconds, warm_up_s)
                run.leave(30.0)
        return {"us_per_row": 1e6 / rates(samples)["env_steps_per_cpu_s"]}

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


def enough(record: Record) -> bool:
    """Return whether the interval is narrow, and its verdict clear."""
    ratio = paired_ratio(record, "before", "after")
    narrow = ratio["pairs"] >= MIN_PAIRS and (ratio["high"] - ratio["low"]) / 2 <= WIDTH
    return narrow and verdict(ratio) != "not resolved"


def arm(name: str, commit: Commit, given: argparse.Namespace, slower: float) -> Callable[[], Figures]:
    """Return the call that measures one block."""
    if name in RUNS:
        return lambda: commit.window(name, given.seconds, given.warm_up_s, slower)
    commit.block(name, 1)
    number = max(1, round(2 * given.block_cpu_s / commit.block(name, 2)["cpu_s"]))
    return lambda: commit.block(name, number, slower)


def measure(name: str, before: Commit, after: Commit, given: argparse.Namespace, extra: float = 0.0) -> str:
    """Measure one work in pairs, print the ratio, and return the verdict."""
    record = Record("paired", "us_per_row", {})
    arms = [Arm("before", arm(name, before, given, 0.0)), Arm("after", arm(name, after, given, extra))]
    alternate(record, arms, given.pairs, show=False, enough=lambda: enough(record))
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
def arms(before: str, after: str) -> Iterator[tuple[Commit, Commit]]:
    """Yield the processes of two commits."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        both = []
        for side, commit in (("before", before), ("after", after)):
            both.append(Commit(stack.enter_context(checked_out(commit, Path(folder, side)))))
            stack.callback(both[-1].close)
        yield both[0], both[1]


def main(words: list[str] | None = None) -> int:
    """Run the command of the command line."""
    line = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    line.add_argument("before", nargs="?", default="main", help="a commit (default: %(default)s)")
    line.add_argument("after", nargs="?", default="HEAD", help="a commit (default: %(default)s)")
    line.add_argument("--self-check", nargs="?", const="HEAD", metavar="COMMIT", help="check the measurement itself")
    line.add_argument("--works", nargs="+", choices=(*UPDATES, *RUNS), default=list(UPDATES), metavar="NAME")
    line.add_argument("--pairs", type=int, default=30, help="of blocks, at most (default: %(default)s)")
    line.add_argument(
        "--block-cpu-s", type=float, default=0.3, help="CPU time of a block of updates (default: %(default)s)"
    )
    line.add_argument("--seconds", type=float, default=10.0, help="of a run's window (default: %(default)s)")
    line.add_argument(
        "--warm-up-s", type=float, default=4.0, help="of a run, after its first update (default: %(default)s)"
    )
    given = line.parse_args(words)
    return self_check(given) if given.self_check else compare(given)


if __name__ == "__main__":
    sys.exit(main())
