"""Pauses of actors after their inference server is killed: `python benchmarks/failover.py`.

A recurrent PPO plays CartPole with four actors, served by two inference servers, of which one at random is killed every few
seconds (arm `two`); for comparison the same with one server, for which all actors have to wait (arm `one`). The figure is the
longest time without a step of any actor after each kill. With two servers it must stay within 3 seconds for every kill, and
the counts of the ledger must be consistent; otherwise the exit status is 1. Results go to
benchmarks/results/failover.json.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

from benchmarks.endurance.idle import pauses
from benchmarks.srl.blocks import Arm, Figures, Record, alternate
from benchmarks.throughput.alone import split_options
from benchmarks.throughput.end_to_end import ENDLESS, START_LIMIT_S, BenchmarkError, Watched, command
from jsrl.control.result import contradicted
from jsrl.services.runs.names import FileNames

LIMIT_S, ACTORS, STEP_S, LEAVES_S = 3.0, 4, 0.05, 30.0
OPTIONS = ("--env.id", "benchmarks.endurance.idle:Idle", "--num-actors", f"{ACTORS}", "--agent.network.core", "gru")
REPAIR = ("--restart", "1000", "--supervision.max-backoff-s", "1")


def await_servers(run: Watched, number: int, killed: set[int]) -> list[int]:
    """Return the servers' process IDs, once the given number of living ones have registered their addresses."""
    shared = Path("/dev/shm", f"jsrl-{os.getuid()}")
    deadline_s = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline_s:
        run.check()
        found = [entry for folder in shared.glob(f"{run.pid}-*/names") for entry in FileNames(folder).names().values()]
        bound = [e.pid for e in found if e.name.startswith("inference-") and e.pid not in killed]
        if len(bound) == number:
            return bound
        time.sleep(STEP_S)
    raise BenchmarkError(f"{number} servers were not ready within {START_LIMIT_S:g} s:\n{run.error_output()}")


def kill_servers(number: int, given: argparse.Namespace) -> Arm:
    """Return the arm with the given number of servers."""

    def block() -> Figures:
        rng = random.Random(given.seed)
        with tempfile.TemporaryDirectory(prefix="jsrl-failover-") as name:
            idle, runs = Path(name, "idle"), Path(name, "runs")
            idle.mkdir()
            options = [*OPTIONS, *REPAIR, "--num-inference-servers", f"{number}", *given.options]
            words = command(given.experiment, "served", runs, ENDLESS, options)
            with Watched(words, PYTHONPATH=str(ROOT), JSRL_IDLE=str(idle)) as run:
                while len(list(idle.iterdir())) < ACTORS:
                    run.check()
                    time.sleep(STEP_S)
                kills_s, killed = [], set[int]()
                for _ in range(given.kills):
                    living = await_servers(run, number, killed)
                    time.sleep(given.rest_s)
                    kills_s.append(time.monotonic())
                    victim = rng.choice(living)
                    os.kill(victim, signal.SIGKILL)
                    killed.add(victim)
                await_servers(run, number, killed)
                time.sleep(given.rest_s)
                run.leave(LEAVES_S)
            result = json.loads(next(runs.glob("*/bench/result.json")).read_text())
            longest = longest_pauses(kills_s, pauses(idle))
        print(
            f"  {number} server(s), longest pause after each kill: {' '.join(f'{s:.2f}' for s in longest)} s",
            flush=True,
        )
        return {
            "longest_s": max(longest),
            "median_s": statistics.median(longest),
            "kills": float(len(longest)),
            "kills_in_time": float(sum(pause <= LIMIT_S for pause in longest)),
            "ledger_holds": float(not contradicted(result)),
        }

    return Arm({1: "one", 2: "two"}[number], block)


def longest_pauses(kills_s: list[float], noted: list[tuple[float, float]]) -> list[float]:
    """Return for each kill the longest pause of any actor that ended between it and the next one."""
    ends_s = [*kills_s[1:], float("inf")]
    within = [
        [pause for end, pause in noted if begin <= end < until] for begin, until in zip(kills_s, ends_s, strict=True)
    ]
    return [max(found, default=0.0) for found in within]


def main() -> int:
    """Measure, print and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experiment", default="ppo_cartpole")
    parser.add_argument("--kills", type=int, default=20, help="in each block")
    parser.add_argument("--rest-s", type=float, default=2.0, help="between the last server's return and the next kill")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0, help="of all kills")
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "results" / "failover.json")
    words, options = split_options(sys.argv[1:])
    given = parser.parse_args(words, argparse.Namespace(options=options))
    recorded = {
        "kills": given.kills,
        "rest_s": given.rest_s,
        "options": [*OPTIONS, *REPAIR, *options],
        "cores": os.cpu_count(),
    }
    record = Record("failover", "longest_s", recorded)
    alternate(record, [kill_servers(2, given), kill_servers(1, given)], given.rounds)
    record.save(given.json)
    late = [s for s in record.values("two") if s > LIMIT_S]
    unbalanced = [b.arm for b in record.blocks if not b.figures["ledger_holds"]]
    for arm in ("two", "one"):
        print(
            f"{arm} server(s): {record.median(arm, 'median_s'):.2f} s in the median, {max(record.values(arm)):.2f} s at most"
        )
    print(
        f"  ledger: {'counts are INCONSISTENT' if unbalanced else 'counts are consistent'}; raw numbers: {given.json}"
    )
    return int(bool(late or unbalanced))


if __name__ == "__main__":
    sys.exit(main())
