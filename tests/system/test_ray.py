"""A real Ray of several nodes on this machine: placing hosts, losing one, and impossible requests.

`pip install -e '.[ray]'` installs its dependencies (for the job `pip install 'ray[default]'`); the command is
`python -m pytest -m nightly FILE`. Pure functions are tested daily in tests/cluster/engines/test_ray.py.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from jsrl.services.snapshots.store import SnapshotStore
from jsrl.types import named_leaves

HAS_RAY, HAS_JOBS = (importlib.util.find_spec(name) is not None for name in ("ray", "aiohttp_cors"))
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(300), pytest.mark.skipif(not HAS_RAY, reason="needs ray")]
RUN = ("ppo_cartpole", "--placement", "served", "--num-actors", "4", "--num-envs", "16", "--restart", "5")
QUIET = ("--evaluator.enabled", "false", "--stop-at-return", "none", "--display", "plain")
ENDLESS = (*RUN, *QUIET, "--total-env-steps", "100000000")
MARK = "JSRL_TEST_RAY"


class Cluster:
    """A head and two nodes of one CPU each, in separate processes; see tests.system.ray_cluster, or a similar program."""

    def __init__(self, folder: Path, program: str = "ray_cluster", nodes: int = 2, cpus: int = 1) -> None:
        self.folder, self.runs = folder, list[subprocess.Popen[bytes]]()
        self.environment = os.environ | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        self.environment |= {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), MARK: str(folder)}
        self.environment |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0", "JAX_PLATFORMS": "cpu"}
        self.environment.pop("RAY_ADDRESS", None)
        words = [sys.executable, "-m", f"tests.system.{program}", str(nodes), str(cpus)]
        words += ["dashboard"] if HAS_JOBS else []
        wrong = {"CUDA_VISIBLE_DEVICES": "0,1", "JAX_PLATFORMS": "cuda"}  # which no worker may inherit
        with (folder / "cluster.log").open("wb") as log:
            self.popen = subprocess.Popen(
                words,
                env=self.environment | wrong,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        self.address, self.dashboard = self._line().split()

    def _line(self) -> str:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            if re.match(r"done|[0-9.]+:\d+ ", line):
                return line
        raise AssertionError((self.folder / "cluster.log").read_text()[-2000:])

    def do(self, command: str) -> None:
        """Add a node, or kill one without telling Ray."""
        assert self.popen.stdin is not None
        self.popen.stdin.write(f"{command}\n")
        self.popen.stdin.flush()
        assert self._line() == "done\n"

    def start(self, name: str, *words: str) -> tuple[subprocess.Popen[bytes], Path]:
        """Start a run; return (its process, the file of its output)."""
        log = self.folder / f"{name}.log"
        command = [
            sys.executable,
            "-m",
            "jsrl.cli.main",
            "run",
            *words,
            "--runs-dir",
            str(self.folder),
            "--run-name",
            name,
        ]
        with log.open("wb") as output:
            self.runs.append(subprocess.Popen(command, env=self.environment, stdout=output, stderr=output))
        return self.runs[-1], log

    def processes(self) -> list[psutil.Process]:
        """Return the living processes of jsrl that were started here."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                mine = process.environ().get(MARK) == str(self.folder)
                alive = process.status() != psutil.STATUS_ZOMBIE
                if mine and alive and any(word.startswith("jsrl.") for word in process.cmdline()):
                    found.append(process)
        return found

    def close(self) -> None:
        """End the remaining processes."""
        for run in self.runs:
            run.kill()
            run.wait(10)
        assert self.popen.stdin is not None
        self.popen.stdin.close()
        self.popen.wait(60)
        assert self.popen.stdout is not None
        self.popen.stdout.close()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    found = Cluster(tmp_path_factory.mktemp("ray"))
    yield found
    found.close()


def wait_for(reached: Callable[[], object], log: Path, timeout_s: float = 60.0) -> None:
    until = time.monotonic() + timeout_s
    while not reached():
        assert time.monotonic() < until, log.read_text()
        time.sleep(0.1)


