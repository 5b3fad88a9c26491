"""Measure the cost of actors: private memory, and the time from their start until all of them are ready.

`python benchmarks/actor_start.py [--env ID ...] [--actors 1 16] [--rounds N]`: actors of a served experiment against
streams that this process serves (so that the start of a learner is not included), started as separate processes and
forked by an actor host, alternating. "private" is Private_Clean + Private_Dirty of /proc/PID/smaps_rollup; "environment
alone" is a process that has only built the same environments.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from jsrl.agents.impala import IMPALAConfig
from jsrl.control.memory_folder import own_memory_folder
from jsrl.control.processes.launcher import Local
from jsrl.control.supervised import SupervisedWorker
from jsrl.envs.config import EnvConfig
from jsrl.experiment import Experiment
from jsrl.graph.devices import process_environment
from jsrl.graph.launcher import Start
from jsrl.graph.plan import Plan, make_plan
from jsrl.references.importing import spawn_environment
from jsrl.services.runs.control import ControlServer
from jsrl.services.runs.control_bodies import Crash, Stage
from jsrl.transport.base import Reply
from jsrl.types import map_tree
from jsrl.workers.ends import bind_reader, bind_server
from jsrl.workers.jobs import Job

ALONE = """
import sys
from jsrl.envs.config import EnvConfig
from jsrl.envs.make import make
envs = [make(EnvConfig(sys.argv[1]), int(sys.argv[2]), 0, group=g) for g in range(2)]
print([env.reset().is_first.sum() for env in envs], flush=True)
sys.stdin.read()
"""


def private_mb(pid: int) -> float:
    """Return the private memory of a process in MB (10^6 bytes)."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    kilobytes = [int(line.split()[1]) for line in lines if line.startswith(("Private_Clean:", "Private_Dirty:"))]
    return sum(kilobytes) * 1024 / 1e6


def environment_alone(env: str, group_size: int) -> float:
    """Return the private MB of a process that has only built and reset the environments of one actor."""
    command = [sys.executable, "-c", ALONE, env, str(group_size)]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    ) as process:
        assert process.stdout is not None and process.stdin is not None
        process.stdout.readline()
        used = private_mb(process.pid)
        process.stdin.close()
    return used


@contextmanager
def streams(plan: Plan) -> Iterator[None]:
    """Serve the streams of a plan: actions of zeros, trajectories discarded."""
    job, serving = plan.job("learner"), plan.job("inference-0")
    consumer = bind_reader(job, "samples", job.schemas.trajectory)
    server = bind_server(serving, "inference")
    stop = threading.Event()
    act = job.schemas.act

    def serve() -> None:
        while not stop.is_set():
            for asked in server.collect(4096, 0.05):
                rows = len(asked.request.is_first)
                zeros = map_tree(lambda leaf, n=rows: np.zeros((n, *leaf.shape), leaf.dtype), act)
                server.reply(asked, Reply(zeros.action, zeros.log_prob, zeros.extras, version=0, core=zeros.core))

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        server.close()
        consumer.close()


def measure(env: str, actors: int, envs_per_actor: int, hosted: bool) -> tuple[float, float, float]:
    """Return (seconds until every actor was ready, mean private MB of an actor, private MB of the host)."""
    experiment = Experiment(
        agent=IMPALAConfig(), env=EnvConfig(env), num_envs=envs_per_actor * actors, num_actors=actors, num_groups=2 * actors,
        rollout_length=16, max_policy_lag=None, batch_envs=envs_per_actor, placement="served",
    )  # fmt: skip
    with own_memory_folder() as memory, tempfile.TemporaryDirectory() as folder:
        plan = make_plan(experiment, folder, memory)
        jobs = [job for job in plan.jobs if job.kind == "actor"]
        control = ControlServer(f"ipc://{memory}/control")
        with streams(plan):
            try:
                return await_actors(plan, jobs, control, Path(folder), hosted)
            finally:
                control.close()


def await_actors(
    plan: Plan, jobs: list[Job], control: ControlServer, folder: Path, hosted: bool
) -> tuple[float, float, float]:
    """Start actors and return the results of `measure`."""
    start = Start(folder, control.address, spawn_environment(), process_environment(plan, jobs[0], []), forks=hosted)
    begin_s = time.monotonic()
    launcher = Local()
    try:
        lives = [SupervisedWorker(job, launcher.start(job, start)) for job in jobs]
        ready: dict[str, int] = {}
        while len(ready) < len(jobs):
            for message in control.poll(0.5):
                if isinstance(message, Crash):
                    raise SystemExit(message.trace)
                if isinstance(message, Stage) and message.stage == "ready":
                    ready[message.worker] = message.pid
            if (dead := next((life for life in lives if not life.alive), None)) is not None:
                raise SystemExit(f"{dead.name} {dead.handle.exit}:\n{dead.handle.tail(15)}")
        seconds = time.monotonic() - begin_s
        time.sleep(1.0)
        used = [private_mb(pid) for pid in ready.values()]
        return seconds, statistics.mean(used), private_mb(launcher.host.popen.pid) if launcher.host is not None else 0.0
    finally:
        launcher.close()


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", nargs="+", default=["CartPole-v1"])
    parser.add_argument("--actors", nargs="+", type=int, default=[1, 16])
    parser.add_argument("--envs-per-actor", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    load = os.getloadavg()[0]
    print(f"{platform.node()}, {os.cpu_count()} cores, load average {load:.1f}, Python {platform.python_version()}")
    print("environment | actors | started as | all ready, s | private MB per actor | host, MB | in all, MB | alone, MB")
    for env in options.env:
        for actors in options.actors:
            # alternating arms: other load on the machine affects both
            arms: dict[bool, list[tuple[float, float, float]]] = {False: [], True: []}
            for _ in range(options.rounds):
                for hosted, results in arms.items():
                    results.append(measure(env, actors, options.envs_per_actor, hosted))
            alone = environment_alone(env, options.envs_per_actor // 2)
            for hosted, results in arms.items():
                seconds, used, host = (statistics.median(column) for column in zip(*results, strict=True))
                name = "forked by a host" if hosted else "processes"
                total = actors * used + host
                print(
                    f"{env} | {actors} | {name} | {seconds:.2f} | {used:.1f} | {host:.1f} | {total:.0f} | {alone:.1f}",
                    flush=True,
                )


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    main()
