"""Many actors under several host agents on this machine: start, fan-in, params, many kills, and the cost of control.

    python benchmarks/scale/thousand_actors.py [--actors 1000] [--agents 4] [--kills 200] [--seconds 30] [--out FILE]

Actors sleep for 4 s in each step of their environments, as slow simulators take, and are forked by their agents; the
controller, the learner and one inference server are those of any run with `--listen`. The controller is this process: its
CPU time in the phase without kills is divided by the elapsed time. Nothing may be lost: no trajectory is counted twice or
missed in the ledger, and every killed actor returns.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
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
from jsrl.experiment import DeadlineConfig, EvaluatorConfig, Experiment, SupervisionConfig
from jsrl.networks.model import NetworkConfig
from jsrl.transport.ledger.leg_page import read_connections
from jsrl.transport.ledger.legs import SAMPLES, ledger_path, leg_folder
from jsrl.transport.ledger.page import read_page
from jsrl.transport.ledger.reconcile import leg_ledger

STEP_S, ROWS = 4.0, 2


def experiment(actors: int) -> Experiment:
    """Return a run of actors with one sleeping environment each."""
    batch = next(size for size in range(min(100, actors), 0, -1) if actors % size == 0)
    return Experiment(
        name="scale",
        agent=IMPALAConfig(network=NetworkConfig(hidden=(16,))),
        env=EnvConfig("benchmarks.scale.sleeping:Sleeping", kwargs={"step_s": STEP_S, "size": 16}),
        num_envs=actors,
        num_actors=actors,
        num_groups=actors,
        rollout_length=ROWS,
        batch_envs=batch,
        max_policy_lag=None,
        total_env_steps=10**12,
        placement="served",
        restart=5,
        supervision=SupervisionConfig(backoff_s=0.1),
        deadlines=DeadlineConfig(ready_s=600.0),
        evaluator=EvaluatorConfig(enabled=False),
    )


class Watch:
    """A hook and a thread: waits for all actors, measures without kills, kills, waits until all are back, and ends the run.

    Args:
      given: the options. agents: the processes of the agents. messages: returns how many the controller got from them.
    """

    def __init__(
        self, given: argparse.Namespace, agents: list[psutil.Process], folder: Path, messages: Callable[[], int]
    ) -> None:
        self._given, self._agents, self._folder, self._messages = given, agents, folder, messages
        self._ready, self.restarts, self._over = 0, 0.0, False
        self._began_s = time.monotonic()
        self.found: dict[str, Any] = {}
        self.problem = ""
        self._thread = threading.Thread(target=self._guarded, daemon=True)
        self._thread.start()

    def on_metrics(self, live: LiveRun, row: dict[str, Any]) -> str | None:
        """Record the progress of the run; see jsrl.control.hooks."""
        self.restarts = row.get("restarts/actor", self.restarts)
        return STOP if self._over else None

    def _guarded(self) -> None:
        try:
            self._measure()
        except Exception as error:
            self.problem = repr(error)
        self._over = True

    def _measure(self) -> None:
        count, found = self._given.actors, self.found
        self._await(lambda: self._working() >= count, "all actors to commit a trajectory", self._given.patience_s)
        found["all_working_s"] = round(time.monotonic() - self._began_s, 1)
        time.sleep(5.0)
        found["calm"] = self._undisturbed(self._given.seconds)
        found["actor_pss_mb"] = round(sum(map(_pss_mb, self._actors()[:20])) / 20, 1)
        victims = random.Random(0).sample(self._actors(), self._given.kills)
        consumed, begin_s = self._consumed(), time.monotonic()
        for victim in victims:
            with contextlib.suppress(psutil.Error):
                victim.kill()
        self._await(lambda: self.restarts >= self._given.kills, "a replacement of each", self._given.patience_s)
        found["replaced_s"] = round(time.monotonic() - begin_s, 1)
        self._await(lambda: len(self._actors()) >= count, "all actors", self._given.patience_s)
        self._await(lambda: self._consumed() > consumed + 2 * count, "trajectories", self._given.patience_s)
        found["back_s"] = round(time.monotonic() - begin_s, 1)
        found["after"] = self._undisturbed(min(10.0, self._given.seconds))

    def _undisturbed(self, seconds: float) -> dict[str, float]:
        """Return the CPU load in cores of the controller and each agent, and rates, over a while."""
        own, actors = psutil.Process(), self._actors()
        acted_s = sum(map(self._cpu_s, actors))
        before = [self._cpu_s(own), *(self._cpu_s(agent) for agent in self._agents)]
        machine, consumed, begin_s = psutil.cpu_times(), self._consumed(), time.monotonic()
        messages = self._messages()
        time.sleep(seconds)
        passed_s = time.monotonic() - begin_s
        messages = self._messages() - messages
        after = [self._cpu_s(own), *(self._cpu_s(agent) for agent in self._agents)]
        cores = [round((b - a) / passed_s, 4) for a, b in zip(before, after, strict=True)]
        acted_s = sum(map(self._cpu_s, actors)) - acted_s
        busy = sum(psutil.cpu_times()[:3]) - sum(machine[:3])
        return {
            "seconds": round(passed_s, 1),
            "controller_cores": cores[0],
            "agent_cores": max(cores[1:]),
            "agents_cores": round(sum(cores[1:]), 4),
            "actors_cores": round(acted_s / passed_s, 3),
            "machine_cores": round(busy / passed_s, 2),
            "messages_per_s": round(messages / passed_s, 1),
            "trajectories_per_s": round((self._consumed() - consumed) / passed_s, 1),
            "controller_rss_mb": round(own.memory_info().rss / 1e6),
        }

    def _cpu_s(self, process: psutil.Process) -> float:
        times = process.cpu_times()
        return times.user + times.system

    def _actors(self) -> list[psutil.Process]:
        """Return the living actors, which the agents' children fork. One look at all processes takes 0.1 s."""
        found = list(psutil.process_iter(["name", "ppid"]))
        agents = {agent.pid for agent in self._agents}
        hosts = {process.pid for process in found if process.info["ppid"] in agents}
        return [p for p in found if p.info["ppid"] in hosts and p.info["name"].startswith("actor-")]

    def _working(self) -> int:
        """Return how many producers have committed a trajectory."""
        return sum(connection.received > 0 for connection in read_connections(leg_folder(self._folder, SAMPLES)))

    def _consumed(self) -> int:
        life = read_page(ledger_path(self._folder, SAMPLES))
        return 0 if life is None else life.ledger.consumed

    def _await(self, reached: Any, what: str, patience_s: float) -> None:
        until = time.monotonic() + patience_s
        while not reached():
            if time.monotonic() > until:
                raise TimeoutError(f"waited {patience_s:g} s for {what}: {len(self._actors())} actors live")
            time.sleep(2.0)


