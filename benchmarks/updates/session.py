"""A benchmark of off-policy learning from beginning to end: every work, all arms, alternating."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.peers.replay_works import ALGORITHMS, PEERS, ReplayWork, differences, works
from benchmarks.throughput import peers
from benchmarks.throughput.end_to_end import BenchmarkError, end_to_end
from benchmarks.throughput.progress import Progress
from benchmarks.throughput.session import PLACEMENTS, selected
from benchmarks.updates.tables import FORMAT, KIND
from jsrl.errors import ConfigError
from jsrl.services.runs.provenance import environment_facts

OURS = Path(__file__).parent / "ours.py"
DRIVERS = {"sb3": "run_sb3_replay.py", "sbx": "run_sbx_replay.py", "torch-loop": "run_torch_replay.py"}
ENVIRONMENTS = {"torch-loop": "sb3"}  # the peer whose virtual environment a driver uses, if not its own


def is_compared(name: str) -> bool:
    """Return whether an experiment is measured here and not by `benchmarks.throughput`."""
    return name in ALGORITHMS


def measure(given: argparse.Namespace, further: list[str]) -> dict[str, Any]:
    """Return the raw numbers; `further` are options of run.py for jsrl's arms.

    In the first repetition every setting of every system takes part; afterwards only its best by wall clock and its best
    per CPU-second, separately for each work.

    Raises:
      ConfigError: an unknown peer or part. BenchmarkError: no run of jsrl's succeeded.
    """
    todo = [work for work in works(given.name, numbers(given.batch), numbers(given.envs)) if work.part in parts(given)]
    raw = header(given, further)
    arms = {work: [*our_arms(work, given), *peer_arms(given, raw)] for work in todo}
    raw["works"] = [
        {"name": work.name, **dataclasses.asdict(work), "arms": [arm for arm, _ in arms[work]]} for work in todo
    ]
    with Progress(sum(map(len, arms.values())) * given.repetitions) as progress:
        for repetition in range(given.repetitions):
            for work in todo:
                known = [arm for arm, _ in arms[work]]
                for arm, peer in arms[work]:
                    with progress.step(f"{work.name}: {arm['system']} {arm['setting']}") as report:
                        report(
                            take(arm, peer, work, given, further) if takes_part(arm, known, repetition) else "left out"
                        )
    if given.repetitions and not any(arm["runs"] for work in raw["works"] for arm in work["arms"] if is_jsrl(arm)):
        raise BenchmarkError(f"every run of jsrl failed:\n{errors_of(raw)}")
    raw["duration_s"] = time.monotonic() - raw.pop("begin_s")
    return raw


def numbers(text: str) -> tuple[int, ...]:
    """Return the integers of a comma-separated list.

    Raises:
      ConfigError: one of them is not an integer, or smaller than 1.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words or not all(word.isdigit() and int(word) > 0 for word in words):
        raise ConfigError(f"{text!r} is not a list of positive integers; expected, for example, 256,8192.")
    return tuple(map(int, words))


def parts(given: argparse.Namespace) -> list[str]:
    """Return the requested parts.

    Raises:
      ConfigError: one of them does not exist.
    """
    return selected(given.parts, ("updates", "learning"), "part")


def header(given: argparse.Namespace, further: list[str]) -> dict[str, Any]:
    """Return the facts known before any run."""
    facts = {name: fact for name, fact in environment_facts().items() if name != "working_directory"}
    return {
        "kind": KIND,
        "format": FORMAT,
        "name": given.name,
        "algorithm": ALGORITHMS[given.name],
        "options": further,
        "seconds": given.seconds,
        "warm_up_s": given.warm_up_s,
        "repetitions": given.repetitions,
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg(),
        "facts": facts,
        "missing": {},
        "begin_s": time.monotonic(),
    }


Arm = tuple[dict[str, Any], peers.Peer | None]


