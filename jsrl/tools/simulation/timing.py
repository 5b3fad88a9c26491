"""Times the parts of an experiment alone: acting, updates, reading params, and steps of environments."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jsrl.envs.check import random_actions
from jsrl.envs.make import make, make_spec
from jsrl.errors import ConfigError
from jsrl.experiment import Experiment
from jsrl.experiment.building import build_agent, resolved_agent
from jsrl.graph.schemas import make_schemas
from jsrl.references.importing import spawn_environment
from jsrl.tools.simulation.times import Cost, EnvTimes, ParamsTimes, Updates, fit
from jsrl.transport.base import Request
from jsrl.transport.door.keys import make_keys
from jsrl.transport.table import bind_params, connect_params
from jsrl.types import EnvSpec, Trajectory, make_version, map_tree, spec_for_one, with_columns, zeros
from jsrl.workers.acting import Engine, GroupSlots
from jsrl.workers.learner.build_updater import checked, learner_devices, own_update
from jsrl.workers.learner.updaters import OwnUpdate


def time_acting(experiment: Experiment, sizes: list[int], seconds: float = 0.5) -> list[tuple[int, float]]:
    """Return (rows, CPU seconds of a call) for batches of some sizes.

    Args:
      experiment: with the agent and environment. sizes: rows of a batch. seconds: time per size.
    """
    engine, spec, _ = engine_of(experiment, sizes)
    engine.warm_up()
    return [(size, _call_s(engine, spec, size, seconds)) for size in sorted(set(sizes))]


def engine_of(experiment: Experiment, sizes: list[int]) -> tuple[Engine, EnvSpec, list[np.ndarray]]:
    """Return an engine for batches of some sizes with fresh params, what it acts on, and the leaves of the params."""
    spec = spec_for_one(make_spec(experiment.env))
    agent = build_agent(experiment.agent, spec)
    engine = Engine(agent, spec, num_slots=max(sizes), sizes=sizes, seed=experiment.seed)
    params = agent.init(jax.random.key(experiment.seed)).params
    values = [np.asarray(leaf) for leaf in jax.tree.leaves(params)]
    engine.set_params(0, values)
    return engine, spec, values


def _call_s(engine: Engine, spec, size: int, seconds: float) -> float:
    """Return the mean CPU seconds of a call, all threads of this process together."""
    observation = map_tree(lambda leaf: leaf.batched(size).zeros(), spec.observation)
    seated = GroupSlots(0, np.arange(size, dtype=np.int32))
    request = Request(observation, np.zeros(size, bool))
    engine.act_merged([(seated, request)])
    until, begin_s = time.perf_counter() + seconds, time.process_time()
    for calls in itertools.count(1):
        engine.act_merged([(seated, request)])
        if time.perf_counter() >= until:
            return (time.process_time() - begin_s) / calls
    raise AssertionError("not reached")


FEWEST = 3  # timed calls


def time_updates(experiment: Experiment, columns: list[int], seconds: float = 1.0) -> list[Updates]:
    """Return the times of one call of the update, for batches of some numbers of environments.

    Args:
      experiment: without replay. columns: environments of a batch. seconds: time per size.
    """
    schemas = make_schemas(experiment)
    agent = checked(build_agent(resolved_agent(experiment), schemas.env), experiment)
    updater = own_update(agent, experiment, learner_devices(1, 1))
    return [
        _time(updater, _zeros(schemas.trajectory, size), experiment.rollout_length * size, seconds)
        for size in sorted(set(columns))
    ]


def _zeros(one: Trajectory, columns: int) -> Trajectory:
    """Return a batch of zeros for one device: [1, T+1, B, ...]; core and sampling: [1, B, ...]."""
    return map_tree(lambda leaf: leaf[None], zeros(with_columns(one, columns)))


def _time(updater: OwnUpdate, batch: Trajectory, rows: int, seconds: float) -> Updates:
    """Return the mean times of calls, all threads of this process together, with metrics and params fetched as in a run."""
    state = updater.make(jax.random.key(0))

    def update() -> None:
        nonlocal state
        state, told, _ = updater(state, batch, 0)
        updater.fetch(told)

    update()
    cpu, wall = list[float](), list[float]()
    begin_s = time.perf_counter()
    for calls in itertools.count(1):
        cpu_s, wall_s = time.process_time(), time.perf_counter()
        update()
        cpu.append(time.process_time() - cpu_s)
        wall.append(time.perf_counter() - wall_s)
        if calls >= FEWEST and time.perf_counter() >= begin_s + seconds:
            return Updates(rows, float(np.mean(cpu)), float(np.median(wall)))
    raise AssertionError("not reached")


_VERSIONS = 40  # that are timed


def time_params(experiment: Experiment, versions: int = _VERSIONS) -> ParamsTimes:
    """Return the CPU seconds of one reader for each version of an experiment's params.

    Args:
      experiment: with the agent and environment. versions: to time.
    """
    engine, _, values = engine_of(experiment, [1])
    with tempfile.TemporaryDirectory(prefix="jsrl-params-") as folder:
        return ParamsTimes(
            near=_near_s(f"shm:{folder}/params", engine, values, versions),
            far=_far_s(make_keys(Path(folder) / "keys"), values, versions),
        )


def _near_s(address: str, engine: Engine, values: list[np.ndarray], versions: int) -> float:
    """Return the CPU seconds of reading a version from shared memory and giving it to the engine."""
    publisher, spent_s = bind_params(address), 0.0
    subscriber = connect_params(address)
    for number in range(versions + 1):  # the first one finds the memory
        publisher.publish(0, make_version(0, number), values)
        begin_s = time.thread_time()
        newer = subscriber.poll(0)
        assert newer is not None
        engine.set_params(*newer)
        spent_s += time.thread_time() - begin_s if number else 0.0
    subscriber.close()
    publisher.close()
    return spent_s / versions


def _far_s(keys: Path, values: list[np.ndarray], versions: int) -> float:
    """Return the CPU seconds of a process that receives a version over TCP with keys."""
    publisher = bind_params("tcp://127.0.0.1:0", keys=keys)
    spawn = spawn_environment()
    words = [sys.executable, "-m", "jsrl.tools.simulation.params_reader", publisher.address, str(keys), str(versions)]
    environment = {**os.environ, **spawn.variables}
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, text=True, env=environment, cwd=spawn.working_directory
    ) as child:
        try:
            assert child.stdout is not None
            for number in range(versions + 1):
                publisher.publish(0, make_version(0, number), values)
                if not child.stdout.readline():
                    raise ConfigError(
                        "the process that receives params for the calibration failed; see its output above."
                    )
            return float(child.stdout.readline())
        finally:
            child.kill()
            publisher.close()


QUANTILES = 32
_FEWEST = 30  # smallest number of timed steps


@dataclass(frozen=True)
class Steps:
    """Timed steps of a group: its number of environments, episodes begun in each step [N], and seconds [N]."""

    size: int
    begun: np.ndarray
    cpu_s: np.ndarray
    wall_s: np.ndarray


def time_environments(experiment: Experiment, sizes: list[int], seconds: float = 2.0) -> EnvTimes:
    """Return the times of steps and resets of groups of some sizes, with random actions.

    Args:
      experiment: with the environments. sizes: environments of a group. seconds: time per size.
    """
    timed = [_time_steps(experiment, size, seconds) for size in sorted(set(sizes))]
    step, step_idle, reset, reset_idle = _costs(timed)
    calm = max(timed, key=lambda steps: steps.size)
    plain = calm.wall_s[calm.begun == 0] if (calm.begun == 0).sum() >= _FEWEST else calm.wall_s
    shape = np.quantile(plain, (np.arange(QUANTILES) + 0.5) / QUANTILES)
    shape = np.minimum(shape / shape.mean(), 20.0)
    begun, rows = sum(s.begun.sum() for s in timed), sum(s.size * len(s.begun) for s in timed)
    return EnvTimes(
        step=step,
        step_idle=step_idle,
        reset=reset,
        reset_idle=reset_idle,
        episode_steps=round(float(rows / begun), 3) if begun else 1e9,
        shape=tuple(round(float(value), 4) for value in shape / shape.mean()),
    )


def _time_steps(experiment: Experiment, size: int, seconds: float) -> Steps:
    env: Any = make(experiment.env, size, seed=experiment.seed, group=0)
    rng = np.random.default_rng(experiment.seed)
    rows: list[tuple[int, float, float]] = []
    try:
        latest = env.reset()
        until = time.perf_counter() + seconds
        while time.perf_counter() < until or len(rows) <= _FEWEST:
            action = random_actions(env, latest.observation, rng)
            wall_s, cpu_s = time.perf_counter(), time.thread_time()
            latest = env.step(action)
            cpu_s, wall_s = time.thread_time() - cpu_s, time.perf_counter() - wall_s
            rows.append((int(latest.is_first.sum()), cpu_s, wall_s))
    finally:
        env.close()
    begun, cpu, wall = (np.array(column) for column in zip(*rows[1:], strict=True))
    return Steps(size, begun, cpu, wall)


def _costs(timed: list[Steps]) -> tuple[Cost, Cost, Cost, Cost]:
    """Return the costs of steps and resets, CPU and idle, from means of steps with and without resets."""
    busy, idle, resets, reset_idle = [], [], list[float](), list[float]()
    for steps in timed:
        calm = steps.begun == 0
        base = calm if calm.sum() >= _FEWEST else np.ones(len(calm), bool)
        cpu_s, wait_s = float(steps.cpu_s[base].mean()), float((steps.wall_s - steps.cpu_s)[base].mean())
        busy.append((steps.size, cpu_s))
        idle.append((steps.size, max(0.0, wait_s)))
        if calm.sum() >= _FEWEST and (~calm).any():
            begun = steps.begun[~calm].sum()
            resets.append(float((steps.cpu_s[~calm] - cpu_s).sum() / begun))
            reset_idle.append(float(((steps.wall_s - steps.cpu_s)[~calm] - wait_s).sum() / begun))
    return fit(busy), fit(idle), _each(resets), _each(reset_idle)


def _each(seconds: list[float]) -> Cost:
    """Return the mean as a cost per started episode."""
    return Cost(0.0, max(0.0, float(np.mean(seconds)))) if seconds else Cost()
