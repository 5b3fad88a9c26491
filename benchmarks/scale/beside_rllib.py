"""PPO on environments that sleep, on 1, 2 and 3 hosts, against RLlib: rows/s, efficiency, CPU, memory, recovery after a loss.

    python benchmarks/peers/install.py rllib
    python benchmarks/scale/beside_rllib.py [--hosts 1 2 3] [--actors 6] [--rounds 3] [--out FILE]

Hosts are network namespaces (root is needed) that share the cores of this machine. The learner is on this host, the actors
are on the others, one environment each. Both systems have the same network, rows per update, epochs and minibatches. The
efficiency is the share of the rows that the environments could give if only their sleep took time. With the largest number
of hosts, one of them is killed with all its processes; each host has room for all actors. The run counts as recovered when
the rate over 10 s reaches 85% of the rate before; reported are the seconds until those 10 s started. `others` is the rate
of the seconds 1 to 7 after the loss, divided by what the remaining actors gave before. In a synchronous run (`jsrl`) some of
them make two trajectories for each batch meanwhile, so that about 0.75 is expected with three hosts; `jsrl-async` is the
same run without a limit of the policy lag.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import platform
import secrets
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import process_tree
from jsrl.agents.ppo import PPOConfig
from jsrl.cluster.facts import HostFacts
from jsrl.cluster.launcher import JoinedHosts
from jsrl.control.hooks import LiveRun
from jsrl.control.processes.launcher import Local
from jsrl.control.run import run
from jsrl.envs.config import EnvConfig
from jsrl.experiment import EvaluatorConfig, Experiment
from jsrl.networks.model import NetworkConfig
from tests.cluster.agents import Agent, namespaces

ROOT = Path(__file__).resolve().parents[2]
ENV = "benchmarks.scale.sleeping:Sleeping"
WORK: dict[str, Any] = {
    "step_s": 0.05,
    "size": 64,
    "rows": 20,
    "epochs": 4,
    "minibatches": 4,
    "learning_rate": 3e-4,
    "hidden": 64,
}
WINDOW_S, RECOVERED, PATIENCE_S = 10.0, 0.85, 180.0
AT_ONCE_S = (1.0, 7.0)  # after a loss, before the lost workers are replaced
RAY = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0", "RAY_AUTH_MODE": "token", "OMP_NUM_THREADS": "1"}


def experiment(actors: int, lag: int | None, placement: Any = "inline") -> Experiment:
    """Return jsrl's run: an environment for each actor, and params at most `lag` updates old (None: no limit)."""
    return Experiment(
        name="sleeping",
        agent=PPOConfig(
            network=NetworkConfig(hidden=(WORK["hidden"], WORK["hidden"])),
            num_epochs=WORK["epochs"],
            num_minibatches=WORK["minibatches"],
            learning_rate=WORK["learning_rate"],
        ),
        env=EnvConfig(ENV, kwargs={"step_s": WORK["step_s"], "size": WORK["size"]}),
        num_envs=actors,
        num_actors=actors,
        rollout_length=WORK["rows"],
        max_policy_lag=lag,
        total_env_steps=10**12,
        placement=placement,
        restart=5,
        evaluator=EvaluatorConfig(enabled=False),
    )


class Progress:
    """A hook that prints the env steps trained on."""

    def on_metrics(self, live: LiveRun, row: dict[str, Any]) -> None:
        """Print the env steps; see jsrl.control.hooks."""
        print(json.dumps({"env_steps": live.env_steps}), flush=True)


def drive(system: str, address: str, hosts: int, actors: int, folder: Path) -> None:
    """Run the process of a jsrl run: print the path of the join key, then the progress."""
    launcher = JoinedHosts(
        Local(), HostFacts("here", 1, 8_000, address), 0, hosts, folder / "join.key", lambda line: None
    )
    print(json.dumps({"key": str(launcher.join_key)}), flush=True)
    try:
        run(
            experiment(actors, 0 if system == "jsrl" else None),
            runs_dir=folder,
            launcher=launcher,
            display="log-only",
            hooks=[Progress()],
        )
    finally:
        launcher.close()


