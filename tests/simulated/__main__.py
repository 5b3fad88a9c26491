"""Run histories: `python -m tests.simulated --seed 7`, or `--histories 10000`."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from tests.simulated.histories import Outcome, tell

SHOWN = 400  # last events of a failing history


def text(outcome: Outcome) -> str:
    """Return what happened as lines of time, who and what."""
    lines = [f"{at_s:8.3f}  {who:<14}  {' '.join(map(str, what))}" for at_s, who, what in outcome.history]
    return "\n".join(lines[-SHOWN:])


def shortest(seed: int) -> list[int]:
    """Return the numbers of faults without any of which the history does not fail."""
    only = list(range(len(tell(seed).faults)))
    for number in list(only):
        fewer = [one for one in only if one != number]
        if tell(seed, fewer).why:
            only = fewer
    return only


def report(outcome: Outcome, only: Sequence[int] | None = None) -> str:
    """Return a failure, the command that repeats it with few faults, and what happened then."""
    kept = shortest(outcome.seed) if only is None else list(only)
    repeated = tell(outcome.seed, kept)
    numbers = " ".join(map(str, kept))
    again = f"python -m tests.simulated --seed {outcome.seed} --only {numbers}"
    return f"seed {outcome.seed}: {outcome.why}\nTo repeat it: {again}\n{text(repeated)}\n{repeated.why}"


def main() -> int:
    """Run the histories given on the command line; exit status 1 if one fails."""
    line = argparse.ArgumentParser(description=__doc__)
    line.add_argument("--seed", type=int, default=0, help="of the first history")
    line.add_argument("--histories", type=int, default=1)
    line.add_argument(
        "--only", type=int, nargs="*", help="numbers of the faults that happen, of those that the seed plans"
    )
    line.add_argument("--stop-after", type=int, default=5, help="failures (default: %(default)s)")
    given = line.parse_args()
    began_s, failed, told = time.perf_counter(), 0, 0
    for seed in range(given.seed, given.seed + given.histories):
        told += 1
        outcome = tell(seed, given.only)
        if outcome.why:
            failed += 1
            print(report(outcome, given.only), flush=True)
        elif given.histories == 1:
            print(text(outcome))
        if failed >= given.stop_after:
            break
    print(f"{told} histories, {failed} failed, {time.perf_counter() - began_s:.1f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