def memory_of(pid: int) -> list[Path]:
    """Return the folders of shared memory of a run."""
    return list(Path(f"/dev/shm/jsrl-{os.getuid()}").glob(f"{pid}-*"))


def trains(log: Path) -> Callable[[], object]:
    return lambda: re.search(r"updates [1-9]", log.read_text())


def leaves(run: Path) -> dict[str, bytes]:
    state = SnapshotStore(run / "snapshots" / "state").load("final").tree["state"]
    return {name: np.asarray(leaf).tobytes() for name, leaf in named_leaves(state)}


def test_results_equal_one_host_bit_for_bit(cluster: Cluster) -> None:
    short = ["--deterministic", "true", "--total-env-steps", "51200", "--num-inference-servers", "2"]
    words = [*RUN, *QUIET, *short]
    for name, more in (
        ("here", ()),
        ("there", ("--launcher", "ray", "--num-hosts", "2", "--ray.address", cluster.address)),
    ):
        popen, log = cluster.start(name, *words, *more)
        assert popen.wait(120) == 0, log.read_text()
    assert "ray-1" in log.read_text() and "host ray-2 (" in log.read_text()
    here, there = (leaves(cluster.folder / "ppo_cartpole" / name) for name in ("here", "there"))
    assert here.keys() == there.keys() and [name for name in here if here[name] != there[name]] == []
    assert not cluster.processes()


def test_lost_node_is_replaced_and_secrets_stay_hidden(cluster: Cluster) -> None:
    popen, log = cluster.start(
        "loss", *ENDLESS, "--launcher", "ray", "--num-hosts", "2", "--ray.address", cluster.address
    )
    wait_for(trains(log), log)
    keys = [path.read_text() for path in cluster.folder.glob("join-*.key")]
    secret = [word for text in keys for word in re.findall(r'"secret": "(.{40})"', text)]
    seen = cluster.processes()
    agents = [process for process in seen if "join" in process.cmdline()]
    assert len(agents) == 2 and len(secret) == 1
    for process in seen:
        known = [*process.cmdline(), *process.environ().values()]
        assert not [word for word in known if any(key in word for key in secret)]
    for process in [child for agent in agents for child in (agent, *agent.children(recursive=True))]:
        variables = process.environ()
        assert (variables["CUDA_VISIBLE_DEVICES"], variables["JAX_PLATFORMS"]) == ("", "cpu"), process.cmdline()

    cluster.do("add")
    cluster.do("remove 0")
    begun_s = time.monotonic()
    wait_for(lambda: len(re.findall(r"^host ray-\d .* joined", log.read_text(), re.MULTILINE)) == 3, log)
    took_s = time.monotonic() - begun_s
    print(f"replaced after {took_s:.1f} s")  # noqa: T201
    assert took_s <= 20.0
    assert "is started again in 1 s" in log.read_text() and "in 2 s" not in log.read_text()
    popen.terminate()
    assert popen.wait(30) == 130 and "interrupted after" in log.read_text()
    assert not cluster.processes() and not memory_of(popen.pid)


def test_a_local_ray_is_started_and_ends_with_its_run(cluster: Cluster) -> None:
    words = ("--total-env-steps", "2048", "--launcher", "ray", "--num-hosts", "1", "--ray.address", "local")
    popen, log = cluster.start("local", *RUN, *QUIET, *words)
    assert popen.wait(120) == 0, log.read_text()
    assert "started a local Ray of one node, which ends with the run" in log.read_text()
    assert "host ray-1 (" in log.read_text() and not cluster.processes()


def test_a_killed_run_leaves_no_agent(cluster: Cluster) -> None:
    popen, log = cluster.start(
        "killed", *ENDLESS, "--launcher", "ray", "--num-hosts", "2", "--ray.address", cluster.address
    )
    wait_for(trains(log), log)
    popen.kill()
    popen.wait(10)
    wait_for(lambda: not cluster.processes(), log, 20.0)


