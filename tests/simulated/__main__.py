"""Run histories: `python -m tests.simulated --seed 7`, or `--histories 10000`; `--of games` and `--of ranks` are small ones.

Prints failures with the command that repeats them, and what happened: time, who, what.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Collection, Sequence

from tests.simulated import games, ranks, runs
from tests.simulated.world import Result

TELL = {"runs": runs.tell, "games": games.tell, "ranks": ranks.tell}
SHOWN = 400  # last events of a failing history


def text(result: Result) -> str:
    """Return what happened as lines of time, who and what."""
    lines = [f"{at_s:8.3f}  {who:<14}  {' '.join(map(str, what))}" for at_s, who, what in result.history]
    return "\n".join(lines[-SHOWN:])


def shortest(of: str, seed: int) -> Collection[int]:
    """Return the numbers of faults without any of which the history does not fail."""
    only = list(range(len(TELL[of](seed).faults)))
    for number in list(only):
        fewer = [one for one in only if one != number]
        if TELL[of](seed, fewer).why:
            only = fewer
    return only


def report(of: str, result: Result, only: Collection[int] | None = None) -> str:
    """Return a failure, the command that repeats it with few faults, and what happened then."""
    kept = shortest(of, result.seed) if only is None else only
    again = f"python -m tests.simulated --of {of} --seed {result.seed} --only {' '.join(map(str, kept))}"
    repeated = TELL[of](result.seed, kept)
    return f"seed {result.seed}: {result.why}\nTo repeat it: {again}\n{text(repeated)}\n{repeated.why}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the histories given on the command line; return 1 if one fails."""
    line = argparse.ArgumentParser(prog="python -m tests.simulated", description=__doc__)
    line.add_argument("--of", choices=TELL, default="runs", help="(default: %(default)s)")
    line.add_argument("--seed", type=int, default=0, help="of the first history")
    line.add_argument("--histories", type=int, default=1)
    line.add_argument(
        "--only", type=int, nargs="*", help="numbers of the faults that happen, of those that the seed plans"
    )
    line.add_argument("--stop-after", type=int, default=5, help="failures (default: %(default)s)")
    line.add_argument("--only-say", action="store_true", help="that a history failed, without what happened")
    given = line.parse_args(arguments)
    began_s, failed, told = time.perf_counter(), 0, 0
    for seed in range(given.seed, given.seed + given.histories):
        told += 1
        result = TELL[given.of](seed, given.only)
        if result.why:
            failed += 1
            said = f"seed {seed}: {result.why}" if given.only_say else report(given.of, result, given.only)
            print(said, flush=True)
        elif given.histories == 1:
            print(text(result))
        if failed >= given.stop_after:
            break
    print(f"{told} histories of {given.of}, {failed} failed, {time.perf_counter() - began_s:.1f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
