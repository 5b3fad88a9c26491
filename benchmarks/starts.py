"""Check for leaks where runs start and stop in one process: `python benchmarks/starts.py --starts 100`.

Each start is a whole `jsrl.control.run.run` with a few rows of a real experiment, in this process (as in a notebook or a
tuner). After each one are counted: threads, open descriptors, child processes, ZeroMQ contexts, files of this process's runs
in /dev/shm, and resident memory. After the first starts none may grow: counts stay the same, memory grows by less than
--limit-mb (Theil-Sen slope).

Placements alternate in separate processes. Raw numbers go to benchmarks/results/starts-NAME.json.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.endurance.holdings import holdings
from benchmarks.endurance.slopes import theil_sen
from jsrl.experiment.placements import PlacementName

WARM_UP_SHARE, LIMIT_MB_PER_START = 0.25, 0.5
# XLA and Orbax start the last threads of their pools late: in one of many starts, and sometimes in one of few.
LATE_THREADS, POOL_THREADS = 10, 4
COUNTED = ("threads", "descriptors", "children", "contexts", "shared_files")


class Resources(NamedTuple):
    """The resources of this process after a run; `open`: the kinds of its descriptors."""

    threads: int
    descriptors: int
    children: int
    contexts: int
    shared_files: int
    rss_mb: float
    open: tuple[str, ...]


def resources() -> Resources:
    """Return the current resources of this process."""
    import psutil
    import zmq

    gc.collect()
    held = holdings(os.getpid())
    assert held is not None
    contexts = sum(type(thing) is zmq.Context and not thing.closed for thing in gc.get_objects())
    mine = list(Path("/dev/shm", f"jsrl-{os.getuid()}").glob(f"{os.getpid()}-*"))
    children = len(psutil.Process().children(recursive=True))
    return Resources(held.threads, held.descriptors, children, contexts, len(mine), held.rss_mb, descriptors())


def descriptors() -> tuple[str, ...]:
    """Return the kind or path of each open descriptor of this process."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{name}").partition(":[")[0])
        except OSError:  # the one of the listing itself
            continue
    return tuple(sorted(found))


def short_run(name: str, placement: PlacementName, folder: Path) -> Callable[[], None]:
    """Return a function that starts a run of a few rows and waits for its end."""
    from jsrl.cli.experiments import experiments
    from jsrl.control.run import run
    from jsrl.experiment import EvaluatorConfig

    e = experiments()[name]()
    short = dataclasses.replace(
        e, num_envs=4, rollout_length=16, batch_envs=None, placement=placement, stop_at_return=None, total_env_steps=128
    )
    short = dataclasses.replace(short, evaluator=EvaluatorConfig(episodes=1, num_envs=1, final_episodes=0))

    def start() -> None:
        result = run(short, runs_dir=folder, name="start", overwrite=True, display="quiet")
        if result.env_steps < 128:
            raise RuntimeError(f"the run ended after {result.env_steps} env steps: {result.ended}")

    return start


def measure(start: Callable[[], None], number: int, show: Callable[[str], None] = lambda _: None) -> list[Resources]:
    """Return the resources after each of the given number of starts."""
    seen = []
    for count in range(number):
        start()
        seen.append(resources())
        show(f"[{count + 1}/{number}] {seen[-1].rss_mb:.0f} MB, {seen[-1].descriptors} descriptors")
    return seen


def faults(seen: list[Resources], limit_mb: float = LIMIT_MB_PER_START) -> list[str]:
    """Return what grew after the first starts; memory may grow by the given MB per start."""
    warm = seen[max(1, int(WARM_UP_SHARE * len(seen))) :]
    found = []
    for name in COUNTED:
        first, last = getattr(warm[0], name), getattr(warm[-1], name)
        late = max(len(seen) // LATE_THREADS, POOL_THREADS) if name == "threads" else 0
        if last > first + late:
            found.append(f"{name}: {first} -> {last}")
            if name == "descriptors":
                found.append(f"new descriptors: {new_ones(warm[0].open, warm[-1].open)}")
    slope = theil_sen(range(len(warm)), [one.rss_mb for one in warm])
    if len(warm) >= 4 and slope.slope > limit_mb and slope.low > 0:
        found.append(f"memory grows by {slope.slope:.2f} MB a start ({slope.low:.2f} - {slope.high:.2f})")
    return found


def new_ones(before: tuple[str, ...], after: tuple[str, ...]) -> list[str]:
    """Return the items of the second list that are not in the first."""
    rest = list(after)
    for name in before:
        if name in rest:
            rest.remove(name)
    return rest


def own_process(given: argparse.Namespace, placement: str, number: int) -> dict[str, Any]:
    """Measure one placement in a separate process; return its numbers."""
    words = [sys.executable, __file__, given.experiment, "--only", placement, "--starts", str(number)]
    words += ["--limit-mb", str(given.limit_mb)]
    ended = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False)
    try:
        return dict(json.loads(ended.stdout.splitlines()[-1]))
    except (IndexError, ValueError):
        return {"placement": placement, "faults": [f"exit status {ended.returncode}"], "seen": []}


def main() -> int:
    """Measure every placement, print, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", nargs="?", default="ppo_cartpole", help="of run.py")
    parser.add_argument("--starts", type=int, default=100, help="serial; other placements make --process-starts")
    parser.add_argument("--process-starts", type=int, default=20, help="starts of inline and served runs")
    parser.add_argument("--placements", default="serial,inline,served")
    parser.add_argument("--json", type=Path, help="file (default: benchmarks/results/starts-NAME.json)")
    parser.add_argument(
        "--limit-mb", type=float, default=LIMIT_MB_PER_START, help="a start (%(default)s; a few starts need more)"
    )
    parser.add_argument("--only", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.only:
        with tempfile.TemporaryDirectory(prefix="jsrl-starts-") as folder:
            start = short_run(given.experiment, given.only, Path(folder))
            seen = measure(start, given.starts, lambda text: print(f"{given.only} {text}", file=sys.stderr))
        numbers = [[*one[: len(COUNTED)], round(one.rss_mb, 2)] for one in seen]
        print(json.dumps({"placement": given.only, "faults": faults(seen, given.limit_mb), "seen": numbers}))
        return 0
    from jsrl.services.runs.provenance import environment_facts

    arms = [
        own_process(given, placement, given.starts if placement == "serial" else given.process_starts)
        for placement in given.placements.split(",")
    ]
    facts = environment_facts()
    facts.pop("working_directory", None)
    raw = {"experiment": given.experiment, "columns": [*COUNTED, "rss_mb"], "arms": arms, "environment": facts}
    path = given.json or Path(__file__).parent / "results" / f"starts-{given.experiment}.json"
    path.write_text(json.dumps(raw, separators=(",", ":")) + "\n")
    for arm in arms:
        ends = f"{arm['seen'][0]} -> {arm['seen'][-1]}" if arm["seen"] else ""
        print(f"{arm['placement']:<8} {len(arm['seen'])} starts: {'; '.join(arm['faults']) or 'nothing grew'} {ends}")
    print(f"  columns: {', '.join(raw['columns'])}; raw numbers: {path}")
    return int(any(arm["faults"] for arm in arms))


if __name__ == "__main__":
    sys.exit(main())
