"""Held-out layouts of the real system on this machine: experiments, hosts with shaped links, and how to run one.

python benchmarks/scale/layouts.py NAME OUT.json      # run one layout, and write its figures
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
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
from jsrl.cluster.launcher import JoinedHosts, placed
from jsrl.cluster.layout import lay_out
from jsrl.control.hooks import STOP, LiveRun
from jsrl.control.processes.launcher import Local
from jsrl.control.run import run
from jsrl.envs.config import EnvConfig
from jsrl.experiment import EvaluatorConfig, Experiment, InferenceConfig, LearnerConfig
from jsrl.networks.model import NetworkConfig
from jsrl.tools.simulation.outcome import CORES, ENVIRONMENTS, INFERENCE, INTO, OUT, UPDATES
from jsrl.tools.tuning.trial import Limits, Progress
from tests.cluster.agents import Agent, namespaces

LIMITS = Limits(seconds=5.0, updates=4, warm_s=1.5, longest_s=25.0)
SLOW_MBIT = 20  # a trajectory takes 0.3 s on such a link, so queues in front of it grow for seconds
SLOW_LIMITS = Limits(seconds=20.0, updates=4, warm_s=8.0, longest_s=40.0)
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
    placement: str
    actors: int
    far: int = 0
    mbit: float = 0.0
    keys: bool = False
    max_rows: int = 1024
    servers: int = 1
    reuse: int = 1


LAYOUTS = (
    Layout("small-inline-8", "small", "inline", 8),
    Layout("small-inline-16", "small", "inline", 16),
    Layout("small-served-8", "small", "served", 8),
    Layout("small-served-12-keys", "small", "served", 12, keys=True),
    Layout("small-served-16", "small", "served", 16),
    Layout("small-served-16-far", "small", "served", 16, far=2),
    Layout("small-served-24", "small", "served", 24),
    Layout("quick-inline-8", "quick", "inline", 8),
    Layout("quick-served-8", "quick", "served", 8),
    Layout("quick-served-16", "quick", "served", 16),
    Layout("quick-served-16-keys", "quick", "served", 16, keys=True),
    Layout("quick-served-24-far", "quick", "served", 24, far=2),
    Layout("quick-served-8-alone", "quick", "served", 8, max_rows=2),
    Layout("quick-served-12-alone", "quick", "served", 12, max_rows=2),
    Layout("quick-served-24-alone", "quick", "served", 24, max_rows=2),
    Layout("quick-served-16-alone", "quick", "served", 16, max_rows=2),
    Layout("wide-inline-8-far-50", "wide", "inline", 8, far=1, mbit=50),
    Layout("wide-served-8-far-50", "wide", "served", 8, far=1, mbit=50),
    Layout("wide-served-16-far-50", "wide", "served", 16, far=2, mbit=50),
    Layout("wide-served-16-far-200", "wide", "served", 16, far=2, mbit=200),
    Layout("wide-served-24-far-200", "wide", "served", 24, far=2, mbit=200),
    Layout("wide-inline-12-far-50", "wide", "inline", 12, far=2, mbit=50),
    Layout("wide-served-8-far-100", "wide", "served", 8, far=1, mbit=100),
    Layout("wide-served-12-far-20", "wide", "served", 12, far=2, mbit=20),
    Layout("wide-inline-8-far-20", "wide", "inline", 8, far=1, mbit=20),
    Layout("wide-served-8-far-20", "wide", "served", 8, far=1, mbit=20),
    Layout("wide-served-16-far-100", "wide", "served", 16, far=2, mbit=100),
    Layout("wide-served-12", "wide", "served", 12),
    Layout("heavy-inline-8", "heavy", "inline", 8, reuse=4),
    Layout("heavy-inline-12-keys", "heavy", "inline", 12, keys=True, reuse=8),
    Layout("heavy-inline-16", "heavy", "inline", 16, reuse=8),
    Layout("heavy-inline-8-far", "heavy", "inline", 8, far=1, reuse=8),
    Layout("heavy-served-8", "heavy", "served", 8, reuse=8),
    Layout("heavy-served-16", "heavy", "served", 16, reuse=8),
    Layout("heavy-served-12-keys", "heavy", "served", 12, keys=True, reuse=8),
    Layout("heavy-served-16-far", "heavy", "served", 16, far=2, reuse=8),
)


def experiment(work: str, actors: int = 4, placement: Any = "served", **fields: Any) -> Experiment:
    """Return the experiment of a work with the given number of actors."""
    w = WORKS[work]
    env = EnvConfig("benchmarks.scale.sleeping:Sleeping", kwargs={"step_s": w.step_s, "size": w.size})
    return Experiment(
        name=work,
        agent=IMPALAConfig(network=NetworkConfig(hidden=w.hidden)),
        env=env,
        num_envs=ENVS * actors,
        num_actors=actors,
        rollout_length=w.rows,
        max_policy_lag=None,
        total_env_steps=10**12,
        placement=placement,
        evaluator=EvaluatorConfig(enabled=False),
        **fields,
    )


def experiment_of(layout: Layout) -> Experiment:
    """Return the experiment of a layout."""
    fields: dict[str, Any] = {"transport": "zeromq", "encrypt": True} if layout.keys else {}
    return experiment(
        layout.work,
        layout.actors,
        layout.placement,
        num_inference_servers=layout.servers if layout.placement == "served" else 1,
        inference=InferenceConfig(max_rows=layout.max_rows),
        learner=LearnerConfig(reuse=layout.reuse),
        **fields,
    )


def hosts_of(layout: Layout) -> tuple[HostFacts, ...]:
    """Return the hosts of a layout as a hosts file lists them; all share the cores of this machine."""
    cores = os.cpu_count() or 1
    away = [
        HostFacts(f"host-{n}", cores, 8_000, out_mbit=layout.mbit, in_mbit=layout.mbit, machine="this")
        for n in range(layout.far)
    ]
    return HostFacts("here", 1 if away else cores, 8_000, machine="this"), *away


def place(needs: Any, hosts: Any) -> Any:
    """Place workers on hosts as in the runs below."""
    families = {need.worker.rpartition("-")[0] for need in needs}
    return lay_out(placed(needs, [name for name in STAYS if name in families and len(hosts) > 1]), hosts)


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
        self._progress.settle()
        speed = self._progress.trial()
        first, last = self._marks[0], self._marks[-1]
        passed_s = last["at"] - first["at"]
        means = speed.means
        busy = (last["control"] - first["control"]) / passed_s
        workers = {name: value for name, value in means.items() if name.endswith("_cpu_share") and "others" not in name}
        own = busy + sum(workers.values())
        used = {f"{CORES} this": own / (os.cpu_count() or 1)}
        for number, name in enumerate(self._links):
            for way, what in (("out", OUT), ("in", INTO)):
                if layout.mbit:
                    carried = (last[f"{name} {way}"] - first[f"{name} {way}"]) / passed_s
                    used[f"{what} host-{number}"] = carried / (layout.mbit * 1e6 / 8)
        waits = ("wait_inference", "wait_params", "wait_block")
        used[ENVIRONMENTS] = 1.0 - sum(means.get(f"actor/{wait}_share", 0.0) for wait in waits)
        used[UPDATES] = 1.0 - means.get("learner/wait_batch_share", 0.0)
        if layout.placement == "served":
            used[INFERENCE] = (
                1.0 - means.get("inference/wait_share", 0.0) - means.get("inference/wait_params_share", 0.0)
            )
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
    limits = SLOW_LIMITS if 0 < layout.mbit <= SLOW_MBIT else LIMITS
    with (
        tempfile.TemporaryDirectory(prefix="jsrl-layout-") as name,
        far_hosts(layout, Path(name), limits) as (launcher, meter),
    ):
        run(experiment_of(layout), runs_dir=name, name="one", launcher=launcher, display="log-only", hooks=[meter])
    return meter.found(layout)


def main() -> int:
    """Run one layout."""
    name, path = sys.argv[1:]
    (layout,) = [layout for layout in LAYOUTS if layout.name == name]
    Path(path).write_text(json.dumps(measure(layout)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
