"""A real Slurm of three nodes on this machine: runs are submitted, requeued and preempted, and run to their end.

`apt-get install slurmctld slurmd munge` installs its dependencies; the command is `python -m pytest -m nightly FILE`.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shlex
import shutil
import socket
import stat
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

GRACE_S = 20

PROGRAMS = ("slurmctld", "slurmd", "munged")
MISSING = [name for name in PROGRAMS if shutil.which(name) is None and not Path("/usr/sbin", name).exists()]
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(MISSING) or os.geteuid() != 0, reason=f"needs root and {', '.join(MISSING) or 'Slurm'}"),
]
CONF = """ClusterName=jsrl-test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmdPidFile={folder}/%n.pid
SlurmctldPidFile={folder}/slurmctld.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SchedulerParameters=sched_interval=2,bf_interval=2
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
NodeName=n[1-3] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs=2 RealMemory=2000 Gres=gpu:2,shard:8
GresTypes=gpu,shard
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=main Nodes=n[1-3] Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime={grace_s}
PartitionName=urgent Nodes=n[1-3] MaxTime=INFINITE State=UP PriorityTier=2 PreemptMode=OFF
"""
GRES = """NodeName=n[1-3] Name=gpu File={folder}/gpu[0-1]
NodeName=n[1-3] Name=shard Count=8
"""


class Cluster:
    """Commands of Slurm."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = os.environ | {"SLURM_CONF": str(folder / "slurm.conf"), "JAX_PLATFORMS": "cpu"}
        self.environment |= {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "JSRL_ADDRESS": "127.0.0.1"}

        self.environment["PATH"] += ":/usr/sbin"
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, *words: str) -> None:
        """Start a program of Slurm."""
        name = "-".join(words[:1] + words[3:4]).replace("/", "_")
        with (self.folder / f"{name}.log").open("ab") as log:
            program = [shutil.which(words[0], path=self.environment["PATH"]), *words[1:]]
            self.started.append(subprocess.Popen(program, stdout=log, stderr=subprocess.STDOUT, env=self.environment))

    def ask(self, *words: str) -> str:
        """Return the output of a command."""
        ended = subprocess.run(
            words, env=self.environment, cwd=self.folder, capture_output=True, text=True, timeout=60, check=False
        )
        assert ended.returncode == 0, (words, ended.stdout, ended.stderr)
        return ended.stdout

    def jobs(self) -> str:
        """Return the jobs that have not ended."""
        return self.ask("squeue", "-h", "-o", "%i %T")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    found = Cluster(tmp_path)
    ports = free_ports(4)
    values = {"host": socket.gethostname().partition(".")[0], "folder": tmp_path, "port": ports, "first": ports + 1}
    values["grace_s"] = GRACE_S
    (tmp_path / "slurm.conf").write_text(CONF.format(**values, last=ports + 3))
    (tmp_path / "gres.conf").write_text(GRES.format(folder=tmp_path))
    for number in range(2):
        os.mknod(tmp_path / f"gpu{number}", stat.S_IFCHR | 0o600, os.makedev(1, 3))  # like /dev/null
    (tmp_path / "state").mkdir()
    (tmp_path / "munge.key").write_bytes(secrets.token_bytes(128))
    (tmp_path / "munge.key").chmod(0o600)
    munge = [f"--{name}-file={tmp_path}/munge.{name}" for name in ("key", "pid", "log", "seed")]
    commands = [["munged", "-F", "-f", f"--socket={tmp_path}/munge.socket", *munge], ["slurmctld", "-D"]]
    commands += [["slurmd", "-D", "-N", f"n{i}"] for i in (1, 2, 3)]
    try:
        for words in commands:
            found.start(*words)
            time.sleep(0.5)
        wait_for(lambda: found.ask("sinfo", "-h", "-t", "idle", "-o", "%D").strip() == "3", 30.0)
        yield found
    finally:
        subprocess.run(["scancel", "--user=root"], env=found.environment, check=False, timeout=60, capture_output=True)
        with contextlib.suppress(AssertionError):
            wait_for(lambda: not found.jobs().strip(), 30.0)  # else their slurmstepd would stay
        for process in reversed(found.started):
            process.terminate()
        for process in reversed(found.started):
            with contextlib.suppress(subprocess.TimeoutExpired):  # a slurmd that waits for its jobs
                process.wait(10)
            process.kill()
            process.wait(10)