def make_arm(system: str, setting: dict[str, Any]) -> dict[str, Any]:
    """Return an arm that has not run yet."""
    return {"system": system, "setting": setting, "runs": [], "errors": [], "differences": []}


def our_arms(work: ReplayWork, given: argparse.Namespace) -> list[Arm]:
    """Return jsrl's arms: settings of its update alone, or placements of whole runs."""
    if work.part == "updates":
        peer = peers.Peer("jsrl", Path(sys.executable), OURS)
        return [(make_arm("jsrl", setting), peer) for setting in peers.variants(peer)]
    wanted = selected(given.placements, PLACEMENTS, "placement")
    return [(make_arm("jsrl", {"placement": placement}), None) for placement in wanted]


def peer_arms(given: argparse.Namespace, raw: dict[str, Any]) -> list[Arm]:
    """Return the arms of other libraries; the reasons for missing ones go into the raw numbers.

    Raises:
      ConfigError: an unknown peer.
    """
    folder = peers.peers_folder(given.peers_dir)
    found: list[Arm] = []
    for name in selected(given.against, PEERS, "peer of off-policy learning"):
        peer = peers.find(ENVIRONMENTS.get(name, name), folder, peers.FOLDER / DRIVERS[name])
        if isinstance(peer, str):
            raw["missing"][name] = peer
            continue
        found += [(make_arm(name, setting), peer) for setting in peers.variants(peer)]
    return found


def is_jsrl(arm: dict[str, Any]) -> bool:
    """Return whether this is an arm of jsrl's."""
    return bool(arm["system"] == "jsrl")


def takes_part(arm: dict[str, Any], known: list[dict[str, Any]], repetition: int) -> bool:
    """Return whether an arm takes part: always at first, then if it is its system's best in wall clock or CPU time."""
    rivals = [other["runs"][0] for other in known if other["system"] == arm["system"] and other["runs"]]
    if repetition == 0:
        return True
    return bool(arm["runs"]) and any(
        arm["runs"][0][rate] == max(rival[rate] for rival in rivals) for rate in ("updates_per_s", "updates_per_cpu_s")
    )


def take(
    arm: dict[str, Any], peer: peers.Peer | None, work: ReplayWork, given: argparse.Namespace, further: list[str]
) -> str:
    """Run an arm once more; a failure is stored beside the successes. Return the text to show."""
    try:
        if peer is None:
            run = whole_run(work, arm["setting"]["placement"], given, further)
        else:
            options = further if is_jsrl(arm) else ()
            run = peers.drive(peer, work, arm["setting"], given.seconds, given.warm_up_s, options)
    except BenchmarkError as error:
        arm["errors"].append(str(error))
        return "failed"
    per_step = work.updates_per_step if work.part == "learning" else 1  # a driver counts updates, or env steps
    run["updates_per_s"] = run["env_steps_per_s"] * per_step
    run["updates_per_cpu_s"] = run["env_steps_per_cpu_s"] * per_step
    arm["runs"].append(run)
    if "work" in run:
        arm["differences"] = differences(work, run["work"])
    return f"{work.batch * run['updates_per_s']:,.0f} rows/s, {1e3 / run['updates_per_cpu_s']:.2f} CPU ms per update"


def whole_run(work: ReplayWork, placement: str, given: argparse.Namespace, further: list[str]) -> dict[str, Any]:
    """Return the figures of a jsrl run that samples and learns."""
    options = {
        "env.id": work.env,
        "num-envs": work.num_envs,
        "agent.learning-rate": work.learning_rate,
        "replay.capacity": work.rows,
        "replay.batch-size": work.batch,
        "replay.min-size": work.learning_starts,
        "replay.updates-per-env-step": float(work.updates_per_step),
    }
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    return dict(end_to_end(given.name, placement, given.seconds, given.warm_up_s, [*words, *further]))


def errors_of(raw: dict[str, Any]) -> str:
    """Return the errors, one line each."""
    return "\n".join(error for work in raw["works"] for arm in work["arms"] for error in arm["errors"])
