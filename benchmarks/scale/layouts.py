"""Actors, inference servers and a learner in several layouts on this machine: env steps/s, and how busy each part is.

    python benchmarks/scale/layouts.py                        # lists the layouts
    python benchmarks/scale/layouts.py NAME ... [--out FILE]  # measures layouts, adds them to FILE

Environments sleep in each step, so that few cores can hold many. Hosts are network namespaces (root is needed) behind links
of a given speed, which share the cores of this machine; streams to them go over TCP with keys.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from jsrl.agents.impala import IMPALAConfig
from jsrl.cluster.facts import HostFacts
from jsrl.cluster.launcher import JoinedHosts
from jsrl.control.hooks import STOP, LiveRun
from jsrl.control.processes.launcher import Local
from jsrl.control.run import run
from jsrl.envs.config import EnvConfig
from jsrl.experiment import EvaluatorConfig, Experiment, InferenceConfig, LearnerConfig
from jsrl.experiment.placements import PlacementName
from jsrl.networks.model import NetworkConfig
from jsrl.tools.tuning.trial import Limits, Progress
from tests.cluster.agents import Agent, namespaces

LIMITS = Limits(seconds=5.0, updates=4, warm_s=1.5, longest_s=25.0)
ENVS = 4  # of each actor
STAYS = ("inference",)  # on the first host, where the learner is


@dataclass(frozen=True)
class Work:
    """The workload: bytes of an observation, sleep of an environment in seconds, widths of the network, rows."""

    size: int = 64
    step_s: float = 0.004
    hidden: tuple[int, ...] = (16,)
    rows: int = 20


WORKS = {
    "small": Work(),
    "quick": Work(step_s=0.0003),
    "wide": Work(size=8192, step_s=0.004),
    "heavy": Work(hidden=(1024, 1024), step_s=0.002),
}


@dataclass(frozen=True)
class Layout:
    """One layout. far: remote hosts; mbit: of their links, 0: not shaped. keys: streams on one host go over TCP.

    reuse: updates with a batch.
    """

    name: str
    work: str
    placement: PlacementName
    actors: int
    far: int = 0
    mbit: float = 0.0
    keys: bool = False
    max_rows: int = 1024
    reuse: int = 1


LAYOUTS = (
    Layout("small-served-8", "small", "served", 8),
    Layout("small-served-16-far", "small", "served", 16, far=2),
    Layout("small-served-24", "small", "served", 24),
    Layout("quick-inline-8", "quick", "inline", 8),
    Layout("quick-served-8", "quick", "served", 8),
    Layout("quick-served-16", "quick", "served", 16),
    Layout("quick-served-16-keys", "quick", "served", 16, keys=True),
    Layout("quick-served-24-far", "quick", "served", 24, far=2),
    Layout("quick-served-16-alone", "quick", "served", 16, max_rows=2),
    Layout("wide-served-16-far-50", "wide", "served", 16, far=2, mbit=50),
    Layout("wide-served-16-far-200", "wide", "served", 16, far=2, mbit=200),
    Layout("wide-inline-12-far-50", "wide", "inline", 12, far=2, mbit=50),
    Layout("wide-served-16-far-100", "wide", "served", 16, far=2, mbit=100),
    Layout("heavy-served-8", "heavy", "served", 8, reuse=8),
    Layout("heavy-served-16", "heavy", "served", 16, reuse=8),
)


def experiment_of(layout: Layout) -> Experiment:
    """Return the experiment of a layout."""
    work = WORKS[layout.work]
    fields: dict[str, Any] = {"transport": "zeromq", "encrypt": True} if layout.keys else {}
    return Experiment(
        name=layout.work,
        agent=IMPALAConfig(network=NetworkConfig(hidden=work.hidden)),
        env=EnvConfig("benchmarks.scale.sleeping:Sleeping", kwargs={"step_s": work.step_s, "size": work.size}),
        num_envs=ENVS * layout.actors,
        num_actors=layout.actors,
        rollout_length=work.rows,
        max_policy_lag=None,
        total_env_steps=10**12,
        placement=layout.placement,
        evaluator=EvaluatorConfig(enabled=False),
        inference=InferenceConfig(max_rows=layout.max_rows),
        learner=LearnerConfig(reuse=layout.reuse),
        **fields,
    )


class Meter:
    """A hook that measures CPU and links while the run is steady, and ends it after long enough (`limits`)."""

    def __init__(self, links: list[str], agents: list[psutil.Process], limits: Limits = LIMITS) -> None:
        self._links, self._limits, self._progress = links, limits, Progress(limits)
        self._control = [psutil.Process(), *agents]
        self._marks: list[dict[str, float]] = []

    def on_metrics(self, live: LiveRun, row: dict[str, Any]) -> str | None:
        """Process a line; see jsrl.control.hooks."""
        warm = self._progress.warm
        self._progress.take(row, row["wall_s"])
        if self._progress.warm:
            self._marks[1:] = [self._mark()] if warm else []
            self._marks = self._marks or [self._mark()]
        return STOP if self._progress.enough or row["wall_s"] > self._limits.start_s + self._limits.longest_s else None

    def _mark(self) -> dict[str, float]:
        nics, cpu = psutil.net_io_counters(pernic=True), [process.cpu_times() for process in self._control]
        machine = psutil.cpu_times()
        found = {"machine": machine.user + machine.nice + machine.system}
        found |= {f"{name} out": nics[name].bytes_recv for name in self._links}
        found |= {f"{name} in": nics[name].bytes_sent for name in self._links}
        return found | {"control": sum(times.user + times.system for times in cpu), "at": time.monotonic()}

    def found(self, layout: Layout) -> dict[str, Any]:
        """Return throughput, and the load of every resource."""
        speed = self._progress.trial()
        first, last = self._marks[0], self._marks[-1]
        passed_s = last["at"] - first["at"]
        means = speed.means
        busy = (last["control"] - first["control"]) / passed_s
        workers = {name: value for name, value in means.items() if name.endswith("_cpu_share") and "others" not in name}
        own = busy + sum(workers.values())
        used = {"cores": own / (os.cpu_count() or 1)}
        for number, name in enumerate(self._links):
            for way in ("out", "in"):
                if layout.mbit:
                    carried = (last[f"{name} {way}"] - first[f"{name} {way}"]) / passed_s
                    used[f"link {way} of host-{number}"] = carried / (layout.mbit * 1e6 / 8)
        waits = ("wait_inference", "wait_params", "wait_block")
        used["environments"] = 1.0 - sum(means.get(f"actor/{wait}_share", 0.0) for wait in waits)
        used["updates"] = 1.0 - means.get("learner/wait_batch_share", 0.0)
        if layout.placement == "served":
            served = ("wait", "wait_params")
            used["inference"] = 1.0 - sum(means.get(f"inference/{wait}_share", 0.0) for wait in served)
        return {
            "env_steps_per_s": speed.env_steps_per_s,
            "seconds": speed.seconds,
            "control_cores": busy,
            "others_cores": round(max(0.0, (last["machine"] - first["machine"]) / passed_s - own), 3),
            "used": {name: round(share, 4) for name, share in used.items()},
            "means": {name: round(value, 5) for name, value in means.items() if "/loss" not in name},
        }


@contextmanager
def far_hosts(layout: Layout, folder: Path, limits: Limits = LIMITS) -> Iterator[tuple[JoinedHosts | None, Meter]]:
    """Yield the launcher of a layout's hosts, each a network namespace behind a link, and a meter for them."""
    if not layout.far:
        yield None, Meter([], [], limits)
        return
    with ExitStack() as stack:
        address, names = stack.enter_context(namespaces(layout.far))
        if not names:
            raise SystemExit("network namespaces are not allowed here (they need root)")
        links = [_shape(name, number, layout.mbit) for number, name in enumerate(names)]
        own = HostFacts("here", 1, 8_000, address)
        families = [name for name in STAYS if layout.placement == "served"]
        launcher = JoinedHosts(Local(), own, 0, layout.far, folder / "join.key", lambda line: None, keep=families)
        stack.callback(launcher.close)
        agents = []
        for number, name in enumerate(names):
            agent = Agent(launcher.join_key, f"host-{number}", folder / f"{name}.txt", name)
            stack.callback(agent.close)
            agents.append(agent.process)
        yield launcher, Meter(links, agents, limits)


