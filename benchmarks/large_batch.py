"""Benefit and cost of large batches: update frame rate, and time to a threshold on Pendulum, by batch size.

    python benchmarks/large_batch.py --batch 128,1024,8192 --seeds 0,1,2
    python benchmarks/large_batch.py --show benchmarks/results/large-batch.json

Two parts. `rate`: SAC's updates alone on HalfCheetah's shapes with 256 x 256 networks, one math thread, rows per
CPU-second and the share of the matrix-product rate (see benchmarks/updates/ours.py). `learning`: whole runs of
`sac_pendulum` in one process until 20 greedy episodes of a snapshot average -180; env steps, updates and CPU-seconds,
which hardly depend on the machine's load.

The rule (`scaled`): with f = min(sqrt(batch / 128), cap), the learning rate and tau are f times those at 128, and updates
per env step 1 / f of them. A gradient's noise falls with the root of its batch, so steps may be longer and fewer;
Adam does not tolerate arbitrarily long steps, hence the cap. `fixed` changes only the batch.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]

from benchmarks.peers.replay_works import works
from benchmarks.srl.blocks import Arm, Figures, Record, alternate
from benchmarks.throughput import peers
from benchmarks.throughput.end_to_end import BenchmarkError, last_lines

OURS = ROOT / "benchmarks" / "updates" / "ours.py"

BASE, LEARNING_RATE, TAU, ENV_STEPS_PER_CALL = 128, 1e-3, 0.01, 64  # of jsrl/experiment/configs/sac_pendulum.py
RULES = ("scaled", "fixed")
BATCHES = "128,256,512,1024,2048,4096,8192,16384"


class Scaling(NamedTuple):
    """The hyperparameters for a batch size. updates: per 64 env steps (one call)."""

    batch: int
    learning_rate: float
    tau: float
    updates: int

    @property
    def options(self) -> list[str]:
        """Return the arguments for run.py."""
        words = {
            "replay.batch-size": self.batch,
            "replay.updates-per-env-step": self.updates / ENV_STEPS_PER_CALL,
            "agent.learning-rate": self.learning_rate,
            "agent.tau": self.tau,
        }
        return [word for name, value in words.items() for word in (f"--{name}", str(value))]


def scaling(batch: int, rule: str, cap: float) -> Scaling:
    """Return the hyperparameters for a batch size under a rule."""
    factor = min(math.sqrt(batch / BASE), cap) if rule == "scaled" else 1.0
    return Scaling(batch, LEARNING_RATE * factor, TAU * factor, max(1, round(ENV_STEPS_PER_CALL / factor)))


def rate_arm(batch: int, seconds: float) -> Arm:
    """Return the arm of updates alone at a batch size, one math thread."""
    (work,) = works("sac_halfcheetah", (batch,), ())

    def block() -> Figures:
        run = peers.drive(peers.Peer("jsrl", Path(sys.executable), OURS), work, {"one_thread": True}, seconds, 0.5)
        per_cpu_s = run["env_steps_per_cpu_s"]
        share = per_cpu_s * run["operations_per_update"] / run["matrix_operations_per_cpu_s"]
        return {
            "rows_per_cpu_s": batch * per_cpu_s,
            "cpu_ms_per_update": 1e3 / per_cpu_s,
            "matrix_share": share,
            "rows_per_s": batch * run["env_steps_per_s"],
        }

    return Arm(f"rate {batch}", block)


def learning_arm(how: Scaling, rule: str, seeds: list[int]) -> Arm:
    """Return the arm of whole runs to the threshold; each block uses the next seed."""
    waiting = list(seeds)

    def block() -> Figures:
        return run_once(how, waiting.pop(0))

    return Arm(f"{rule} {how.batch}", block)


def run_once(how: Scaling, seed: int) -> Figures:
    """Return the cost of one run to the threshold, from imports to the last evaluation.

    Raises:
      BenchmarkError: it failed.
    """
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as output:
        words = [sys.executable, str(ROOT / "experiments" / "run.py"), "sac_pendulum", "--placement", "serial"]
        words += ["--runs-dir", folder, "--run-name", "one", "--seed", str(seed), "--display", "quiet", *how.options]
        popen = subprocess.Popen(words, stdout=output, stderr=subprocess.STDOUT)
        _, status, used = os.wait4(popen.pid, 0)
        popen.returncode = os.waitstatus_to_exitcode(status)
        if popen.returncode:
            output.seek(0)
            raise BenchmarkError(f"batch {how.batch} ended with {popen.returncode}:\n{last_lines(output.read())}")
        result = json.loads(next(Path(folder).glob("*/one/result.json")).read_text())
    return {
        "seed": float(seed),
        "reached": float(result["ended"] == "stop_at_return"),
        "env_steps": float(result["env_steps"]),
        "agent_updates": (result["env_steps"] - 1_000) / ENV_STEPS_PER_CALL * how.updates,
        "cpu_s": used.ru_utime + used.ru_stime,
        "process_s": result["process_s"],
        "fresh_return": result["final"].get("return_mean", math.nan),
        "in_flight": float(result["ledger"].get("in_flight", 0)),
    }


def median_text(blocks: list[dict[str, Any]], arm: str, figure: str, digits: int = 0) -> str:
    """Return an arm's median and range as text."""
    values = [block["figures"][figure] for block in blocks if block["arm"] == arm]
    values = [value for value in values if not math.isnan(value)]
    if not values:
        return "-"
    text = f"{statistics.median(values):,.{digits}f}"
    return text if len(values) == 1 else f"{text} ({min(values):,.{digits}f} to {max(values):,.{digits}f})"


