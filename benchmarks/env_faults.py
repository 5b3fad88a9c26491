"""The effect of a failing environment on the other actors: `python benchmarks/env_faults.py`.

Four actors play CartPole for IMPALA (asynchronous, `served` unless another placement is given). In one of them the
environment misbehaves every 5 seconds: it raises, returns NaN, sleeps 60 s, exits, crashes in C code, prints 10 MB, or
allocates 2 GB. The figure is the env steps/s of the other three, compared with a run without faults. Arms alternate (A B, B A,
...); ratios are medians over rounds with a bootstrap interval of 95%. The others must keep 90% of their speed: the exit
status is 1 if the whole interval lies below. Results go to benchmarks/results/env-faults.json.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

from benchmarks.endurance.faulty import MISDEEDS
from benchmarks.srl.blocks import Arm, Figures, Record, alternate, paired_ratio, ratio_text
from benchmarks.throughput.alone import split_options
from benchmarks.throughput.end_to_end import ENDLESS, START_LIMIT_S, BenchmarkError, Watched, command

LIMIT, NONE = 0.9, "none"
PLAYING = 2000  # env steps after which a process runs at full speed
ACTORS = 4
OPTIONS = ("--env.id", "benchmarks.endurance.faulty:Faulty", "--num-actors", str(ACTORS), "--num-envs", "16")
REPAIR = ("--env.on-fault", "auto", "--env.fault-limit", "1000", "--restart", "1000", "--actor.step-deadline-s", "2")
SMALL = ("--rollout-length", "16", "--batch-envs", "4")


def counts(folder: Path) -> dict[str, tuple[float, int, bool]]:
    """Return of each process: seconds, env steps, whether it is the one that misbehaves."""
    found = {}
    for path in folder.glob("[0-9]*"):
        seconds, steps, chosen = path.read_text().split()
        found[path.name] = (float(seconds), int(steps), chosen == "1")
    return found


def others(before: dict[str, tuple[float, int, bool]], after: dict[str, tuple[float, int, bool]]) -> float:
    """Return the env steps/s of an actor that does not misbehave: the mean over those that ran all the time."""
    steady = [pid for pid in before if pid in after and not after[pid][2]]
    found = [(after[pid][1] - before[pid][1]) / (after[pid][0] - before[pid][0]) for pid in steady]
    return sum(found) / len(found)


def faulty_run(misdeed: str, given: argparse.Namespace) -> Arm:
    """Return the arm in which one actor's environments misbehave in this way."""

    def block() -> Figures:
        with tempfile.TemporaryDirectory(prefix="jsrl-faults-") as name:
            folder, runs = Path(name, "counts"), Path(name, "runs")
            folder.mkdir()
            words = command("impala", given.placement, runs, ENDLESS, [*OPTIONS, *SMALL, *REPAIR, *given.options])
            words += ["--env.kwargs.misdeed", misdeed]
            with Watched(words, PYTHONPATH=str(ROOT), JSRL_FAULTS=str(folder)) as run:
                deadline_s = time.monotonic() + START_LIMIT_S
                while sum(steps >= PLAYING for _, steps, _ in counts(folder).values()) < ACTORS:
                    run.check()
                    if time.monotonic() > deadline_s:
                        raise BenchmarkError(
                            f"not all actors are playing after {START_LIMIT_S:g} s:\n{run.error_output()}"
                        )
                    time.sleep(0.1)
                (folder / "begin").touch()
                time.sleep(given.warm_up_s)
                before = counts(folder)
                time.sleep(given.seconds)
                run.check()
                after = counts(folder)
                alive = sum(Path("/proc", pid).exists() for pid in after)
                run.leave(30.0)
        return {"others_steps_per_s": others(before, after), "processes_lost": float(len(after) - alive)}

    return Arm(misdeed, block)


def main() -> int:
    """Measure, print and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--misdeeds", default=",".join(MISDEEDS))
    parser.add_argument("--placement", default="served")
    parser.add_argument("--seconds", type=float, default=15.0, help="measured in each block")
    parser.add_argument("--warm-up-s", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "results" / "env-faults.json")
    words, options = split_options(sys.argv[1:])
    given = parser.parse_args(words, argparse.Namespace(options=options))
    misdeeds = given.misdeeds.split(",")
    unknown = [name for name in misdeeds if name not in MISDEEDS]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; choose from {', '.join(MISDEEDS)}")
    recorded = {"placement": given.placement, "seconds": given.seconds, "options": options, "cores": os.cpu_count()}
    record = Record("env_faults", "others_steps_per_s", recorded)
    alternate(record, [faulty_run(name, given) for name in (NONE, *misdeeds)], given.rounds)
    slowed = []
    for name in misdeeds:
        ratio = record.summary[name] = paired_ratio(record, name, NONE)
        lost = record.median(name, "processes_lost")
        print(f"{name:<10} others' speed {ratio_text(ratio)}, actors replaced {lost:.0f}")
        slowed += [name] if ratio["high"] < LIMIT else []
    record.save(given.json)
    print(f"  below {LIMIT:.0%}: {', '.join(slowed) or 'none'}; raw numbers: {given.json}")
    return int(bool(slowed))


if __name__ == "__main__":
    sys.exit(main())
