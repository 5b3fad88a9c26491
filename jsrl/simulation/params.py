"""Times how long a worker needs for each version of the params: over shared memory, and over TCP with keys."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from jsrl.errors import ConfigError
from jsrl.experiment import Experiment
from jsrl.references.importing import spawn_environment
from jsrl.simulation.times import ParamsTimes
from jsrl.simulation.timing import engine_of
from jsrl.transport.meeting.keys import make_keys
from jsrl.transport.transports import bind_params, connect_params
from jsrl.types import make_version
from jsrl.workers.acting import Engine

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
    words = [sys.executable, "-m", "jsrl.simulation.params_reader", publisher.address, str(keys), str(versions)]
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
