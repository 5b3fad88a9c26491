"""All of a run but its learner: real actors and inference servers, whose trajectories are counted and dropped.

Several such systems may exist at the same time: one whose blocks are not released is idle (its actors wait for room), so that
arms can be measured in alternating blocks without restarts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import secrets
import time
from pathlib import Path
from typing import Any

from jsrl.control.memory_folder import own_memory_folder
from jsrl.control.processes.launcher import Local
from jsrl.control.supervised import SupervisedWorker
from jsrl.errors import StreamTimeout
from jsrl.experiment import EvaluatorConfig, Experiment
from jsrl.experiment.building import build_agent
from jsrl.graph.devices import process_environment
from jsrl.graph.launcher import Start
from jsrl.graph.machine import accelerators
from jsrl.graph.plan import Plan, make_plan
from jsrl.references.importing import spawn_environment
from jsrl.references.reference import to_json
from jsrl.services.runs.control import ControlServer
from jsrl.services.runs.control_bodies import Crash, Stage
from jsrl.types import make_version
from jsrl.workers.ends import bind_publisher, bind_reader

READY_S = 180.0
WARM_S = 0.3
STALLED_S = 60.0


class ActingSystem:
    """The acting half of an experiment, in separate processes; a context manager.

    Args:
      experiment: its placement, actors, groups and transport are used; it always acts by its initial params.
      folder: for logs. actors: start the experiment's actors (False: the caller queries the servers itself).
    """

    def __init__(self, experiment: Experiment, folder: Path, *, actors: bool = True) -> None:
        free = dataclasses.replace(
            experiment, max_policy_lag=None, stop_at_return=None, evaluator=EvaluatorConfig(enabled=False)
        )
        self._folder = folder / secrets.token_hex(4)
        self._folder.mkdir(parents=True)
        self._stack = contextlib.ExitStack()
        self._memory = self._stack.enter_context(own_memory_folder())
        self.plan: Plan = make_plan(free, str(self._folder), self._memory)
        self._kinds = ("inference", "parameter-server", *(("actor",) if actors else ()))
        self._launcher = Local()
        self._workers: list[SupervisedWorker] = []

    def __enter__(self) -> ActingSystem:
        try:
            self._begin()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        self.close()

    def _begin(self) -> None:
        import jax

        jax.config.update("jax_platforms", "cpu")  # accelerators are for the workers
        e, learner = self.plan.experiment, self.plan.job("learner")
        self._control = ControlServer(f"ipc://{self._memory}/control")
        self._consumer = bind_reader(learner, "samples", learner.schemas.trajectory)
        self._publisher = bind_publisher(learner, "params")
        state = jax.jit(build_agent(e.agent, learner.schemas.env).init)(jax.random.key(0))
        params = jax.tree.leaves(jax.device_get(state.params))
        self._publisher.publish(0, make_version(0, 0), params)
        spawn, gpus = spawn_environment(), accelerators()
        for job in self.plan.jobs:
            if job.kind in self._kinds:
                variables = process_environment(self.plan, job, gpus)
                start = Start(self._folder, self._control.address, spawn, variables)
                self._workers.append(SupervisedWorker(job, self._launcher.start(job, start)))
        until = time.monotonic() + READY_S
        while not all(p.life.ready for p in self._workers):
            self._receive(0.05)
            if time.monotonic() > until:
                raise RuntimeError(f"not ready: {[(p.name, p.life.stage) for p in self._workers if not p.life.ready]}")

    def _receive(self, wait_s: float) -> None:
        """Read messages of workers; raise when one has died."""
        by_name = {p.name: p for p in self._workers}
        for message in self._control.poll(wait_s):
            if isinstance(message, Crash):
                raise RuntimeError(f"{message.worker}: {message.error}: {message.text}\n{message.trace}")
            if isinstance(message, Stage):
                by_name[message.worker].life.stage = message.stage
        for worker in self._workers:
            if not worker.alive:
                raise RuntimeError(f"{worker.name} ended ({worker.handle.exit}):\n{worker.handle.tail(15)}")

    def write_jobs(self) -> list[Path]:
        """Write the actors' jobs to files, for processes that replace the actors; return the paths."""
        self._folder.joinpath("jobs").mkdir(exist_ok=True)
        paths = []
        for job in self.plan.jobs:
            if job.kind == "actor":
                paths.append(self._folder / "jobs" / f"client-{job.index}.json")
                paths[-1].write_text(json.dumps(to_json(job)))
        return paths

    def measure(self, seconds: float) -> dict[str, float]:
        """Let it act for the given time after a moment; return env steps per second, and per CPU-second of all processes."""
        e = self.plan.experiment
        rows = e.rollout_length * e.group_size
        self._drain(time.monotonic() + WARM_S, 1)
        begin_s, begin_cpu = time.monotonic(), self.cpu_s()
        count, last_s = self._drain(begin_s + seconds, 4 * e.groups)
        passed_s = last_s - begin_s
        cpu_s = self.cpu_s() - begin_cpu
        steps = count * rows
        return {
            "env_steps_per_s": steps / passed_s,
            "env_steps_per_cpu_s": steps / max(cpu_s, 1e-3),
            "cores": cpu_s / passed_s,
        }

    def _drain(self, until: float, least: int) -> tuple[int, float]:
        """Release trajectories until then, and at least the given number; return the count and the time of the last one."""
        count, last_s, receive_at = 0, time.monotonic(), time.monotonic()
        while (now := time.monotonic()) < until or count < least:
            if now > until + STALLED_S:
                raise RuntimeError(f"only {count} trajectories arrived in {STALLED_S:.0f} s")
            if now >= receive_at:
                receive_at = now + 0.2
                self._receive(0.0)
            try:
                self._consumer.release(self._consumer.get(0.1))
                count, last_s = count + 1, time.monotonic()
            except StreamTimeout:
                continue
        return count, last_s

    def cpu_s(self) -> float:
        """Return the CPU seconds of its processes so far."""
        used = [worker.handle.usage() for worker in self._workers]
        return sum(one.cpu_s for one in used if one is not None)

    def close(self) -> None:
        """End the processes and remove the memory."""
        self._launcher.close()
        for end in ("_consumer", "_publisher", "_control"):
            if hasattr(self, end):
                getattr(self, end).close()
        self._stack.close()


def facts_of(experiment: Experiment) -> dict[str, Any]:
    """Return how an experiment's environments are distributed, for records."""
    e = experiment
    return {
        "placement": e.placement,
        "num_envs": e.num_envs,
        "actors": e.actors,
        "ring": e.ring,
        "slots_per_group": e.group_size,
        "rollout_length": e.rollout_length,
        "transport": e.transport,
    }