def free_ports(count: int) -> int:
    """Return the first of a number of consecutive free ports."""
    for first in range(20_000 + os.getpid() % 9_000, 32_000, count):
        probes = [socket.socket() for _ in range(count)]
        try:
            for i, probe in enumerate(probes):
                probe.bind(("127.0.0.1", first + i))
            return first
        except OSError:
            continue
        finally:
            for probe in probes:
                probe.close()
    raise AssertionError("no ports are free")


def wait_for(reached: Callable[[], object], timeout_s: float) -> None:
    until = time.monotonic() + timeout_s
    while not reached():
        assert time.monotonic() < until
        time.sleep(0.5)


def test_requeued_run_continues_from_its_last_update(cluster: Cluster) -> None:
    words = ["ppo_cartpole", "--placement", "served", "--num-envs", "16", "--num-actors", "4", "--restart", "5"]
    words += ["--total-env-steps", "150000", "--stop-at-return", "none", "--evaluator.enabled", "false"]
    words += ["--launcher", "slurm", "--num-hosts", "2", "--run-name", "x", "--slurm.extra", "mem=1500"]
    told = cluster.ask(sys.executable, "-m", "jsrl.cli.main", "run", *words)
    controller, actors = re.findall(r"Submitted batch job (\d+)", told)
    output = cluster.folder / f"jsrl-ppo_cartpole-x-{controller}.out"
    wait_for(lambda: output.exists() and re.search(r"updates \d\d", output.read_text()), 240.0)

    cluster.ask("scontrol", "requeue", controller)
    wait_for(lambda: "interrupted after" in output.read_text(), 60.0)
    made = int(re.findall(r"interrupted after .*, (\d+) updates", output.read_text())[0])
    run = cluster.folder / "runs" / "ppo_cartpole" / "x"
    assert json.loads((run / "snapshots" / "state" / "tags" / "latest.json").read_text())["meta"]["updates"] == made
    wait_for(lambda: f"{controller} PENDING" in cluster.jobs(), 60.0)
    assert f"{actors}_1 RUNNING" in cluster.jobs()  # hosts wait for the run to return

    cluster.ask("scontrol", "update", f"JobId={controller}", "StartTime=now")
    wait_for(lambda: not cluster.jobs().strip(), 300.0)
    result = json.loads((run / "result.json").read_text())
    assert result["ended"] == "total_env_steps" and result["env_steps"] >= 150_000
    text = output.read_text()
    assert text.count("waiting for 2 hosts") == 2 and f"updates {made}" in text.split("interrupted after")[1]
    assert text.count(" 1,500 MB) joined") == 4  # what Slurm gave the jobs, not what the node has


FAR = "import jsrl.services.runs.process as i; i._here = lambda: ('far', ''); from jsrl.cli.main import main; main({words!r})"