def _shape(namespace: str, number: int, mbit: float) -> str:
    """Limit both directions of a namespace's link with a token bucket; return the name of its end here."""
    tag = f"{os.getpid() % 100_000}{number}"
    if mbit:
        bucket = ["root", "tbf", "rate", f"{mbit:g}mbit", "burst", "64kb", "latency", "300ms"]
        inside = ["ip", "netns", "exec", namespace, "tc", "qdisc", "add", "dev", f"ji{tag}", *bucket]
        subprocess.run(inside, check=True)
        subprocess.run(["tc", "qdisc", "add", "dev", f"jo{tag}", *bucket], check=True)
    return f"jo{tag}"


def measure(layout: Layout) -> dict[str, Any]:
    """Run a layout and return its figures."""
    with (
        tempfile.TemporaryDirectory(prefix="jsrl-layout-") as name,
        far_hosts(layout, Path(name)) as (launcher, meter),
    ):
        run(experiment_of(layout), runs_dir=name, name="one", launcher=launcher, display="log-only", hooks=[meter])
    found = meter.found(layout)
    return {name: found[name] for name in ("env_steps_per_s", "seconds", "control_cores", "others_cores", "used")}


def main() -> None:
    """Measure layouts, or list them."""
    known = {layout.name: layout for layout in LAYOUTS}
    line = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    line.add_argument("layouts", nargs="*", metavar="NAME")
    line.add_argument("--out", type=Path)
    given = line.parse_args()
    if unknown := [name for name in given.layouts if name not in known]:
        line.error(f"there is no layout {unknown[0]}; there are: {', '.join(known)}")
    if not given.layouts:
        print("\n".join(known))
    kept = json.loads(given.out.read_text()) if given.out and given.out.exists() else {"layouts": {}}
    for name in given.layouts:
        figures = measure(known[name])
        print(json.dumps({"layout": name} | figures), flush=True)
        kept["layouts"].setdefault(name, []).append(figures)
        if given.out:
            given.out.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
