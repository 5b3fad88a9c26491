"""Env steps/s over the number of actors, until something limits them: inline, served, and RLlib.

    python benchmarks/peers/install.py rllib
    python benchmarks/scale/curve.py [--arms inline served rllib] [--actors 1 2 4 ...] [--step-ms 5 50]
    python benchmarks/scale/curve.py --draw

Every actor has one environment that sleeps in each step and needs next to no CPU, so many fit on few cores; PPO and its
network are the same everywhere, and both libraries may act while they learn as far as they can (jsrl: params at most one
update old). The share is that of the env steps that the environments could make if only their sleep took time. The limit is
the verdict of the run's own report. An arm ends at the first number with a share below `--least`; larger numbers of actors
are not run, and say so. Each point is written as soon as it is known, and points that are in the file are not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks import process_tree
from benchmarks.curves import PEER, Plot, svg
from benchmarks.scale.beside_rllib import ENV, RAY, WORK, Driver, Progress, experiment
from jsrl.control.run import run
from jsrl.services.runs.runs import RunFolder
from jsrl.tools.report.charts import Axis, Series
from jsrl.tools.report.run_report import make_report

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "benchmarks" / "results" / "scale-curve.json"
ARMS = ("inline", "served", "rllib")
ACTORS = tuple(2**power for power in range(10))
FACTS: dict[str, Any] = {
    "work": WORK | {"step_s": None},
    "cores": os.cpu_count(),
    "processor": platform.processor(),
    "rows": [],
}
MB_EACH = {"inline": 100, "served": 75, "rllib": 400}  # memory of an actor


def drive(arm: str, actors: int, step_s: float, folder: str) -> None:
    """Run the process of a jsrl run, until it is interrupted."""
    WORK["step_s"] = step_s
    run(experiment(actors, 1, arm), runs_dir=folder, name="one", display="log-only", hooks=[Progress()])


def words_of(arm: str, actors: int, step_s: float, folder: Path, peers: Path) -> tuple[list[str], dict[str, str]]:
    """Return the command of a run that prints its progress, and its environment."""
    if arm != "rllib":
        words = [sys.executable, "-m", "benchmarks.scale.curve", "--drive", arm, str(actors), str(step_s), str(folder)]
        return words, dict(os.environ)
    asked = WORK | {"step_s": step_s, "actors": actors, "address": None, "env": ENV}
    driver = ROOT / "benchmarks" / "peers" / "run_rllib_hosts.py"
    return [str(peers / "rllib" / "bin" / "python"), str(driver), json.dumps(asked)], os.environ | RAY | {
        "PYTHONPATH": str(ROOT)
    }


def measure(arm: str, actors: int, step_s: float, given: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of one run.

    Raises:
      RuntimeError: it did not begin in time.
    """
    with tempfile.TemporaryDirectory(prefix="jsrl-curve-") as name:
        words, environment = words_of(arm, actors, step_s, Path(name), given.peers_dir)
        driver, others = Driver(words, environment, Path(name) / "driver.txt"), os.getloadavg()[0]
        try:
            driver.follow()
            driver.await_updates(given.patience_s)
            time.sleep(given.warm_s)
            pid, since_s = driver.process.pid, time.monotonic()
            cpu_s = process_tree.cpu_seconds(pid)
            time.sleep(given.seconds)
            cores = (process_tree.cpu_seconds(pid) - cpu_s) / (time.monotonic() - since_s)
            rate, pss_mb = driver.rate(since_s), process_tree.usage(pid).pss_mb
            found = {
                "env_steps_per_s": round(rate, 1),
                "share": round(rate * step_s / actors, 4),
                "cores": round(cores, 3),
                "cpu_us_per_step": round(1e6 * cores / rate) if rate else None,
                "pss_mb": round(pss_mb),
                "load_before": round(others, 1),
            }
            return found if arm == "rllib" else found | limit(driver, Path(name))
        finally:
            process_tree.end_tree(driver.process.pid)
            driver.process.wait(30)


def limit(driver: Driver, folder: Path) -> dict[str, str]:
    """End a run in order; return the verdict of its report."""
    driver.process.send_signal(signal.SIGINT)
    try:
        driver.process.wait(180)
    except subprocess.TimeoutExpired:
        return {"limit": "unknown", "text": "the run did not end in time"}
    (found,) = make_report(RunFolder.open(str(next(folder.glob("*/one"))))).bottlenecks.values()
    return {"limit": found.kind, "text": found.text}


def fits(arm: str, actors: int) -> bool:
    """Return whether the actors fit into nine tenths of the memory that is free."""
    return actors * MB_EACH[arm] < 0.9 * psutil.virtual_memory().available / (1 << 20)


