"""Modules that an actor host loads before it forks: all that actors need, nothing else, and no thread."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from jsrl.agents.impala import IMPALAConfig
from jsrl.envs.config import EnvConfig
from jsrl.experiment import Experiment
from jsrl.graph.plan import make_plan
from jsrl.references.reference import to_json
from tests.marks import marked

LOOK = """
import json, os, sys
from pathlib import Path
from jsrl.workers.actor_host import load_modules
load_modules(Path(sys.argv[1]))
threads, loaded = len(os.listdir("/proc/self/task")), set(sys.modules)
from jsrl.envs.make import make
from jsrl.references.reference import from_json
env = make(from_json(json.loads(Path(sys.argv[1]).read_text())).experiment.env, 1, 0)
env.reset()
print(json.dumps({"threads": threads, "loaded": sorted(loaded), "later": sorted(set(sys.modules) - loaded)}))
"""
ENVIRONMENTS = {
    "probe:action_matters": "jsrl.games.probes",
    "CartPole-v1": "gymnasium.envs.classic_control.cartpole",
    "HalfCheetah-v5": "mujoco",
    "ALE/Pong-v5": "ale_py",
}


@pytest.mark.parametrize("env", marked(ENVIRONMENTS, slow=ENVIRONMENTS.keys() - {"CartPole-v1"}))
def test_imports_happen_before_the_fork_and_no_thread_runs(env: str, tmp_path: Path) -> None:
    needed = ENVIRONMENTS[env]
    pytest.importorskip(needed.partition(".")[0])
    plan = make_plan(
        Experiment(agent=IMPALAConfig(), env=EnvConfig(env), max_policy_lag=None, placement="served"), "", tmp_path
    )
    path = tmp_path / "job.json"
    path.write_text(json.dumps(to_json(next(job for job in plan.jobs if job.kind == "actor"))))
    variables = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    look = subprocess.run(
        [sys.executable, "-c", LOOK, str(path)], env=variables, capture_output=True, text=True, check=True
    )
    found = json.loads(look.stdout.splitlines()[-1])
    assert found["threads"] == 1
    assert {needed, "jsrl.workers.actor.worker", "jsrl.transport.shared.samples", "zmq", "numpy"} <= set(
        found["loaded"]
    )
    packages = {name.partition(".")[0] for name in found["loaded"]}
    assert not packages & {"jax", "jaxlib", "flax", "optax", "orbax", "rich", "tyro", "psutil", "tensorboard"}
    # the rest for each actor is small: it costs memory and time once per actor
    assert len(found["later"]) <= 12, found["later"]
