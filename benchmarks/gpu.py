"""Measure a machine with accelerators in ten minutes: `python experiments/bench.py --gpu`, or `python benchmarks/gpu.py`.

  placements       whole runs: inline, served, and apart where there are two accelerators
  float32, bfloat16  whole runs of one placement with each precision of the torso
  updates          SAC's update frame rate, a command for each batch size
  split            policy and critics on two devices against one device and both, where there are two

Each part is a separate command that can be repeated alone. Its text and raw numbers go to a folder,
with the hardware. A part that does not finish in the remaining time is stopped, and the last lines report it.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
BENCH = HERE.parent / "experiments" / "bench.py"
sys.path[:0] = [str(HERE.parent)]

from benchmarks.throughput.alone import near, split_options
from jsrl.cli.main import Parser
from jsrl.experiment.automatic import ENVS_PER_ACTOR
from jsrl.graph.machine import accelerators
from jsrl.services.runs.limits import usable_cores
from jsrl.services.runs.provenance import environment_facts

DEVICES = "import jax; print([[d.platform, d.device_kind] for d in jax.devices()])"
LAST_LINES = 30


@dataclass(frozen=True)
class Part:
    """One command: its arguments after `python`, and the accelerators that it needs."""

    name: str
    words: tuple[str, ...]
    accelerators: int = 0

    @property
    def kind(self) -> str:
        """Its name in `--only`: `updates` for all batch sizes."""
        return self.name.partition("-")[0]


def parts(experiment: str, seconds: float, batches: str, folder: Path, options: Sequence[str] = ()) -> list[Part]:
    """Return the measured parts, the most important first; whole runs get the options."""
    bench = (str(BENCH), experiment, "--repetitions", "1", "--starts", "0", "--seconds", f"{seconds:g}")

    def updates(batch: str) -> Part:
        words = (str(BENCH), "sac_halfcheetah", "--parts", "updates", "--repetitions", "1", "--seconds", f"{seconds:g}")
        return Part(f"updates-{batch}", (*words, "--batch", batch, "--json", str(folder / f"updates-{batch}.json")))

    def lever(name: str) -> Part:
        words = (
            str(HERE / "levers.py"),
            name,
            "--experiment",
            experiment,
            "--rounds",
            "1",
            "--seconds",
            f"{seconds:g}",
        )
        return Part(name, (*words, "--output", str(folder / f"{name}.json"), "--", *options))

    def run(placement: str, precision: str) -> tuple[str, ...]:
        return (*bench, "--placements", placement, "--json", str(folder / f"{precision}.json"),
                "--", *options, "--agent.network.precision", precision)  # fmt: skip

    return [
        lever("placements"),
        *map(updates, batches.split(",")),
        Part("float32", run("served", "float32")),
        Part("bfloat16", run("served", "bfloat16")),
        Part("split", (str(HERE / "split.py"), "--here", "--repeats", "3"), accelerators=2),
    ]


def measure(part: Part, left_s: float, folder: Path) -> str:
    """Run a part for at most the given seconds, and show its output; return how it ended."""
    words = [sys.executable, *part.words]
    script, *arguments = part.words
    print(f"\n== {part.name}: python {shlex.join([near(script), *arguments])}", flush=True)
    text = folder / f"{part.name}.txt"
    with text.open("w") as output:
        process = subprocess.Popen(words, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            status = process.wait(left_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGINT)  # its runs end in order
            status = None
        finally:
            end(process)
    print("\n".join(text.read_text(errors="replace").splitlines()[-LAST_LINES:]), flush=True)
    if status is None:
        return f"stopped after {left_s:.0f} s: the time limit was reached"
    return "ended" if status == 0 else f"failed with status {status}, see {text}"


def end(process: subprocess.Popen[bytes]) -> None:
    """End the process group: half a minute to end in order, then it is killed."""
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def devices() -> list[list[str]]:
    """Return jax's devices here, queried in a separate process so that the parts can use them."""
    asked = subprocess.run([sys.executable, "-c", DEVICES], capture_output=True, text=True, check=False)
    return json.loads(asked.stdout.replace("'", '"')) if asked.returncode == 0 else []


def parser() -> Parser:
    """Return the command line."""
    line = Parser(
        prog="python experiments/bench.py --gpu",
        usage="%(prog)s [options] [-- options of jsrl run for whole runs, by default --num-envs: 8 for each core but one]",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    line.add_argument("--experiment", default="ppo_pong", help="of whole runs (default: %(default)s)")
    line.add_argument("--minutes", type=float, default=10.0, help="for all parts together (default: %(default)s)")
    line.add_argument("--seconds", type=float, default=8.0, help="of one window (default: %(default)s)")
    line.add_argument("--batch", default="256,1024,4096,16384", help="batch sizes of updates (default: %(default)s)")
    line.add_argument("--only", default="", metavar="PARTS", help="such as placements,updates (default: all)")
    line.add_argument(
        "--to", type=Path, default=Path("gpu-results"), help="folder of the results (default: %(default)s)"
    )
    line.add_argument("--cpu", action="store_true", help="run without an accelerator, to try the command")
    return line


def main(arguments: list[str] | None = None) -> int:
    """Measure all parts; return 0 if none failed."""
    words, options = split_options(sys.argv[1:] if arguments is None else arguments)
    given = parser().parse_args(words)
    found = devices()
    count = len(accelerators())
    if not given.cpu and not any(platform != "cpu" for platform, _ in found):
        print(
            "ConfigError: jax finds no accelerator here; install its plugin (`pip install 'jax[cuda12]'`; `jsrl doctor` says "
            "what is missing), or give --cpu to try the command.",
            file=sys.stderr,
        )
        return 2
    folder = given.to.absolute()
    options = options or ["--num-envs", str(ENVS_PER_ACTOR * max(2, usable_cores() - 1))]
    every = parts(given.experiment, given.seconds, given.batch, folder, options)
    wanted = given.only.split(",") if given.only else [part.kind for part in every]
    kinds = list(dict.fromkeys(part.kind for part in every))
    unknown = sorted(set(wanted) - set(kinds))
    if unknown:
        print(
            f"ConfigError: there is no part {unknown[0]!r}; there are: {', '.join(kinds)}.",
            file=sys.stderr,
        )
        return 2
    folder.mkdir(parents=True, exist_ok=True)
    until_s, ends = time.monotonic() + 60 * given.minutes, {}
    for part in every:
        if part.kind not in wanted:
            continue
        left_s = until_s - time.monotonic()
        if part.accelerators > count:
            ends[part.name] = f"left out: needs {part.accelerators} accelerators, there are {count}"
        elif left_s < 1:
            ends[part.name] = "left out: the time limit was reached"
        else:
            ends[part.name] = measure(part, left_s, folder)
    (folder / "machine.json").write_text(
        json.dumps({"devices": found, "parts": ends, **environment_facts()}, indent=2) + "\n"
    )
    print(f"\n{folder}:\n" + "\n".join(f"  {name:<12}{how}" for name, how in ends.items()))
    return int(any(how.startswith("failed") for how in ends.values()))


if __name__ == "__main__":
    sys.exit(main())
