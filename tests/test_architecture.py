"""The rules of the code base that pyproject.toml states for import-linter and ruff, and those that neither can express."""

from __future__ import annotations

import ast
import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "jsrl"
SOURCES = sorted(p for p in PACKAGE.rglob("*.py") if "project" not in p.parts)  # copied by `jsrl new`: a user's code
CONFIGS = sorted(p.stem for p in (PACKAGE / "configs").glob("*.py") if p.stem != "__init__")


def lint(*command: str) -> str:
    """Return what a linter finds in this tree; its exit status 0 gives an empty text."""
    told = subprocess.run(
        [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    return told.stdout + told.stderr if told.returncode else ""


def test_imports_follow_the_contracts():
    pytest.importorskip("importlinter", reason="pip install -e '.[dev]'")
    assert lint("-c", "from importlinter.cli import lint_imports_command as main; main()", "--no-cache") == ""


def test_ruff_finds_nothing():
    assert lint("-m", "ruff", "check", "--no-cache", "--output-format", "concise", ".") == ""


@pytest.mark.slow
def test_functions_have_at_most_80_lines():
    functions = [
        (f"{path.relative_to(ROOT)}:{node.lineno} {node.name}", (node.end_lineno or 0) - node.lineno + 1)
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    assert not [(name, lines) for name, lines in functions if lines > 80]


def test_numpy_and_zmq_never_unpickle():
    unsafe = re.compile(r"allow_pickle=True|(recv|send)_pyobj")
    assert not [str(path) for path in SOURCES if unsafe.search(path.read_text())]


def test_no_file_of_the_package_has_two_module_names():
    assert not [path for path in PACKAGE.rglob("*") if path.is_symlink()]


def test_every_experiment_builds_and_has_a_one_line_description():
    for name in CONFIGS:
        module = importlib.import_module(f"jsrl.experiment.configs.{name}")
        assert module.config().name == name
        description = (module.__doc__ or "").strip()
        assert description and "\n" not in description and len(description) <= 100, f"{name}: {description!r}"


LOOPS = ("actor/worker.py", "learner/worker.py")
OPTIONAL = re.compile(r"\b(assign|director|journal|prefetch|rank|record|seat_players)\w*", re.IGNORECASE)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_loop_and_what_it_imports_from_workers_name_nothing_optional(loop):
    imports = re.compile(r"^from jsrl\.workers\.(?!attached)(\S+) import", re.MULTILINE)
    own = PACKAGE / "workers" / loop
    files = {own, *(own.parents[1] / f"{name.replace('.', '/')}.py" for name in imports.findall(own.read_text()))}
    assert not [(path.name, found.group()) for path in files for found in OPTIONAL.finditer(path.read_text())]


# -- actors never import JAX ------------------------------------------------------------------------------------------

HEAVY = "{m for m in sys.modules if m.split('.')[0] in ('jax', 'jaxlib', 'flax', 'optax', 'chex', 'orbax')}"


LIGHT = (
    "import jsrl.workers.actor.worker, jsrl.workers.actor.build, jsrl.workers.__main__",
    "import jsrl.envs.make; jsrl.envs.make.make_spec(jsrl.envs.make.EnvConfig('CartPole-v1'))",
    "import jsrl.transport.table, jsrl.transport.table, jsrl.transport.table",
    "import jsrl.services.runs.control, jsrl.services.metrics.metrics, jsrl.services.runs.names, jsrl.services.runs.runs",
    "import jsrl.experiment, jsrl.references.reference, jsrl.references.capture",
    "import jsrl.workers.replay.worker, jsrl.workers.learner.batching",
    "import jsrl.cli.join, jsrl.cluster.agent_process",
)


def test_importing_loads_no_jax():
    lines = [f"{statement}\nassert not {HEAVY}, ({statement!r}, {HEAVY})" for statement in LIGHT]
    program = "\n".join(["import sys", *lines])
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=False)
    assert ended.returncode == 0, ended.stderr


ONE_HOST = """
import sys
import jsrl.control.controller, jsrl.control.processes.launcher, jsrl.control.run
import jsrl.workers.actor.build, jsrl.workers.director.kind
print([name for name in sys.modules if name.startswith(("jsrl.cluster", "jsrl.directors", "jsrl.matches", "jsrl.tools"))])
"""


def test_a_run_on_one_host_imports_no_cluster_and_without_a_director_no_directors():
    ended = subprocess.run([sys.executable, "-c", ONE_HOST], capture_output=True, text=True, timeout=240, check=False)
    assert ended.stdout == "[]\n", ended.stderr


SERVED_ACTOR = f"""
import sys, json, threading, numpy as np
from jsrl.envs.config import EnvConfig
from jsrl.envs.make import make_spec
from jsrl.experiment import Experiment
from jsrl.references.reference import from_json, to_json
from jsrl.transport.base import InferenceSpec, Reply
from jsrl.transport.table import bind_inference
from jsrl.transport.table import bind_samples
from jsrl.transport.stream import End, Peer, Stream
from jsrl.types import ArraySpec, make_trajectory_spec
from jsrl.workers.jobs import Job, JobPlace, Schemas
from jsrl.workers.kinds import build_worker

folder = sys.argv[1]
e = Experiment(agent=None, env=EnvConfig("CartPole-v1"), num_envs=4, num_groups=2, rollout_length=3)
spec = make_spec(e.env)
act = InferenceSpec(spec.observation, spec.action.array, ArraySpec((), "float32"), (), ())
trajectory = make_trajectory_spec(spec, (), (), num_rows=3, num_envs=2)
samples, inference = Stream("samples", "samples", groups=(0, 1)), Stream("inference", "inference", groups=(0, 1))
ends = (
    ("samples", End(samples, (0, 1), peers=(Peer("learner", (0, 1)),))),
    ("inference", End(inference, (0, 1), peers=(Peer("inference-0", (0, 1)),))),
)
job = Job("actor", "actor-0", 0, e, Schemas(spec, act, trajectory, 0, 0), ends, JobPlace(folder, folder + "/names"))
job = from_json(json.loads(json.dumps(to_json(job))))  # as it travels
consumer = bind_samples(f"shm:{{folder}}/samples", trajectory)
server = bind_inference(f"shm:{{folder}}/inference", act)
job.announce("samples.learner", consumer.address)
job.announce("inference.inference-0", server.address)

def serve():
    while True:
        for asked in server.collect(64, 0.05):
            rows = len(asked.request.is_first)
            server.reply(asked, Reply(np.zeros(rows, np.int32), np.zeros(rows, np.float32), (), 0))

threading.Thread(target=serve, daemon=True).start()

class Silent:
    stage = event = entering = lambda *_, **__: None
    left = lambda self: None

actor = build_worker(job, Silent())
actor.setup()
while consumer.ledger.received < 2:
    actor.step()
    if consumer.pending():
        consumer.release(consumer.get(1.0))
assert actor.close()["env_steps"] >= 12
assert not {HEAVY}, {HEAVY}
"""


def test_served_actor_has_not_loaded_jax(tmp_path):
    command = [sys.executable, "-c", SERVED_ACTOR, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr


# -- a plain run loads only what it uses --------------------------------------------------------------------------------

PLAIN_RUN = """
import json, sys
from jsrl.cli.run import main

class Look:
    def on_metrics(self, run, row):
        self.loaded = sorted(name for name in sys.modules if name.startswith("jsrl"))

options = "--placement serial --total-env-steps 4096 --evaluator.episodes 2 --stop-at-return none --display quiet --runs-dir"
look = Look()
status = main(["ppo_cartpole", *options.split(), sys.argv[1]], hooks=[look])
print(json.dumps([status, look.loaded, sorted(name for name in sys.modules if name.startswith("jsrl."))]))
"""
# What only other runs have: directors and opponents, several hosts, recurrent or convolutional networks, replay workers,
# streams between processes, definitions in a script, a tuning.
OTHERS = (
    "jsrl.directors.", "jsrl.matches.", "jsrl.tools.contest", "jsrl.services.snapshots.players", "jsrl.graph.opponents",
    "jsrl.workers.attached.selfplay", "jsrl.workers.evaluator.matches", "jsrl.workers.frozen",
    "jsrl.workers.attached.directed", "jsrl.cluster", "jsrl.control.processes", "jsrl.control.controller",
    "jsrl.networks.images", "jsrl.networks.kernels.conv", "jsrl.networks.cores", "jsrl.networks.entities", "jsrl.replay.",
    "jsrl.workers.learner.replayed", "jsrl.transport.ends.inference", "jsrl.transport.ends.area",
    "jsrl.transport.network", "jsrl.transport.door.keys", "jsrl.transport.ends.packing",
    "jsrl.references.capture", "jsrl.tools.tuning.tune", "jsrl.tools.tuning.trial",
    "jsrl.services.metrics.wandb_sink", "jsrl.games.", "jsrl.field_names", "jsrl.experiment.dividing",
    "jsrl.workers.attached.prefetched", "jsrl.workers.director", "jsrl.workers.fused", "jsrl.workers.inference",
    "jsrl.workers.relay", "jsrl.workers.replay", "jsrl.workers.video_recorder",
)  # fmt: skip


@pytest.mark.slow
def test_a_plain_serial_run_loads_only_what_it_uses(tmp_path):
    command = [sys.executable, "-c", PLAIN_RUN, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert ended.returncode == 0, ended.stderr
    status, during, after = json.loads(ended.stdout.splitlines()[-1])
    assert status == 0
    assert not [name for name in after if name.startswith(OTHERS)]
    assert not [name for name in during if name.startswith("jsrl.tools.report")]  # it is loaded when the run ends
    assert len(after) <= 195