def _pss_mb(process: psutil.Process) -> float:
    with contextlib.suppress(psutil.Error):
        return process.memory_full_info().pss / 1e6
    return 0.0


@contextlib.contextmanager
def agents_of(launcher: JoinedHosts, count: int, folder: Path) -> Iterator[list[psutil.Process]]:
    """Start agents with separate names on this host, and end them afterwards."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    started = []
    try:
        for number in range(count):
            words = [sys.executable, "-m", "jsrl.cli.main", "join", str(launcher.join_key)]
            words += ["--name", f"host-{number}", "--patience-s", "60", "--memory-mb", "16000"]
            with (folder / f"agent-{number}.txt").open("wb") as log:
                started.append(subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT, env=environment))
        yield [psutil.Process(agent.pid) for agent in started]
    finally:
        for agent in started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                agent.wait(20.0)
            agent.kill()
            agent.wait(10.0)


def counted_messages(launcher: JoinedHosts) -> Callable[[], int]:
    """Return a function that returns how many messages of agents the controller has got since now."""
    members, counts = launcher.members, [0]
    handle = members.handle

    def handle_counted(*args: Any) -> Any:
        counts[0] += 1
        return handle(*args)

    members.handle = handle_counted  # type: ignore[method-assign, assignment]
    return lambda: counts[0]


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Run it and return the figures."""
    with tempfile.TemporaryDirectory(prefix="jsrl-scale-") as name:
        folder = Path(name)
        own = HostFacts("here", 1, 16_000, "127.0.0.1")
        told: list[str] = []
        launcher = JoinedHosts(Local(), own, 0, given.agents, folder / "join.key", told.append, keep=("inference",))
        run_folder = folder / "scale" / "many"
        try:
            with agents_of(launcher, given.agents, folder) as agents:
                watch = Watch(given, agents, run_folder, counted_messages(launcher))
                result = run(
                    experiment(given.actors),
                    runs_dir=folder,
                    name="many",
                    launcher=launcher,
                    display="log-only",
                    hooks=[watch],
                )
                launcher.close()
        finally:
            launcher.close()
        ledger = leg_ledger(result.ledger)
        return watch.found | {
            "problem": watch.problem,
            "ended": result.ended,
            "ledger": {
                name: getattr(ledger, name) for name in ("produced", "consumed", "dropped", "in_flight", "unknown")
            },
            "holds": ledger.holds,
            "restarts": watch.restarts,
            "updates": result.updates,
        }


def main() -> int:
    """Measure, print and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--actors", type=int, default=1000)
    parser.add_argument("--agents", type=int, default=4)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=30.0, help="of the part without kills")
    parser.add_argument(
        "--patience-s", type=float, default=240.0, help="for all actors to start, and to return after kills"
    )
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    found = {"actors": given.actors, "agents": given.agents, "kills": given.kills, **measure(given)}
    found |= {"cores": os.cpu_count(), "python": platform.python_version()}
    print(json.dumps(found, indent=1))
    if given.out is not None:
        given.out.write_text(json.dumps(found, indent=1) + "\n")
    return int(bool(found["problem"]) or not found["holds"])


if __name__ == "__main__":
    sys.exit(main())