def test_seed_array_is_requeued_and_stopped_from_another_host(cluster: Cluster) -> None:
    command = [sys.executable, "-m", "jsrl.cli.main"]
    words = ["ppo", "--placement", "serial", "--num-envs", "4", "--rollout-length", "8", "--agent.num-minibatches", "1"]
    words += ["--evaluator.enabled", "false", "--launcher", "slurm", "--run-name", "x", "--slurm.gres", "shard:1"]
    told = cluster.ask(*command, "run", *words, "--seeds", "0-3", "--jobs", "2", "--total-env-steps", "100000000")
    (array,) = re.findall(r"Submitted array job (\d+) of 4 runs", told)
    runs = [cluster.folder / "runs" / "ppo" / f"x-seed{seed}" for seed in range(4)]
    lines = [run / "metrics.jsonl" for run in runs[:2]]
    wait_for(lambda: all(path.exists() and "actor/return_mean" in path.read_text() for path in lines), 120.0)
    started = [p.environ() for p in psutil.process_iter(["cmdline"]) if "x-seed1" in (p.info["cmdline"] or ())]
    assert started[0]["CUDA_VISIBLE_DEVICES"] in "01"
    assert started[0]["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.225"  # one shard of the four of a GPU
    status = cluster.ask(*command, "status", "x-seed1")
    assert re.search(r"Slurm job \d+: RUNNING on n\d", status), status
    assert f"Slurm job {array}: " in cluster.ask(*command, "status", "x")
    wait_for(lambda: re.search(r"steps .* updates ", cluster.ask(*command, "logs", "x-seed1")) is not None, 60.0)

    told = cluster.ask(sys.executable, "-c", FAR.format(words=["stop", "x"]))
    assert f"the waiting jobs of array {array} are cancelled" in told and told.count("by a signal") == 2, told
    wait_for(lambda: not cluster.jobs().strip(), 60.0)
    assert [json.loads((run / "result.json").read_text())["ended"] for run in runs[:2]] == ["interrupted"] * 2
    assert set(cluster.ask("squeue", "-h", "-t", "all", "-r", "-j", array, "-o", "%T").split()) == {
        "COMPLETED",
        "CANCELLED",
    }
    assert "COMPLETED" in cluster.ask(*command, "status", "x-seed1")
    assert not any(run.exists() for run in runs[2:])

    for run in runs[:2]:  # as if the runs had been shorter
        config = json.loads((run / "experiment.json").read_text())
        config["fields"]["total_env_steps"] = 2000
        (run / "experiment.json").write_text(json.dumps(config))
    group = cluster.folder / "runs" / "ppo" / "x" / "group.json"
    group.write_text(group.read_text().replace('"100000000"', '"2000"'))
    (runs[1] / "result.json").write_text(json.dumps({"ended": "total_env_steps", "env_steps": 2000}))
    told = cluster.ask(*command, "run", *words, "--seeds", "0-3", "--total-env-steps", "2000")
    (array,) = re.findall(r"Submitted array job (\d+) of 3 runs", told)
    wait_for(lambda: not cluster.jobs().strip(), 120.0)
    outputs = [(cluster.folder / f"jsrl-ppo-x-{array}_{seed}.out").read_text() for seed in (0, 2, 3)]
    assert any(re.search(r"^ppo +4 ", text, re.MULTILINE) for text in outputs), outputs


def test_lost_node_is_noticed_long_before_slurm_does(cluster: Cluster) -> None:
    """slurmd and the agent of a host are killed; Slurm itself waits SlurmdTimeout, 300 s."""
    words = ["ppo_cartpole", "--placement", "served", "--num-envs", "16", "--num-actors", "4", "--restart", "5"]
    words += ["--total-env-steps", "100000000", "--stop-at-return", "none", "--evaluator.enabled", "false"]
    command = [sys.executable, "-m", "jsrl.cli.main"]
    told = cluster.ask(*command, "run", *words, "--launcher", "slurm", "--num-hosts", "2", "--run-name", "x")
    controller, actors = re.findall(r"Submitted batch job (\d+)", told)
    output = cluster.folder / f"jsrl-ppo_cartpole-x-{controller}.out"
    wait_for(lambda: output.exists() and re.search(r"updates \d", output.read_text()), 240.0)
    node = cluster.ask("squeue", "-h", "-r", "-j", f"{actors}_1", "-o", "%N").strip()
    (slurmd,) = [process for process in cluster.started if process.args[-1] == node]
    (job,) = re.findall(r"^JobId=(\d+)", cluster.ask("scontrol", "show", "job", f"{actors}_1"))
    host = f"{socket.gethostname()}-{job}"
    steps = [p for p in psutil.process_iter(["cmdline"]) if f"slurmstepd: [{job}." in " ".join(p.info["cmdline"] or ())]
    assert len(steps) == 2  # the script, and its step that waits for a preemption
    for process in (slurmd, *steps, *(child for step in steps for child in step.children(recursive=True))):
        process.kill()  # as if the node were gone
    begun_s = time.monotonic()
    wait_for(
        lambda: re.search(rf"^host {host} is gone: its connection was closed", output.read_text(), re.MULTILINE), 20.0
    )
    print(f"lost after {time.monotonic() - begun_s:.1f} s")  # noqa: T201
    before = int(re.findall(r"updates (\d+)", output.read_text())[-1])
    wait_for(lambda: int(re.findall(r"updates (\d+)", output.read_text())[-1]) > before + 1, 60.0)
    print(f"trains again after {time.monotonic() - begun_s:.1f} s")  # noqa: T201
    assert f"{node} " in cluster.ask(
        "sinfo", "-h", "-N", "-t", "alloc,mix,idle", "-o", "%N %T"
    )  # Slurm has not noticed
    cluster.start("slurmd", "-D", "-N", node)
    wait_for(lambda: f"{actors}_1 PENDING" in cluster.jobs(), 60.0)
    # Slurm would wait two minutes. In the second of the requeue the node would refuse it, like a job that was killed.
    cluster.ask("scontrol", "update", f"JobId={actors}_1", "StartTime=now+2")
    begun_s = time.monotonic()
    wait_for(lambda: len(re.findall(rf"^host {host} .* joined", output.read_text(), re.MULTILINE)) == 2, 60.0)
    print(f"the requeued host is back after {time.monotonic() - begun_s:.1f} s")  # noqa: T201
    cluster.ask(*command, "stop", "x")
    wait_for(lambda: not cluster.jobs().strip(), 90.0)


def state_of(run: Path, tag: str = "final") -> dict[str, bytes]:
    state = SnapshotStore(run / "snapshots" / "state").load(tag).tree["state"]
    return {name: np.asarray(leaf).tobytes() for name, leaf in named_leaves(state)}


def check_equal(here: dict[str, bytes], there: dict[str, bytes]) -> None:
    assert here.keys() == there.keys() and [name for name in here if here[name] != there[name]] == []


def start_here(cluster: Cluster, *words: str) -> subprocess.Popen[bytes]:
    """Start a run on this host, without Slurm; it ends with the cluster."""
    command = [sys.executable, "-m", "jsrl.cli.main", "run", *words, "--display", "quiet"]
    popen = subprocess.Popen(command, env=cluster.environment, cwd=cluster.folder, stdin=subprocess.DEVNULL)
    cluster.started.append(popen)
    return popen


def test_results_on_three_nodes_equal_one_host_bit_for_bit(cluster: Cluster) -> None:
    words = ["ppo_cartpole", "--placement", "served", "--num-envs", "16", "--num-actors", "4"]
    words += ["--num-inference-servers", "2", "--deterministic", "true", "--total-env-steps", str(50 * 16 * 64)]
    words += ["--stop-at-return", "none", "--evaluator.enabled", "false"]
    assert start_here(cluster, *words, "--run-name", "here").wait(240) == 0
    submit = [sys.executable, "-m", "jsrl.cli.main", "run", *words, "--run-name", "there", "--launcher", "slurm"]
    cluster.ask(*submit, "--num-hosts", "2")
    wait_for(lambda: not cluster.jobs().strip(), 300.0)
    runs = cluster.folder / "runs" / "ppo_cartpole"
    result = json.loads((runs / "there" / "result.json").read_text())
    assert result["updates"] == 50
    check_equal(state_of(runs / "here"), state_of(runs / "there"))


@pytest.mark.timeout(1200)
def test_run_that_is_preempted_ten_times_ends_like_one_that_was_not(cluster: Cluster) -> None:
    """Each time its last snapshot is complete within GraceTime, at whose start Slurm signals only the steps of a job."""
    words = ["ppo", "--placement", "inline", "--num-envs", "4", "--num-actors", "2", "--rollout-length", "8"]
    words += ["--agent.num-minibatches", "1", "--agent.network.hidden", "256", "256", "--evaluator.enabled", "false"]
    words += ["--deterministic", "true"]
    submit = [sys.executable, "-m", "jsrl.cli.main", "run", *words, "--launcher", "slurm", "--run-name", "x"]
    told = cluster.ask(*submit, "--seeds", "0", "--total-env-steps", "100000000")
    (array,) = re.findall(r"Submitted array job (\d+) of 1 run", told)
    run, output = cluster.folder / "runs" / "ppo" / "x-seed0", cluster.folder / f"jsrl-ppo-x-{array}_0.out"

    def updates() -> int:
        lines = (run / "metrics.jsonl").read_text().splitlines() if (run / "metrics.jsonl").exists() else []
        return max((json.loads(line).get("updates", 0) for line in lines), default=0)

    made = 0
    for number in range(10):
        wait_for(lambda made=made: updates() > made, 120.0)
        urgent = cluster.ask(
            *("sbatch", "--parsable", "-p", "urgent", "-N3", "--exclusive", "--output=/dev/null", "--wrap", "sleep 1")
        ).strip()
        begun_s = time.monotonic()
        wait_for(lambda count=number + 1: output.read_text().count("interrupted after") == count, GRACE_S)
        print(f"ended {time.monotonic() - begun_s:.1f} s after the other job was submitted")  # noqa: T201
        (last,) = re.findall(r" ([0-9,]+) updates, ", output.read_text().rpartition("interrupted after")[2])
        made = int(last.replace(",", ""))
        tag = json.loads((run / "snapshots" / "state" / "tags" / "latest.json").read_text())
        assert tag["meta"]["updates"] == made
        wait_for(lambda job=urgent: f"{array}_0 PENDING" in cluster.jobs() and job not in cluster.jobs(), 60.0)
        if number < 9:
            cluster.ask("scontrol", "update", f"JobId={array}_0", "StartTime=now")
    assert output.read_text().count("goes back to the queue") == 10  # the script did it, and not Slurm after GraceTime
    cluster.ask("scancel", array)
    limit = ["--total-env-steps", str(32 * made)]
    assert start_here(cluster, *words, *limit, "--seed", "0", "--run-name", "alone").wait(400) == 0
    check_equal(state_of(run.with_name("alone")), state_of(run, "latest"))


def test_run_inside_a_job_of_three_nodes_uses_them(cluster: Cluster) -> None:
    words = ["ppo_cartpole", "--placement", "served", "--num-envs", "16", "--num-actors", "4", "--restart", "5"]
    words += ["--total-env-steps", "30000", "--stop-at-return", "none", "--evaluator.enabled", "false"]
    run = shlex.join([sys.executable, "-m", "jsrl.cli.main", "run", *words, "--launcher", "slurm", "--run-name", "x"])
    job = cluster.ask("sbatch", "--parsable", "-N3", "--exclusive", "--output=inside.out", "--wrap", run).strip()
    wait_for(lambda: job not in cluster.jobs(), 300.0)
    told = (cluster.folder / "inside.out").read_text()
    assert f"running inside Slurm job {job}; its other nodes: n2, n3" in told
    assert len(re.findall(r"^host n[23] \(.* joined", told, re.MULTILINE)) == 2 and "reached total_env_steps" in told


def test_jobs_of_an_array_share_a_search(cluster: Cluster) -> None:
    words = ["ppo", "--placement", "serial", "--num-envs", "4", "--rollout-length", "8", "--total-env-steps", "640"]
    words += ["--agent.num-minibatches", "1", "--evaluator.episodes", "2", "--evaluator.num-envs", "2"]
    words += ["--evaluator.final-episodes", "2", "--vary", "agent.learning-rate=log:1e-4:1e-2", "--trials", "4"]
    words += ["--parallel", "2", "--search-name", "x", "--launcher", "slurm"]
    told = cluster.ask(sys.executable, "-m", "jsrl.cli.main", "search", *words)
    (array,) = re.findall(r"Submitted array job (\d+) of 2 jobs", told)
    wait_for(lambda: not cluster.jobs().strip(), 400.0)
    texts = [(cluster.folder / f"jsrl-search-ppo-x-{array}_{part}.out").read_text() for part in (1, 2)]
    begun = [set(re.findall(r"trial (\d+): agent", text)) for text in texts]
    assert begun[0] | begun[1] >= {"0", "1", "2", "3"} and not begun[0] & begun[1], texts
    last = max((text.rpartition("trial  score")[2] for text in texts), key=lambda text: text.count("\n"))
    assert len(re.findall(r"^ *\d+ ", last, re.MULTILINE)) >= 4 and "to repeat the best trial: jsrl run" in last, texts


def test_a_third_submission_adds_hosts_of_another_kind(cluster: Cluster) -> None:
    """As docs/devices.md says: the printed script once for the run, once for hosts with GPUs, once for hosts without."""
    words = ["ppo_cartpole", "--placement", "inline", "--num-envs", "16", "--num-actors", "4", "--restart", "3"]
    words += ["--total-env-steps", "60000", "--stop-at-return", "none", "--evaluator.enabled", "false"]
    words += ["--learner.num-ranks", "2", "--launcher", "slurm", "--num-hosts", "2", "--run-name", "x", "--print"]
    script = cluster.folder / "x.sh"
    script.write_text(cluster.ask(sys.executable, "-m", "jsrl.cli.main", "run", *words))
    submit = ["sbatch", "--parsable", "--output=%x-%A.out"]
    first = cluster.ask(*submit, "--job-name=jsrl:ppo_cartpole:x", "--gres=gpu:1", str(script)).strip()
    for kind, more in (("gpus", ["--gres=gpu:2"]), ("actors", [])):
        cluster.ask(*submit, f"--job-name=jsrl:ppo_cartpole:x:{kind}", "--array=1", *more, str(script))
    wait_for(lambda: not cluster.jobs().strip(), 300.0)
    text = (cluster.folder / f"jsrl:ppo_cartpole:x-{first}.out").read_text()
    assert len(re.findall(r"^host .* joined", text, re.MULTILINE)) == 2, text
    (layout,) = [line for line in text.splitlines() if line.endswith("rank-1")]
    assert layout.split()[0] != text.partition("  workers\n")[2].split()[0], text  # not on the host of the run
    result = json.loads((cluster.folder / "runs" / "ppo_cartpole" / "x" / "result.json").read_text())
    assert result["ended"] == "total_env_steps"