def table(raw: dict[str, Any]) -> str:
    """Return the raw numbers as two tables in Markdown."""
    blocks, options = raw["blocks"], raw["options"]
    lines = [
        "| batch | rows per CPU-s | CPU ms per update | of matmul |",
        "|---|---|---|---|",
    ]
    for batch in options["batch"]:
        cells = [
            median_text(blocks, f"rate {batch}", *what) for what in (("rows_per_cpu_s",), ("cpu_ms_per_update", 2))
        ]
        lines.append(f"| {batch:,} | {' | '.join(cells)} | {median_text(blocks, f'rate {batch}', 'matrix_share', 2)} |")
    lines += [
        "",
        "| rule, batch | learning rate | updates per env step | reached | env steps | updates | CPU-s | fresh return |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for rule in options["rules"]:
        for batch in options["learning_batch"]:
            arm, how = f"{rule} {batch}", scaling(batch, rule, options["cap"])
            runs = [block["figures"] for block in blocks if block["arm"] == arm]
            if not runs:
                continue
            reached = f"{sum(run['reached'] for run in runs):.0f} of {len(runs)}"
            figures = [median_text(blocks, arm, *f) for f in (("env_steps",), ("agent_updates",), ("cpu_s", 1))]
            lines.append(
                f"| {rule}, {batch:,} | {how.learning_rate:.2g} | {how.updates / ENV_STEPS_PER_CALL:.2g} | {reached} | "
                f"{' | '.join(figures)} | {median_text(blocks, arm, 'fresh_return')} |"
            )
    return "\n".join(lines)


def numbers(text: str) -> list[int]:
    """Return the integers of a comma-separated list."""
    return [int(word) for word in text.split(",")]


def main() -> int:
    """Measure, write the raw numbers, print the tables."""
    line = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    line.add_argument("--batch", type=numbers, default=numbers(BATCHES), help=f"default: {BATCHES}")
    line.add_argument("--learning-batch", type=numbers, help="of learning, where not the same")
    line.add_argument("--seeds", type=numbers, default=[0, 1, 2], help="of learning (default: 0,1,2)")
    line.add_argument("--rules", default="scaled", help="scaled, fixed, or both with a comma (default: scaled)")
    line.add_argument("--cap", type=float, default=4.0, help="most that the rule scales by (default: 4)")
    line.add_argument("--parts", default="rate,learning", help="which of them (default: both)")
    line.add_argument("--seconds", type=float, default=4.0, help="of each window of rate (default: 4)")
    line.add_argument("--rounds", type=int, default=3, help="of rate (default: 3)")
    line.add_argument("--json", default=str(ROOT / "benchmarks" / "results" / "large-batch.json"), help="where to")
    line.add_argument("--show", metavar="FILE", help="print the tables of raw numbers written earlier, and end")
    given = line.parse_args()
    if given.show:
        print(table(json.loads(Path(given.show).read_text())))
        return 0
    rules = given.rules.split(",")
    if not set(rules) <= set(RULES):
        line.error(f"--rules {given.rules}: there are {', '.join(RULES)}")
    options = {"batch": given.batch, "learning_batch": given.learning_batch or given.batch, "seeds": given.seeds}
    options |= {"rules": rules, "cap": given.cap, "seconds": given.seconds}
    record = Record("large-batch", "rows_per_cpu_s", options)
    path = Path(given.json)
    if "rate" in given.parts:
        alternate(record, [rate_arm(batch, given.seconds) for batch in given.batch], given.rounds)
        record.save(path)
    if "learning" in given.parts:
        record.main = "cpu_s"
        arms = [
            learning_arm(scaling(b, r, given.cap), r, given.seeds)
            for r in rules
            for b in given.learning_batch or given.batch
        ]
        for _ in given.seeds:  # saved after each seed, because these runs are long
            alternate(record, arms, 1)
            record.save(path)
    record.save(path)
    print(table(json.loads(path.read_text())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
