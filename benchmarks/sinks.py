"""Measure the cost of hooks and sinks for training, including broken ones: `python benchmarks/sinks.py`.

Short serial runs in one process, with nothing, and with each of the following; arms alternate (A B C, C B A, ...):

  wandb-offline   Weights & Biases without a network
  wandb-silent    Weights & Biases with a server that accepts connections and never answers
  full-disk       a second TensorBoard sink, whose disk is full
  hooks           a hook that raises, and one that never returns

The figure is CPU microseconds of the training process per trained row, from the first line of metrics to the last, without
processes that a sink starts. The ratio is without / with, so a value below 1 means the arm costs time; its 95% interval is
that of the median over the pairs. Results go to benchmarks/results/sinks.json.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

from benchmarks.srl.blocks import Arm, Figures, Record, alternate, paired_ratio
from jsrl.cli.experiments import load
from jsrl.control.run import run
from jsrl.experiment import DeadlineConfig, EvaluatorConfig, Experiment
from jsrl.services.metrics.sinks import TensorBoardSink
from jsrl.services.metrics.wandb_sink import WandbSink

FIGURE = "cpu_us_per_row"
NEITHER = "nothing"
Extras = dict[str, Any]


class Clock:
    """A sink that records the CPU time of this process at each line of metrics."""

    def __init__(self) -> None:
        self.points: list[tuple[float, float]] = []

    def write(self, row: dict[str, Any]) -> None:
        """Record a line."""
        self.points.append((row["env_steps"], time.process_time()))

    def figures(self) -> Figures:
        """Return CPU time per row between the first line and the last.

        Raises:
          RuntimeError: there were fewer than two lines.
        """
        if len(self.points) < 3:
            raise RuntimeError(f"a run wrote {len(self.points)} lines of metrics; give more --seconds.")
        (first, begin_s), (last, end_s) = self.points[0], self.points[-1]
        return {FIGURE: 1e6 * (end_s - begin_s) / (last - first), "rows": last - first}


class Raises:
    """A hook that fails."""

    def on_metrics(self, run: Any, row: Any) -> None:
        """Fail."""
        raise RuntimeError("planted")


class Hangs:
    """A hook that does not return before the measurement is over."""

    released = threading.Event()

    def on_metrics(self, run: Any, row: Any) -> None:
        """Wait."""
        self.released.wait()


def extras(arm: str, folder: Path) -> Extras:
    """Return the arguments that an arm passes to `run`."""
    if arm == "wandb-offline":
        return {"sinks": [WandbSink("measured", mode="offline")]}
    if arm == "wandb-silent":
        return {"sinks": [WandbSink("measured")]}
    if arm == "full-disk":
        sink = TensorBoardSink(folder)
        sink.path = Path("/dev/full")
        return {"sinks": [sink]}
    return {"hooks": [Raises(), Hangs()]} if arm == "hooks" else {}


ARMS = (NEITHER, "wandb-offline", "wandb-silent", "full-disk", "hooks")


@contextmanager
def silent_server() -> Iterator[str]:
    """Yield the address of a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as server:
        taken: list[socket.socket] = []

        def accept() -> None:
            while True:
                try:
                    taken.append(server.accept()[0])
                except OSError:
                    return

        threading.Thread(target=accept, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            for one in taken:
                one.close()


def measured(seconds: float) -> Experiment:
    """Return the experiment of every run: one process, no evaluations, a limit of time."""
    return dataclasses.replace(
        load("ppo_cartpole"),
        placement="serial",
        total_env_steps=10**9,
        max_minutes=seconds / 60,
        stop_at_return=None,
        evaluator=EvaluatorConfig(enabled=False),
        deadlines=DeadlineConfig(hooks_s=0.5, sinks_s=0.5),
    )


def block(arm: str, experiment: Experiment, folder: Path) -> Callable[[], Figures]:
    """Return a function that makes one run of an arm."""

    def measure() -> Figures:
        clock, given = Clock(), extras(arm, folder)
        given["sinks"] = [*given.get("sinks", []), clock]
        result = run(experiment, runs_dir=folder, name=arm, overwrite=True, display="log-only", **given)
        if arm != NEITHER:
            check(arm, (result.folder / "logs" / "controller.log").read_text())
        return clock.figures()

    return measure


def check(arm: str, log: str) -> None:
    """Check that an arm had its intended effect.

    Raises:
      RuntimeError: it did not; with the run's log.
    """
    signs = {
        "wandb-offline": "Weights & Biases: offline",
        "wandb-silent": "Weights & Biases did not end within",
        "full-disk": "metrics could not be written to /dev/full",
        "hooks": "planted",
    }
    if signs[arm] not in log:
        raise RuntimeError(f"{arm} had no effect: {signs[arm]!r} is not in the log:\n{log}")


def main() -> int:
    """Measure, print, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arms = ARMS[1:]
    parser.add_argument(
        "--arms", nargs="+", choices=arms, default=arms, metavar="ARM", help=f"of {', '.join(arms)}; all"
    )
    parser.add_argument("--pairs", type=int, default=30, help="runs of each arm")
    parser.add_argument("--seconds", type=float, default=6.0, help="of one run")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "sinks.json")
    given = parser.parse_args()
    record = Record("sinks", FIGURE, {"pairs": given.pairs, "seconds": given.seconds})
    folder = Path(tempfile.mkdtemp(prefix="jsrl-sinks-"))
    experiment = measured(given.seconds)
    with silent_server() as address:
        os.environ |= {"WANDB_BASE_URL": address, "WANDB_API_KEY": "0" * 40, "WANDB_SILENT": "true"}
        try:
            block(NEITHER, experiment, folder)()  # compiles
            alternate(record, [Arm(arm, block(arm, experiment, folder)) for arm in (NEITHER, *given.arms)], given.pairs)
        finally:
            Hangs.released.set()
            shutil.rmtree(folder, ignore_errors=True)
    for arm in given.arms:
        ratio = paired_ratio(record, NEITHER, arm)
        record.summary[arm] = ratio
        interval = f"{ratio['low']:.3f} - {ratio['high']:.3f}"
        print(f"{arm:<14} without / with {ratio['median']:.3f} ({interval}, {ratio['pairs']} pairs)")
    print(f"without: {record.median(NEITHER):.1f} CPU us per row (median)")
    record.save(given.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
