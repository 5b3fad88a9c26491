"""Measure a machine with a GPU in parts: `python benchmarks/gpu/measure.py SET`. What is worth most comes first: README.md.

  call      the path of one update call: fixed cost by part, cost of an update, and XLA's options, each in its own process
  rates     updates/s of SAC and DQN by batch size and number of updates in a call
  serving   whole runs of Pong with one inference server or two, and with cores left free for server and learner
  fused     env steps/s of an environment in JAX in one program with its learner, by number of environments; several seeds
  pong      Pong from pixels to a score of 18: seconds from the command
  whole     whole runs by placement and precision, updates, a split learner: `python experiments/bench.py --gpu`

Each part is a separate command that can be repeated alone. Its text and raw numbers go to a folder as soon as it ends, with
the hardware. A part that does not finish in the remaining time is stopped, and the last lines report it.
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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BENCH = ROOT / "experiments" / "bench.py"
sys.path[:0] = [str(ROOT)]

from benchmarks.throughput.alone import near, split_options
from jsrl.cli.main import Parser
from jsrl.experiment.automatic import ENVS_PER_ACTOR
from jsrl.graph.machine import accelerators
from jsrl.services.runs.limits import usable_cores
from jsrl.services.runs.provenance import environment_facts

DEVICES = "import jax; print([[d.platform, d.device_kind] for d in jax.devices()])"
LAST_LINES = 30
GRAPHS = {"TF_CPP_MIN_LOG_LEVEL": "0", "TF_CPP_VMODULE": "command_buffer_thunk=3"}
XLA = {
    "graphless": {"XLA_FLAGS": "--xla_gpu_enable_command_buffer="},
    "loops": {"XLA_FLAGS": "--xla_gpu_enable_command_buffer=+WHILE,+CONDITIONAL"},
    "unrolled": {"XLA_FLAGS": "--xla_gpu_command_buffer_unroll_loops=true"},
    "smallest": {"XLA_FLAGS": "--xla_gpu_graph_min_graph_size=1"},
    "rbg": {"JAX_DEFAULT_PRNG_IMPL": "rbg"},
    "frozen": {"XLA_FLAGS": "--xla_gpu_command_buffer_update_mode=NEVER_UPDATE"},  # results may be wrong
    "logged": GRAPHS,  # prints "Updated command buffer in N us"
}


@dataclass(frozen=True)
class Part:
    """One command: its arguments after `python`, its environment variables, and the accelerators that it needs."""

    name: str
    words: tuple[str, ...]
    accelerators: int = 0
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """Its name in `--only`: `updates` for all batch sizes."""
        return self.name.partition("-")[0]


@dataclass(frozen=True)
class Size:
    """How large the measurements are: those of a machine with a GPU, or tiny ones that rehearse the commands on a CPU."""

    folder: Path
    experiment: str
    seconds: float
    batches: Sequence[int]
    options: Sequence[str]
    rehearse: bool

    def bench(self, part: str, placement: str, *options: str) -> Part:
        """Return a window of a whole run."""
        seconds, file = f"{self.seconds:g}", str(self.folder / f"{part}.json")
        words = (str(BENCH), self.experiment, "--repetitions", "1", "--starts", "0", "--seconds", seconds)
        return Part(part, (*words, "--placements", placement, "--json", file, "--", *(options or self.options)))

    def call(self, part: str, work: str, batch: int, updates: int, *words: str, **variables: str) -> Part:
        """Return variants of one update call."""
        if self.rehearse:
            work, batch, updates, words = "dqn_cartpole", 8, 2, (*words, "--rows", "2048", "--seconds", "0.1")
        command = (str(HERE / "call.py"), work, str(batch), str(updates), "--json", str(self.folder / f"{part}.json"))
        return Part(part, (*command, *words), variables=variables)


def call(size: Size) -> list[Part]:
    few = ("--variants", "now,block")
    slopes = [size.call(f"slope-{number}", "sac", 256, number, *few) for number in (4, 32, 128)]
    large = size.call("large", "sac", 16_384, 4, "--variants", "now,block,leaves,together,ahead")
    options = [size.call(name, "sac", 256, 4, *few, **variables) for name, variables in XLA.items()]
    return [size.call("path", "sac", 256, 4), options[-1], *slopes, *options[:-1], large]


def rates(size: Size) -> list[Part]:
    works = (
        ("sac", 256, 128),
        ("sac", 8192, 16),
        ("sac", 16_384, 32),
        ("dqn", 32, 4),
        ("dqn", 32, 32),
        ("dqn", 512, 8),
    )
    few = ("--variants", "now,ahead", "--seconds", "4")
    return [size.call(f"{work}-{batch}-{updates}", work, batch, updates, *few) for work, batch, updates in works]


def serving(size: Size) -> list[Part]:
    """Two cores free for server and learner, then two servers, then all cores but one as by default."""
    cores = 3 if size.rehearse else usable_cores()

    def served(name: str, actors: int, *more: str) -> Part:
        envs = ("--num-actors", str(actors), "--num-envs", str(ENVS_PER_ACTOR * actors))
        return size.bench(name, "served", *envs, *more)

    few, most = max(2, cores - 3), cores - 1
    two = ("--num-inference-servers", "2")
    return [served("free", few), served("servers", few, *two), served("full", most), served("full-servers", most, *two)]


def fused(size: Size) -> list[Part]:
    script, numbers = (
        str(ROOT / "benchmarks" / "fused.py"),
        (4, 8) if size.rehearse else (256, 1024, 4096, 16_384, 65_536),
    )
    alone = [
        Part(f"fused-{envs}", (script, "--alone", str(envs), "--out", str(size.folder / f"fused-{envs}.json")))
        for envs in numbers
    ]
    seeds = (1, 2) if size.rehearse else (1, 16, 64)
    return [*alone, *(Part(f"seeds-{count}", (script, "--measure", "seeds", str(count))) for count in seeds)]


def pong(size: Size) -> list[Part]:
    """Return runs that end at the score in their settings (18), or after four minutes."""
    runs = ("--runs-dir", str(size.folder / "runs"), "--display", "log-only")
    actors = usable_cores() - 1
    many: tuple[str, ...] = (
        "--placement",
        "served",
        "--num-actors",
        str(actors),
        "--num-envs",
        str(ENVS_PER_ACTOR * actors),
    )
    limit = ("--max-minutes", "4")
    if size.rehearse:
        many, limit = ("--placement", "inline", "--num-actors", "1"), ("--total-env-steps", "4096")
    names = ("ppo_cartpole", "dqn_cartpole") if size.rehearse else ("ppo_pong", "dqn_pong")
    return [
        Part("ppo", ("-m", "jsrl", "run", names[0], *many, *limit, *runs)),
        Part("dqn", ("-m", "jsrl", "run", names[1], *limit, *runs)),
    ]


def whole(size: Size) -> list[Part]:
    """Return whole runs, which get the options, and updates."""
    folder, seconds, options = size.folder, f"{size.seconds:g}", size.options

    def updates(batch: int) -> Part:
        words = (str(BENCH), "sac_halfcheetah", "--parts", "updates", "--repetitions", "1", "--seconds", seconds)
        return Part(
            f"updates-{batch}", (*words, "--batch", str(batch), "--json", str(folder / f"updates-{batch}.json"))
        )

    levers = (str(ROOT / "benchmarks" / "levers.py"), "placements", "--experiment", size.experiment, "--rounds", "1")
    return [
        Part(
            "placements",
            (*levers, "--seconds", seconds, "--output", str(folder / "placements.json"), "--", *options),
        ),
        *map(updates, size.batches),
        *(size.bench(to, "served", *options, "--agent.network.precision", to) for to in ("float32", "bfloat16")),
        Part("split", (str(ROOT / "benchmarks" / "split.py"), "--here", "--repeats", "3"), accelerators=2),
    ]


SETS: dict[str, Callable[[Size], list[Part]]] = {
    each.__name__: each for each in (call, rates, serving, fused, pong, whole)
}


def measure(part: Part, left_s: float, folder: Path) -> str:
    """Run a part for at most the given seconds, and show its output; return how it ended."""
    words = [sys.executable, *part.words]
    script, *arguments = part.words
    given = "".join(f"{name}={shlex.quote(value)} " for name, value in part.variables.items())
    print(f"\n== {part.name}: {given}python {shlex.join([near(script), *arguments])}", flush=True)
    text = folder / f"{part.name}.txt"
    with text.open("w") as output:
        process = subprocess.Popen(
            words, stdout=output, stderr=subprocess.STDOUT, start_new_session=True, env={**os.environ, **part.variables}
        )
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
        usage="%(prog)s [SET] [options] [-- options of jsrl run for whole runs, by default 8 environments a core but one]",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    line.add_argument("set", nargs="?", choices=SETS, default="whole", help="(default: %(default)s)")
    line.add_argument("--experiment", default="ppo_pong", help="of whole runs (default: %(default)s)")
    line.add_argument("--minutes", type=float, help="for all parts together (default: 5; of whole: 10)")
    line.add_argument("--seconds", type=float, default=8.0, help="of one window (default: %(default)s)")
    line.add_argument("--batch", default="256,1024,4096,16384", help="of updates in whole (default: %(default)s)")
    line.add_argument("--only", default="", metavar="PARTS", help="such as placements,updates (default: all)")
    line.add_argument("--to", type=Path, help="folder of the results (default: gpu-results/SET)")
    line.add_argument("--cpu", action="store_true", help="run without an accelerator, to try the command")
    line.add_argument(
        "--rehearse", action="store_true", help="the same with tiny sizes, to try the command (with --cpu)"
    )
    return line


def refused(text: str) -> int:
    print(f"ConfigError: {text}", file=sys.stderr)
    return 2


def main(arguments: list[str] | None = None) -> int:
    """Measure all parts; return 0 if none failed."""
    words, options = split_options(sys.argv[1:] if arguments is None else arguments)
    given = parser().parse_args(words)
    found, count = devices(), len(accelerators())
    if not (given.cpu or given.rehearse) and not any(platform != "cpu" for platform, _ in found):
        return refused(
            "jax finds no accelerator here; install its plugin (`pip install 'jax[cuda12]'`; `jsrl doctor` says what is "
            "missing), or give --cpu to try the command."
        )
    folder = (given.to or Path("gpu-results", given.set)).absolute()
    size = Size(
        folder,
        "ppo_cartpole" if given.rehearse else given.experiment,
        1.0 if given.rehearse else given.seconds,
        [8] if given.rehearse else [int(batch) for batch in given.batch.split(",")],
        options or ["--num-envs", str(ENVS_PER_ACTOR * max(2, usable_cores() - 1))],
        given.rehearse,
    )
    every = SETS[given.set](size)
    kinds = list(dict.fromkeys(part.kind for part in every))
    wanted = given.only.split(",") if given.only else kinds
    if unknown := sorted(set(wanted) - set(kinds)):
        return refused(f"there is no part {unknown[0]!r}; there are: {', '.join(kinds)}.")
    folder.mkdir(parents=True, exist_ok=True)
    until_s, ends = time.monotonic() + 60 * (given.minutes or (10 if given.set == "whole" else 5)), {}
    for part in every:
        if part.kind not in wanted:
            continue
        left_s, begun_s = until_s - time.monotonic(), time.monotonic()
        if part.accelerators > count:
            ends[part.name] = f"left out: needs {part.accelerators} accelerators, there are {count}"
        elif left_s < 1:
            ends[part.name] = "left out: the time limit was reached"
        else:
            ends[part.name] = f"{measure(part, left_s, folder)} ({time.monotonic() - begun_s:.0f} s)"
        facts = {"devices": found, "parts": ends, **environment_facts()}
        (folder / "machine.json").write_text(json.dumps(facts, indent=2) + "\n")
    print(f"\n{folder}:\n" + "\n".join(f"  {name:<14} {how}" for name, how in ends.items()))
    return int(any(how.startswith("failed") for how in ends.values()))


if __name__ == "__main__":
    sys.exit(main())