class Driver:
    """A process that prints its progress, one JSON object per line, and its speed.

    Attributes:
      process: of the system. steps: (time.monotonic(), env steps) of each line.
    """

    def __init__(self, words: list[str], environment: dict[str, str], log: Path) -> None:
        with log.open("wb") as errors:
            self.process = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True)
        self.steps: list[tuple[float, int]] = []
        self.log = log

    def read(self) -> dict[str, Any]:
        """Return the next line that is a JSON object."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise RuntimeError(f"the driver ended:\n{self.log.read_text()[-3000:]}")

    def follow(self) -> None:
        """Read progress continuously in a thread."""

        def take() -> None:
            with contextlib.suppress(RuntimeError):
                while True:
                    self.steps.append((time.monotonic(), self.read()["env_steps"]))

        threading.Thread(target=take, daemon=True).start()

    def await_updates(self, patience_s: float) -> None:
        """Wait for the first lines with env steps.

        Raises:
          RuntimeError: the process has ended, or there are none in time; with the end of all logs.
        """
        until = time.monotonic() + patience_s
        while len(self.steps) < 4 or not self.steps[-1][1]:
            if self.process.poll() is not None or time.monotonic() > until:
                logs = sorted(self.log.parent.glob("*.txt"))
                raise RuntimeError(
                    "no progress:\n" + "\n".join(f"{log.name}:\n{log.read_text()[-3000:]}" for log in logs)
                )
            time.sleep(0.2)

    def rate(self, since_s: float) -> float:
        """Return env steps per second between the first and the last line since a time; 0 with fewer than two lines."""
        found = [step for step in self.steps if step[0] >= since_s]
        if len(found) < 2 or found[-1][0] <= found[0][0]:
            return 0.0
        return (found[-1][1] - found[0][1]) / (found[-1][0] - found[0][0])

    def steps_at(self, at_s: float) -> int:
        """Return the env steps of the last line before a time."""
        return max(steps for time_s, steps in self.steps if time_s <= at_s)


@contextlib.contextmanager
def started(
    system: str, address: str, names: list[str], actors: int, folder: Path
) -> Iterator[tuple[Driver, list[int]]]:
    """Yield the driver of a started system, and the first process of each host."""
    with contextlib.ExitStack() as stack:
        begin = _rllib if system == "rllib" else functools.partial(_jsrl, system)
        driver, roots = begin(stack, address, names, actors, folder)
        driver.follow()
        try:
            yield driver, roots
        finally:
            for pid in (driver.process.pid, *roots):
                process_tree.end_tree(pid)
            driver.process.wait(30)


def _jsrl(
    system: str, stack: contextlib.ExitStack, address: str, names: list[str], actors: int, folder: Path
) -> tuple[Driver, list[int]]:
    words = [
        sys.executable,
        "-m",
        "benchmarks.scale.beside_rllib",
        "--drive",
        system,
        address,
        str(len(names)),
        str(actors),
        str(folder),
    ]
    driver = Driver(words, dict(os.environ), folder / "driver.txt")
    met = driver.read()
    roots = []
    for number, name in enumerate(names):
        agent = Agent(Path(met["key"]), f"host-{number}", folder / f"{name}.txt", name)
        stack.callback(agent.close)
        roots.append(agent.popen.pid)
    return driver, roots


def _rllib(
    stack: contextlib.ExitStack, address: str, names: list[str], actors: int, folder: Path
) -> tuple[Driver, list[int]]:
    peer = Path.home() / ".cache" / "jsrl" / "peers" / "rllib" / "bin"
    environment = os.environ | RAY | {"RAY_AUTH_TOKEN": secrets.token_hex(32), "PYTHONPATH": str(ROOT)}
    head = f"{address}:6399"

    def node(prefix: list[str], *words: str) -> int:
        command = [
            *prefix,
            str(peer / "python"),
            str(peer / "ray"),
            "start",
            "--block",
            "--disable-usage-stats",
            *words,
        ]
        with (folder / "nodes.txt").open("ab") as log:
            popen = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
        stack.callback(popen.wait, 30)
        return popen.pid

    store = ["--object-store-memory", str(150 << 20)]
    root = node(
        [],
        "--head",
        "--node-ip-address",
        address,
        "--port",
        "6399",
        "--num-cpus",
        "1",
        "--include-dashboard=false",
        *store,
    )
    stack.callback(process_tree.end_tree, root)
    time.sleep(8.0)
    net, roots = address.rpartition(".")[0], []
    for number, name in enumerate(names):
        there = ["--address", head, "--node-ip-address", f"{net}.{number + 2}", "--num-cpus", str(actors + 1)]
        roots.append(node(["ip", "netns", "exec", name], *there, "--resources", '{"host": 100}', *store))
    asked = WORK | {"actors": actors, "hosts": len(names), "address": head, "ip": address, "env": ENV}
    words = [str(peer / "python"), str(ROOT / "benchmarks" / "peers" / "run_rllib_hosts.py"), json.dumps(asked)]
    return Driver(words, environment, folder / "driver.txt"), [*roots, root]


def measure(system: str, address: str, names: list[str], given: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of one run on these namespaces; with the most hosts one of them is killed at the end."""
    hosts = len(names)
    actors = given.actors * hosts
    with (
        tempfile.TemporaryDirectory(prefix="jsrl-beside-") as name,
        started(system, address, names, actors, Path(name)) as (driver, roots),
    ):
        begun_s = time.monotonic()
        driver.await_updates(PATIENCE_S)
        first_s = time.monotonic() - begun_s
        time.sleep(given.warm_s)
        trees = [driver.process.pid, *roots]
        since_s, cpu_s = time.monotonic(), sum(map(process_tree.cpu_seconds, trees))
        time.sleep(given.seconds)
        passed_s = time.monotonic() - since_s
        cores = (sum(map(process_tree.cpu_seconds, trees)) - cpu_s) / passed_s
        rate = driver.rate(since_s)
        found = {
            "system": system,
            "hosts": hosts,
            "actors": actors,
            "rows_per_s": round(rate, 1),
            "efficiency": round(rate * WORK["step_s"] / actors, 4),
            "cores": round(cores, 3),
            "cpu_us_per_row": round(1e6 * cores / rate) if rate else None,
            "pss_mb": round(sum(process_tree.usage(pid).pss_mb for pid in trees)),
            "started_s": round(first_s, 1),
        }
        if hosts == max(given.hosts) and hosts > 1:
            killed_s = time.monotonic()
            found["recovered_s"] = recovery(driver, roots[0], rate)
            begin, end = (killed_s + after_s for after_s in AT_ONCE_S)
            trained = driver.steps_at(end) - driver.steps_at(begin)
            found["others"] = round(trained / (end - begin) / (rate * (hosts - 1) / hosts), 3)
        return found


