"""Times an agent's acting alone: the compiled call of an inference server, for batches of several sizes."""

from __future__ import annotations

import itertools
import time

import jax
import numpy as np

from jsrl.envs.make import make_spec
from jsrl.experiment import Experiment
from jsrl.experiment.building import build_agent
from jsrl.transport.base import Request
from jsrl.types import EnvSpec, map_tree, spec_for_one
from jsrl.workers.acting import Engine, GroupSlots


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