def point(
    arm: str, actors: int, step_ms: float, rows: list[dict[str, Any]], given: argparse.Namespace
) -> dict[str, Any]:
    """Return one point: its figures, or why it was not run."""
    before = [row for row in rows if row["arm"] == arm and row["step_ms"] == step_ms]
    if any(row.get("share", 1.0) < given.least or "failed" in row for row in before):
        return {"not_run": "fewer actors reached the limit"}
    if not fits(arm, actors):
        return {"not_run": f"memory for {actors * MB_EACH[arm]:,} MB is not free"}
    try:
        return measure(arm, actors, step_ms / 1000, given)
    except (OSError, RuntimeError) as error:
        return {"failed": str(error)[-2000:]}


def measure_all(given: argparse.Namespace, say: Callable[[str], None] = print) -> None:
    """Measure the points that are not in the file yet."""
    facts = json.loads(given.out.read_text()) if given.out.exists() else dict(FACTS)
    known = {(row["arm"], row["step_ms"], row["actors"]) for row in facts["rows"] if "env_steps_per_s" in row}
    facts["rows"] = [row for row in facts["rows"] if "env_steps_per_s" in row]
    wanted = [(arm, ms, n) for ms in given.step_ms for n in sorted(given.actors) for arm in given.arms]
    for arm, step_ms, actors in wanted:
        if (arm, step_ms, actors) in known:
            continue
        row = {"arm": arm, "step_ms": step_ms, "actors": actors}
        row |= point(arm, actors, step_ms, facts["rows"], given)
        facts["rows"].append(row)
        given.out.write_text(json.dumps(facts, indent=1) + "\n")
        say(json.dumps({name: value for name, value in row.items() if name != "text"}))


def draw(out: Path, folder: Path) -> None:
    """Draw the share of the environments' own speed over the number of actors, a picture for each sleep."""
    rows = [row for row in json.loads(out.read_text())["rows"] if "env_steps_per_s" in row]
    for step_ms in sorted({row["step_ms"] for row in rows}):
        drawn = []
        for number, arm in enumerate(ARMS):
            mine = sorted(
                (row["actors"], row["share"]) for row in rows if (row["arm"], row["step_ms"]) == (arm, step_ms)
            )
            if len(mine) > 1:
                x, y = np.array(mine, float).T
                peer = arm == "rllib"
                drawn.append(Series(arm, x, y, index=PEER if peer else number, faint=peer))
        if not drawn:
            continue
        title = f"Share of the environments' own speed; a step sleeps {step_ms:g} ms"
        notes = [(PEER, "RLlib")] if any(one.faint for one in drawn) else []
        path = folder / f"scale-{step_ms:g}ms.svg"
        path.write_text(
            svg(
                Plot(title, ""), "share of their own speed", "actors", drawn, notes, axis=Axis(log=True), from_zero=True
            )
        )
        print(path)


def table(out: Path) -> str:
    """Return the points as a Markdown table."""
    head = ("step", "arm", "actors", "env steps/s", "share", "CPU us a step", "cores", "memory MB", "limit")
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for row in json.loads(out.read_text())["rows"]:
        names = ("env_steps_per_s", "share", "cpu_us_per_step", "cores", "pss_mb", "limit")
        cells = [str(row.get(name, "")) for name in names] if "share" in row else [row.get("not_run", "failed")]
        lines.append(f"| {row['step_ms']:g} ms | {row['arm']} | {row['actors']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    """Measure, or draw."""
    if sys.argv[1:2] == ["--drive"]:
        arm, actors, step_s, folder = sys.argv[2:]
        drive(arm, int(actors), float(step_s), folder)
        return 0
    line = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    line.add_argument("--arms", nargs="+", default=list(ARMS), choices=ARMS)
    line.add_argument("--actors", type=int, nargs="+", default=list(ACTORS))
    line.add_argument("--step-ms", type=float, nargs="+", default=[5.0, 50.0])
    line.add_argument("--seconds", type=float, default=15.0, help="of a window (default: %(default)s)")
    line.add_argument("--warm-s", type=float, default=5.0, help="before it (default: %(default)s)")
    line.add_argument("--patience-s", type=float, default=240.0, help="until the first updates (default: %(default)s)")
    line.add_argument("--least", type=float, default=0.4, help="share below which an arm ends (default: %(default)s)")
    line.add_argument("--peers-dir", type=Path, default=Path.home() / ".cache" / "jsrl" / "peers")
    line.add_argument("--out", type=Path, default=OUT, help="(default: %(default)s)")
    line.add_argument("--pictures", type=Path, default=ROOT / "docs" / "pictures", help="(default: %(default)s)")
    line.add_argument("--draw", action="store_true", help="only draw the pictures of docs from the file")
    given = line.parse_args()
    if not given.draw:
        measure_all(given)
    draw(given.out, given.pictures)
    print(table(given.out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
