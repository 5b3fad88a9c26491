"""Times an agent's acting and its updates alone: the compiled calls, for batches of several sizes."""

from __future__ import annotations

import itertools
import time

import jax
import numpy as np

from jsrl.envs.make import make_spec
from jsrl.experiment import Experiment
from jsrl.experiment.building import build_agent, resolved_agent
from jsrl.launch.schemas import make_schemas
from jsrl.simulation.times import Updates
from jsrl.transport.base import Request
from jsrl.types import EnvSpec, Trajectory, map_tree, spec_for_one, with_columns, zeros
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
    key = jax.random.key(0)
    state = updater.make(key)

    def update() -> None:
        nonlocal state
        state, output = updater(state, batch, key)
        updater.fetch((output.metrics, state.params))

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
