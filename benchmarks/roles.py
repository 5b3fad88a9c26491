"""Measure the cost of evaluator and video recorder for training: `python benchmarks/roles.py ppo_cartpole`.

Whole runs in fresh processes, with neither, one, or both; arms alternate (A B C D, D C B A, ...). From each run's metrics
between start and end:

  sampling_hz            env steps that actors take per second
  update_hz              updates per second
  update_frame_rate_hz   rows trained on per second: batch size x updates per second

Every block's figures, medians with their range, ratios to the runs with neither (pairs of a round), the machine and its load
go to benchmarks/results/roles-NAME-PLACEMENT.json. Options of run.py follow after `--`.
"""

from __future__ import annotations

import argparse
import math
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

from benchmarks.srl.blocks import Arm, Figures, Record, alternate, paired_ratio, ratio_text

ROLES = {"neither": (False, False), "evaluator": (True, False), "video-recorder": (False, True), "both": (True, True)}
RATES = ("sampling_hz", "update_hz", "update_frame_rate_hz")
FOREVER_STEPS = 10**9
LEAVE_S = 120.0


def command(given: argparse.Namespace, arm: str, runs_dir: Path) -> list[str]:
    """Return the command of one block."""
    evaluating, filming = (str(on).lower() for on in ROLES[arm])
    words = [sys.executable, str(ROOT / "experiments" / "run.py"), given.experiment, "--placement", given.placement]
    words += ["--runs-dir", str(runs_dir), "--run-name", "block", "--overwrite"]
    words += ["--display", "quiet", "--stop-at-return", "none", "--total-env-steps", str(FOREVER_STEPS)]
    words += ["--max-minutes", f"{given.seconds / 60:.4f}"]
    words += ["--evaluator.enabled", evaluating, "--evaluator.final-episodes", "0"]
    words += ["--evaluator.period-env-steps", str(given.every)]
    words += ["--video.enabled", filming]
    words += ["--video.final", "false", "--video.period-env-steps", str(given.every)] if filming == "true" else []
    return words + given.options


def figures(folder: Path) -> Figures:
    """Return the steady-state figures of a run's metrics.

    Raises:
      RuntimeError: the run was too short.
    """
    from jsrl.services.runs.runs import RunFolder
    from jsrl.tools.report.run_report import make_report

    report = make_report(RunFolder.open(folder))
    means = report.steady
    found = {
        "sampling_hz": means.get("actor/env_steps_per_s", math.nan),
        "update_hz": report.rates.get("updates", math.nan),
        "update_frame_rate_hz": means.get("learner/rows_per_s", math.nan),
    }
    if not all(math.isfinite(value) for value in found.values()):
        raise RuntimeError(f"{folder}: too short to be measured ({found}); give more --seconds.")
    for kind in ("evaluator", "video-recorder"):
        found[f"{kind}_cores"] = means.get(f"system/{kind}_cpu_share", 0.0)
    evaluated = report.columns.get("evaluator/episodes")
    found["evaluations"] = 0.0 if evaluated is None else float((evaluated > 0).sum())
    found["videos"] = report.last("video_recorder/videos") or 0.0
    return found


def arm(given: argparse.Namespace, name: str, folder: Path) -> Arm:
    """Return the arm of whole runs with these roles."""

    def block() -> Figures:
        words = command(given, name, folder / name)
        ended = subprocess.run(words, capture_output=True, text=True, timeout=given.seconds + LEAVE_S, check=False)
        if ended.returncode != 0:
            raise RuntimeError(f"{' '.join(words)} ended with status {ended.returncode}:\n{ended.stdout}{ended.stderr}")
        return figures(next((folder / name).glob("*/block")))

    return Arm(name, block)


def compared(record: Record) -> list[str]:
    """Return a line per figure and arm: median, range over rounds, and the ratio to the runs with neither."""
    lines = []
    for rate in RATES:
        lines.append(f"  {rate}")
        for name in ROLES:
            values = record.values(name, rate)
            ratio = paired_ratio(record, name, "neither", rate)
            spread = {"median": record.median(name, rate), "lowest": min(values), "highest": max(values)}
            record.summary[f"{name}: {rate}"] = spread | {"to_neither": ratio}
            text = f"    {name:<10} {spread['median']:>12,.1f} ({spread['lowest']:,.1f} - {spread['highest']:,.1f})"
            lines.append(text + f"   {ratio_text(ratio)} of neither")
    for name in ("evaluator", "video-recorder"):
        cores, videos = record.median("both", f"{name}_cores"), record.median("both", "videos")
        did = (
            f"{videos:.0f} videos"
            if name == "video-recorder"
            else f"{record.median('both', 'evaluations'):.0f} evaluations"
        )
        lines.append(f"  beside the other, the {name} took {cores:.2f} cores for {did} a block")
    return lines


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("experiment", nargs="?", default="ppo_cartpole", help="of run.py, such as sac_pendulum")
    made.add_argument("--placement", default="served", choices=("served", "inline", "apart"))
    made.add_argument("--seconds", type=float, default=30.0, help="of one run, its start included")
    made.add_argument("--rounds", type=int, default=5, help="runs of each arm")
    made.add_argument("--every", type=int, default=10_000, help="env steps between evaluations, and between videos")
    made.add_argument("--output", type=Path, help="file (default: benchmarks/results/roles-NAME-PLACEMENT.json)")
    made.add_argument("options", nargs="*", help="options of run.py, after --")
    return made


def main() -> int:
    """Measure, print, and write the file."""
    given = parser().parse_args()
    options = {name: value for name, value in vars(given).items() if name != "output"}
    record = Record("roles", "update_hz", options)
    folder = Path(tempfile.mkdtemp(prefix="jsrl-roles-"))
    try:
        alternate(record, [arm(given, name, folder) for name in ROLES], given.rounds)
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    lines = compared(record)
    path = given.output or Path(__file__).parent / "results" / f"roles-{given.experiment}-{given.placement}.json"
    record.save(path)
    load = record.blocks[-1].load
    print("\n".join([f"{given.experiment}, {given.placement} (load {load})", *lines, f"  raw numbers: {path}"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