def recovery(driver: Driver, root: int, rate: float) -> float | None:
    """Kill a host; return the seconds until the rate has recovered; None: it did not in time."""
    killed_s = time.monotonic()
    process_tree.end_tree(root)
    until = killed_s + PATIENCE_S
    while time.monotonic() < until and driver.process.poll() is None:
        time.sleep(0.5)
        now = time.monotonic()
        trained = driver.steps_at(now) - driver.steps_at(now - WINDOW_S)
        if now > killed_s + WINDOW_S and trained >= RECOVERED * rate * WINDOW_S:
            return round(now - WINDOW_S - killed_s, 1)
    return None


def table(rows: list[dict[str, Any]]) -> str:
    """Return the medians as a Markdown table."""
    lines = [
        "| system | hosts | rows/s | efficiency | cores | CPU us/row | PSS MB | recovered after s | others |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    worked = [row for row in rows if "failed" not in row]
    for system, hosts in sorted({(row["system"], row["hosts"]) for row in worked}):
        mine = [row for row in worked if (row["system"], row["hosts"]) == (system, hosts)]
        names = ("rows_per_s", "efficiency", "cores", "cpu_us_per_row", "pss_mb")
        middle = [f"{statistics.median(row[name] for row in mine):,.4g}" for name in names]
        after = [", ".join(str(row[name]) for row in mine if name in row) for name in ("recovered_s", "others")]
        lines.append(f"| {system} | {hosts} | {' | '.join([*middle, *after])} |")
    lines += [f"failed: {row['system']} with {row['hosts']} hosts" for row in rows if "failed" in row]
    return "\n".join(lines)


def main() -> int:
    """Measure all arms in alternation, print a table and write the file."""
    if sys.argv[1:2] == ["--drive"]:
        system, address, hosts, actors, folder = sys.argv[2:]
        drive(system, address, int(hosts), int(actors), Path(folder))
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--actors", type=int, default=6, help="of each host")
    parser.add_argument("--systems", nargs="+", default=["jsrl", "rllib"], choices=("jsrl", "jsrl-async", "rllib"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement")
    parser.add_argument("--warm-s", type=float, default=5.0)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with namespaces(max(given.hosts)) as (address, names):
        if not names:
            raise SystemExit("network namespaces are not allowed here (they need root)")
        for hosts, system in [
            (hosts, system) for _ in range(given.rounds) for hosts in given.hosts for system in given.systems
        ]:
            try:
                rows.append(measure(system, address, names[:hosts], given))
            except RuntimeError as error:  # RLlib's workers once did not start within the time; the other arms go on
                rows.append({"system": system, "hosts": hosts, "failed": str(error)})
            print(json.dumps(rows[-1]), flush=True)
            if given.out is not None:
                facts = {"work": WORK, "cores": os.cpu_count(), "processor": platform.processor(), "rows": rows}
                given.out.write_text(json.dumps(facts, indent=1) + "\n")
    print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