def test_requests_beyond_the_cluster_are_refused(cluster: Cluster) -> None:
    few = ("--launcher", "ray", "--num-hosts", "1", "--ray.cpus", "1", "--ray.address", cluster.address)
    other, log = cluster.start("few", *ENDLESS, *few)  # another run in the same cluster
    wait_for(trains(log), log)
    asked = ("--launcher", "ray", "--num-hosts", "3", "--ray.place-s", "2", "--ray.cpus", "1")
    popen, log = cluster.start("many", *ENDLESS, *asked, "--ray.address", cluster.address)
    assert popen.wait(60) == 2
    told = log.read_text()
    assert "could not place 3 hosts with 1 CPUs each" in told and "only 2 of its nodes have as much" in told
    other.terminate()
    other.wait(60)
    popen, log = cluster.start("nobody", *ENDLESS, *asked, "--ray.address", "127.0.0.1:1")
    assert popen.wait(60) == 2 and "no answer from 127.0.0.1:1 (Connection refused)" in log.read_text()


@pytest.mark.skipif(not HAS_JOBS, reason="needs ray[default]")
def test_stopped_job_leaves_only_a_snapshot(cluster: Cluster) -> None:
    def job(*words: str) -> str:
        command = [sys.executable, "-c", "from ray.scripts.scripts import main; main()", "job", *words[:1]]
        command += ["--address", f"http://{cluster.dashboard}", *words[1:]]
        return subprocess.run(
            command, env=cluster.environment, capture_output=True, text=True, timeout=60, check=True
        ).stdout

    run, runs = cluster.folder / "ppo_cartpole" / "job", ("--runs-dir", str(cluster.folder), "--run-name", "job")
    command = ["env", "JAX_PLATFORMS=cpu", sys.executable, "-m", "jsrl.cli.main", "run", *ENDLESS, "--launcher", "ray"]
    command += ["--num-hosts", "2", *runs]
    job("submit", "--no-wait", "--submission-id", "first", "--", *command)
    log = run / "metrics.jsonl"
    wait_for(lambda: log.exists() and '"actor/return_mean"' in log.read_text(), cluster.folder / "cluster.log")
    (pid,) = [
        process.pid
        for process in cluster.processes()
        if "jsrl.cli.main" in process.cmdline() and "run" in process.cmdline()
    ]
    assert memory_of(pid)
    job("stop", "first")
    result = json.loads((run / "result.json").read_text())
    tag = json.loads((run / "snapshots" / "state" / "tags" / "latest.json").read_text())
    assert result["ended"] == "interrupted" and tag["meta"]["updates"] == result["updates"] > 0
    wait_for(lambda: not cluster.processes(), log, 10.0)
    assert not memory_of(pid)


@pytest.fixture
def growing(tmp_path: Path) -> Iterator[Cluster]:
    found = Cluster(tmp_path, "ray_autoscaler", nodes=3, cpus=2)
    yield found
    found.close()


def test_autoscaler_adds_the_nodes_of_a_run_and_replaces_a_lost_one(growing: Cluster) -> None:
    more = ("--launcher", "ray", "--num-hosts", "2", "--ray.address", growing.address)
    popen, log = growing.start("grown", *ENDLESS, *more)
    wait_for(trains(log), log, 120.0)
    joined = r"^host ray-\d \(.*, 2 cores, .*joined$"  # all cores of nodes whose size nobody knew
    waits = r"waiting 60 s \(--ray.place-s\) for Ray to place 2 hosts with 1 CPUs each: only [01] of its nodes"
    assert re.search(waits, log.read_text())
    assert len(re.findall(joined, log.read_text(), re.MULTILINE)) == 2
    growing.do("remove")
    begun_s = time.monotonic()
    wait_for(lambda: len(re.findall(joined, log.read_text(), re.MULTILINE)) == 3, log)
    print(f"replaced after {time.monotonic() - begun_s:.1f} s")  # noqa: T201
    popen.terminate()
    assert popen.wait(30) == 130 and not growing.processes()
