"""The rules of the code base as data: allowed imports, forbidden code, the length of files and functions."""

from __future__ import annotations

import ast
import functools
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jsrl.workers.kinds import own_kinds

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "jsrl"
EXAMPLES = (
    "configs",
    "graphs",
)  # experiments and graphs by name: read and copied, so they use public names (test_public.py)
SOURCES = sorted(p for p in PACKAGE.rglob("*.py") if "project" not in p.parts)  # copied by `jsrl new`: a user's code

# Package (folder or top-level module of jsrl) -> the other parts of jsrl and external packages that it may import.
ROOMS: dict[str, tuple[set[str], set[str]]] = {
    "__init__": ({"extend", "lazy"}, set()),
    "__main__": ({"cli"}, set()),
    "errors": (set(), set()),
    "counted": (set(), set()),
    "intervals": (set(), {"numpy", "scipy"}),
    "rate_limit": (set(), set()),
    "file_lock": (set(), set()),
    "lazy": (set(), set()),
    "linux": (set(), set()),
    "extend": ({"lazy"}, set()),
    "extras": (set(), set()),
    "plain_files": (set(), {"numpy"}),
    "types": ({"errors"}, {"numpy"}),
    "references": ({"errors"}, {"numpy"}),
    "field_names": (set(), set()),
    "networks": ({"field_names", "types", "errors", "references"}, {"jax", "flax", "numpy"}),
    "agents": ({"field_names", "networks", "types", "errors"}, {"jax", "flax", "optax", "chex", "numpy"}),
    "parallel": ({"agents", "types", "errors"}, {"jax", "numpy"}),
    "envs": (
        {"counted", "field_names", "rate_limit", "extras", "types", "errors", "references"},
        {"numpy", "gymnasium", "ale_py", "envpool", "lbforaging", "mujoco", "pyspiel"},
    ),
    "transport": (
        {"extras", "linux", "rate_limit", "types", "errors", "plain_files"},
        {"numpy", "ml_dtypes", "zmq", "msgspec", "lz4"},
    ),
    "experiment": ({"counted", "field_names", "envs", "types", "errors", "references"}, {"jax"}),
    "replay": ({"agents", "errors", "experiment", "plain_files", "types"}, {"jax", "numpy"}),
    "runs": (
        {"linux", "extras", "file_lock", "rate_limit", "transport", "errors", "plain_files"},
        {"matplotlib", "numpy", "zmq", "msgspec", "psutil"},
    ),
    "metrics": ({"errors", "extras", "intervals", "plain_files", "runs"}, {"numpy", "rich", "tensorboardX"}),
    "snapshots": ({"errors", "plain_files", "runs", "transport", "types"}, {"numpy"}),
    "recordings": ({"errors", "extras", "plain_files", "runs", "transport", "types"}, {"numpy", "msgspec"}),
    "workers": (
        {
            "linux",
            "counted",
            "agents",
            "directors",
            "envs",
            "errors",
            "experiment",
            "matches",
            "intervals",
            "metrics",
            "parallel",
            "plain_files",
            "recordings",
            "references",
            "replay",
            "runs",
            "snapshots",
            "transport",
            "types",
        },
        {"jax", "msgspec", "numpy"},
    ),
    "graph": ({"counted", "errors", "experiment", "references", "transport", "workers"}, {"msgspec"}),
    "launch": (
        {
            "linux",
            "counted",
            "directors",
            "rate_limit",
            "envs",
            "errors",
            "extras",
            "experiment",
            "graph",
            "matches",
            "metrics",
            "plain_files",
            "recordings",
            "references",
            "runs",
            "snapshots",
            "transport",
            "types",
            "workers",
        },
        {"jax", "msgspec", "numpy", "psutil", "ray", "tyro", "zmq"},
    ),
    "directors": ({"errors", "types"}, {"numpy", "scipy"}),
    "matches": ({"counted", "directors", "envs", "errors", "intervals", "types"}, {"numpy"}),
    "export": ({"agents", "errors", "extras", "types"}, {"jax", "numpy", "onnx"}),
    "policy": (
        {
            "agents",
            "envs",
            "errors",
            "experiment",
            "export",
            "launch",
            "parallel",
            "references",
            "runs",
            "snapshots",
            "transport",
            "types",
            "workers",
        },
        {"jax", "numpy"},
    ),
    "contest": (
        {"envs", "errors", "experiment", "matches", "policy", "runs", "snapshots", "types"},
        {"numpy"},
    ),
    "report": (
        {
            "counted",
            "errors",
            "experiment",
            "graph",
            "launch",
            "intervals",
            "metrics",
            "plain_files",
            "recordings",
            "references",
            "runs",
            "transport",
            "workers",
        },
        {"msgspec", "numpy", "scipy"},
    ),
    "chaos": ({"linux", "errors", "launch", "transport", "workers"}, set()),
    "tuning": (
        {
            "counted",
            "errors",
            "experiment",
            "extras",
            "file_lock",
            "intervals",
            "launch",
            "references",
            "report",
            "runs",
            "workers",
        },
        {"msgspec", "numpy", "optuna", "psutil"},
    ),
    "simulation": (
        {
            "linux",
            "envs",
            "errors",
            "experiment",
            "launch",
            "plain_files",
            "references",
            "report",
            "runs",
            "transport",
            "tuning",
            "types",
            "workers",
        },
        {"jax", "msgspec", "numpy"},
    ),
    "cli": (
        {
            "linux",
            "counted",
            "chaos",
            "configs",
            "contest",
            "envs",
            "errors",
            "experiment",
            "extras",
            "graph",
            "launch",
            "matches",
            "metrics",
            "parallel",
            "policy",
            "recordings",
            "references",
            "replay",
            "report",
            "runs",
            "simulation",
            "snapshots",
            "transport",
            "tuning",
            "types",
            "workers",
        },
        {"jax", "numpy", "tyro"},
    ),
}

# Files that may import more than their package does, each with its reason.
MORE: dict[str, tuple[set[str], str]] = {
    "cli/play.py": ({"pygame"}, "a window, of the extra `video`"),
    "launch/opponents.py": ({"jsrl.contest"}, "opponents are trained policies of other runs, loaded before the start"),
    "workers/evaluator/build.py": ({"jsrl.contest"}, "opponents are trained policies of other runs"),
    "launch/result.py": ({"jsrl.policy"}, "the policy of a result is loaded when it is asked for"),
    "launch/run.py": ({"jsrl.report"}, "a run writes its report as it ends"),
    "envs/hide_and_seek/settings.py": ({"msgspec"}, "options are JSON values, whose types it checks"),
    "metrics/wandb_process.py": ({"wandb"}, "a process of its own for Weights & Biases, of the extra `wandb`"),
    "recordings/video.py": ({"PIL", "imageio_ffmpeg"}, "captions and the encoder, of the extra `video`"),
    "snapshots/orbax.py": ({"jax", "orbax", "absl"}, "Orbax is a library of jax arrays"),
}

# Files of the launching side, outside launch/local, that use processes other than as handles, each with its reason.
LOCAL = "jsrl.launch.local"
PROCESSES: dict[str, tuple[set[str], str]] = {
    "launch/run.py": ({f"{LOCAL}.launcher"}, "the launcher of a run that names none"),
    "launch/interrupts.py": ({"signal"}, "what interrupts the launching process itself"),
    "launch/session.py": ({"psutil"}, "the age of the launching process itself"),
    "tuning/child.py": ({"subprocess", "signal"}, "a trial is a whole run, started and ended as a user would"),
    "tuning/trial.py": ({"psutil", "signal", "subprocess"}, "what a trial's launching process uses is measured"),
    "chaos/chaos.py": (
        {"subprocess", "signal", f"{LOCAL}.outside"},
        "it starts a whole run and strangers; workers that it did not start itself are seen by launch/local",
    ),
}

# Workers whose module never imports jax or an agent when it is loaded, and a replacement for workers of other kinds.
WITHOUT_JAX = (
    "workers/__main__.py",
    "workers/actor/worker.py",
    "workers/actor/build.py",
    "workers/base.py",
    "workers/process.py",
    "workers/jobs.py",
    "workers/learner/batching.py",
    "workers/replay/worker.py",
    "replay/host/replay.py",
)
WORKERS = ("actor", "inference", "learner", "evaluator", "video_recorder", "relay", "replay")

LONGER_FUNCTIONS: dict[str, str] = {}

FORBIDDEN_NAMES = {"done", "data", "info", "item", "utils", "helper", "helpers", "misc", "manager", "runner", "sampler"}
# Argument names of other libraries, and names that a file imports from them.
FOREIGN_NAMES = {"envs/": {"info"}}


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@functools.cache
def nodes(tree: ast.AST) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree))


def relative(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(tree: ast.AST) -> set[str]:
    """Return every module that a tree imports, anywhere in it."""
    found: set[str] = set()
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports must be absolute"
            assert node.module is not None
            found.add(node.module)
            if node.module == "jsrl":
                found |= {f"jsrl.{alias.name}" for alias in node.names}
    return found


def at_load(tree: ast.Module) -> ast.Module:
    """Return the tree without the bodies of functions: the code that runs when the module is imported."""

    class Bare(ast.NodeTransformer):
        def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
            return None

        visit_AsyncFunctionDef = visit_FunctionDef  # type: ignore[assignment]

    return Bare().visit(ast.parse(ast.unparse(tree)))


def violations(path: Path) -> list[str]:
    rooms, packages = ROOMS[room_of(path)]
    more = MORE.get(relative(path), (set(), ""))[0]
    wrong = []
    for module in imported(parsed(path)):
        top = module.split(".")[0]
        if top == "jsrl":
            other = module.split(".")[1] if "." in module else "__init__"
            fine = other in {*rooms, room_of(path), "__init__"} or any(module.startswith(m) for m in more)
        else:
            fine = top in sys.stdlib_module_names or top in packages or top in more
        if not fine:
            wrong.append(f"{relative(path)} imports {module}")
    return wrong


def test_every_package_is_in_the_table():
    assert {room_of(path) for path in SOURCES} <= {*ROOMS, *EXAMPLES}


def test_packages_import_only_what_the_table_allows():
    wrong = [text for path in SOURCES if room_of(path) not in EXAMPLES for text in violations(path)]
    assert not wrong, "\n".join(wrong)


def test_import_check_finds_a_forbidden_import():
    """The rule can fail: an import inside a function of a forbidden file is found."""
    tree = ast.parse("import numpy\ndef f():\n    from jax import numpy as jnp\n    import jsrl.workers.actor.worker\n")
    assert imported(tree) == {"numpy", "jax", "jsrl.workers.actor.worker"}
    assert imported(at_load(tree)) == {"numpy"}


def imports_of(path: Path) -> set[Path]:
    """Return the files of jsrl that a file imports anywhere, except those imported only for type annotations."""
    found, sources = set(), set(SOURCES)
    for node in nodes_without_typing(parsed(path)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = getattr(node, "module", None)
            names = [alias.name for alias in node.names]
            for name in [f"{module}.{name}" for name in names] + [module] if module else names:
                file = ROOT / f"{name.replace('.', '/')}.py"
                found |= {file} if file in sources else set()
    return found


def nodes_without_typing(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield the nodes of a tree without those below `if TYPE_CHECKING`."""
    ahead: list[ast.AST] = [tree]
    while ahead:
        node = ahead.pop()
        if not (isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
            yield node
            ahead += ast.iter_child_nodes(node)


def circles(graph: dict[Path, set[Path]]) -> set[Path]:
    """Return the files that can be reached from themselves."""
    found = set()
    for begin, named in graph.items():
        seen, ahead = set(), set(named)
        while ahead:
            seen |= ahead
            ahead = {after for file in ahead for after in graph[file]} - seen
        if begin in seen:
            found.add(begin)
    return found


def test_no_circular_imports():
    found = circles({path: imports_of(path) for path in SOURCES})
    assert not found, sorted(map(relative, found))
    assert circles({Path("a"): {Path("b")}, Path("b"): {Path("a")}, Path("c"): {Path("a")}}) == {Path("a"), Path("b")}


SORTS = {"inference"}  # of streams: not kinds of workers


def kinds_named(tree: ast.Module) -> list[str]:
    """Return the string literals of a tree that are names of worker kinds, or start the name of one of their workers."""
    kinds = {kind.name for kind in own_kinds()}
    words = [node.value for node in nodes(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    begun = tuple(f"{kind}-" for kind in kinds)
    return [word for word in words if word in kinds - SORTS or (word.startswith(begun) and " " not in word)]


# Files and options that are named like a worker kind, each with its reason.
NOT_KINDS = {
    "types.py": "what an agent learns from",
    "agents/ppo.py": "whose values the loss takes: an option's value",
    "experiment/options.py": "names that people try for options",
    "cli/needs.py": "names of options",
    "cli/main.py": "a command's name",
    "experiment/settings.py": "actor-critic: how the learner is split",
    "experiment/checks.py": "an experiment's field",
    "graph/policies.py": "an experiment's field",
    "directors/base.py": "a key of a state",
    "runs/standings.py": "a folder's name",
    "replay/host/files.py": "a file's name",
    "transport/inference/local.py": "a thread's name",
    "launch/local/actor_host.py": "the actor host is no worker",
    "workers/actor_host.py": "the actor host is no worker",
    "workers/__main__.py": "the actor host is no worker",
    "launch/local/outside.py": "the actor host is no worker",
    "launch/plan_text.py": "the actor host is no worker",
    "tuning/profiles.py": "an experiment's field",
}


def test_worker_kinds_are_named_only_in_their_folders_and_the_graph_builder():
    own = {PACKAGE / "graph/placements.py", *(PACKAGE / "workers").glob("*/*.py"), *(PACKAGE / "graphs").glob("*.py")}
    found = {relative(path): kinds_named(parsed(path)) for path in SOURCES if path not in own}
    wrong = {file: words for file, words in found.items() if words and file not in NOT_KINDS}
    assert not wrong
    assert kinds_named(ast.parse("x = 'actor'; y = 'replay-0'; z = 'actor/env_share'")) == ["actor", "replay-0"]


def test_run_script_names_the_files_from_the_command_to_a_workers_step():
    told = ast.get_docstring(ast.parse((ROOT / "experiments" / "run.py").read_text())) or ""
    named = re.findall(r"jsrl/[\w/]+\.py", told)
    assert [Path(path).name for path in named] == ["run.py", "process.py", "worker.py", "serial.py"]
    defined, called = ("def run(", "def _loop(", "class Actor:", ""), ("", "step_of(worker)", "def step(", "step_of")
    for path, definition, call in zip(named, defined, called, strict=True):
        text = (ROOT / path).read_text()
        assert definition in text and call in text


def test_workers_never_import_each_other():
    for kind in WORKERS:
        modules = {
            m for file in (PACKAGE / "workers" / kind).glob("*.py") for m in imported(ast.parse(file.read_text()))
        }
        others = tuple(f"jsrl.workers.{other}" for other in WORKERS if other != kind)
        wrong = {module for module in modules if module.startswith(tuple(f"{other}." for other in others))}
        assert not wrong, f"{kind} imports {wrong}"


def test_modules_of_actors_do_not_name_jax():
    heavy = re.compile(r"jax|flax|optax|orbax|jsrl\.(agents|networks|parallel)")
    wrong = [
        f"{file} imports {module} as it is loaded"
        for file in WITHOUT_JAX
        for module in imported(at_load(parsed(PACKAGE / file)))
        if heavy.match(module)
    ]
    assert not wrong, "\n".join(wrong)


def sees_processes(path: Path, tree: ast.Module) -> list[str]:
    """Return how a file of the launching side accesses processes, which it should use only through handles."""
    modules = {module for module in imported(tree) if module.startswith(("subprocess", "signal", "psutil", LOCAL))}
    words = {ast.unparse(node) for node in nodes(tree) if isinstance(node, ast.Attribute)}
    calls = words & {"os.kill", "os.killpg", "os.waitpid", "os.waitid", "os.fork"}
    return [
        f"{relative(path)} uses {name}" for name in (modules | calls) - PROCESSES.get(relative(path), (set(), ""))[0]
    ]


def test_processes_are_used_in_launch_local_only():
    rooms = [path for path in SOURCES if room_of(path) in ("launch", "report", "chaos", "tuning")]
    outside = [path for path in rooms if not relative(path).startswith("launch/local/")]
    wrong = [text for path in outside for text in sees_processes(path, parsed(path))]
    assert not wrong, "\n".join(wrong)
    assert {relative(path) for path in outside} >= set(PROCESSES), "an exception that is no longer needed"


def test_process_rule_finds_forbidden_calls():
    tree = ast.parse("import os, signal\nfrom jsrl.launch.local.processes import LocalHandle\nos.killpg(1, 9)")
    found = sees_processes(PACKAGE / "launch" / "controller.py", tree)
    assert len(found) == 3 and "launch/controller.py uses os.killpg" in found


def test_addresses_are_parsed_in_the_transport_table_only():
    readers = {relative(path) for path in SOURCES if "parse_address" in calls_and_names(parsed(path))}
    assert readers == {"transport/transports.py"}
    ends = [PACKAGE / "transport" / sort / "transports.py" for sort in ("samples", "inference", "params")]
    assert not [relative(path) for path in ends if calls_and_names(parsed(path)) & {"partition", "startswith", "split"}]


def test_package_inits_import_nothing():
    public = {PACKAGE / "__init__.py", PACKAGE / "experiment/__init__.py"}
    assert imported(parsed(PACKAGE / "__init__.py")) == {"jsrl", "jsrl.extend", "jsrl.lazy"}
    for path in set(PACKAGE.rglob("__init__.py")) - public:
        assert not imported(parsed(path)), f"{relative(path)} imports something"


HEAVY = "{m for m in sys.modules if m.split('.')[0] in ('jax', 'jaxlib', 'flax', 'optax', 'chex', 'orbax')}"


LIGHT = (
    "import jsrl.workers.actor.worker, jsrl.workers.__main__",
    "import jsrl.envs.make; jsrl.envs.make.make_spec(jsrl.envs.make.EnvConfig('CartPole-v1'))",
    "import jsrl.transport.samples.transports, jsrl.transport.inference.transports, jsrl.transport.params.transports",
    "import jsrl.runs.control, jsrl.metrics.metrics, jsrl.runs.names, jsrl.runs.runs",
    "import jsrl.experiment, jsrl.references.reference, jsrl.references.capture",
    "import jsrl.workers.replay.worker",
    "import jsrl.cli.join, jsrl.launch.local.agent",
)


def test_importing_loads_no_jax():
    lines = [f"{statement}\nassert not {HEAVY}, ({statement!r}, {HEAVY})" for statement in LIGHT]
    program = "\n".join(["import sys", *lines])
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=False)
    assert ended.returncode == 0, ended.stderr


SERVED_ACTOR = f"""
import sys, json, threading, numpy as np
from jsrl.envs.config import EnvConfig
from jsrl.envs.make import make_spec
from jsrl.experiment import Experiment
from jsrl.references.reference import from_json, to_json
from jsrl.transport.base import InferenceSpec, Reply
from jsrl.transport.inference.transports import bind_inference
from jsrl.transport.samples.transports import bind_samples
from jsrl.transport.stream import End, Peer, Stream
from jsrl.types import ArraySpec, make_trajectory_spec
from jsrl.workers.jobs import Job, Schemas
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
job = Job("actor", "actor-0", 0, e, Schemas(spec, act, trajectory, 0, 0), ends, folder, folder + "/names")
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


# -- forbidden code ---------------------------------------------------------------------------------------------------


def calls_and_names(tree: ast.AST) -> set[str]:
    """Return bare names that are called, and every attribute."""
    found = {node.func.id for node in nodes(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    return found | {node.attr for node in nodes(tree) if isinstance(node, ast.Attribute)}


def forbidden(path: Path) -> list[str]:
    """Return the forbidden calls and names of a file."""
    tree = parsed(path)
    tops = {module.split(".")[0] for module in imported(tree)}
    wrong = [f"imports {name}" for name in tops & {"pickle", "cloudpickle", "dill", "marshal", "shelve"}]
    wrong += [f"calls {name}" for name in calls_and_names(tree) & {"eval", "exec", "recv_pyobj", "send_pyobj"}]
    for node in nodes(tree):
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            if not (isinstance(node.value, ast.Constant) and node.value.value is False):
                wrong.append("allows pickle")
        elif isinstance(node, ast.ExceptHandler):
            broad = isinstance(node.type, ast.Name) and node.type.id in ("Exception", "BaseException")
            silent = all(isinstance(statement, ast.Pass | ast.Continue) for statement in node.body)
            if node.type is None:
                wrong.append(f"bare except in line {node.lineno}")
            elif broad and silent:
                wrong.append(f"line {node.lineno} swallows every error without a word")
    return [f"{relative(path)}: {text}" for text in wrong]


def test_no_pickle_no_eval_no_swallowed_error():
    wrong = [text for path in SOURCES for text in forbidden(path)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("program", "told"),
    [
        ("import pickle", "imports pickle"),
        ("eval('1')", "calls eval"),
        ("numpy.load(f, allow_pickle=True)", "allows pickle"),
        ("try:\n    f()\nexcept:\n    raise", "bare except in line 3"),
        ("try:\n    f()\nexcept Exception:\n    pass", "line 3 swallows every error"),
    ],
)
def test_rule_finds_forbidden_code(program, told, monkeypatch):
    monkeypatch.setitem(globals(), "parsed", lambda path: ast.parse(program))
    (text,) = forbidden(SOURCES[0])
    assert told in text


def test_exactly_one_file_maps_over_devices():
    """pmap and shard_map appear (as names, not in prose) only in jsrl/parallel.py."""
    spelled = {relative(path) for path in SOURCES if calls_and_names(parsed(path)) & {"pmap", "shard_map"}}
    assert spelled == {"parallel.py"}


def public_names(tree: ast.Module) -> set[str]:
    """Return the public names of a module: its definitions, and the fields, methods and arguments of public ones."""
    names: set[str] = set()
    scopes: list[ast.AST] = [tree]
    while scopes:
        for node in ast.iter_child_nodes(scopes.pop()):
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                names.add(node.name)
                if isinstance(node, ast.ClassDef):
                    scopes.append(node)
                else:
                    names |= {a.arg for a in (*node.args.args, *node.args.kwonlyargs)}
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                names.add(node.target.id)
            elif isinstance(node, ast.Assign):
                names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return names


def empty_names(path: Path) -> list[str]:
    """Return the meaningless public names of a file."""
    allowed = {name for prefix, names in FOREIGN_NAMES.items() if relative(path).startswith(prefix) for name in names}
    words = {name.lower() for name in public_names(parsed(path))}
    parts = set(re.split(r"[/_.]", relative(path)))
    endings = {name for name in words if re.search(r"_?(utils|helper|misc|manager)s?$", name)}
    return sorted((words - allowed) & FORBIDDEN_NAMES | parts & FORBIDDEN_NAMES | endings)


def test_no_meaningless_public_names():
    wrong = [f"{relative(path)}: {name}" for path in SOURCES for name in empty_names(path)]
    assert not wrong, "\n".join(wrong)


_DOCUMENTED = re.compile(r"(?:^|(?<=[.;)] ))((?:[a-z_]\w*)(?:(?:, | and )\*{0,2}[a-z_]\w*)*): ", re.MULTILINE)
_VALUES = {"empty", "none", "default"}  # "why; empty: it may", "(default: ...)"


def documented_names(doc: str, title: str) -> set[str]:
    """Return the names that a section of a docstring, such as Args, describes."""
    found = re.search(rf"^{title}:\n((?:[ ]+.*\n?|\n)+)", doc, re.MULTILINE)
    lines = "\n".join(line.strip() for line in found.group(1).splitlines()) if found else ""
    return {name for names in _DOCUMENTED.findall(lines) for name in re.split(", | and ", names)} - _VALUES


def names_of(node: ast.AST) -> set[str]:
    """Return the names of attributes, fields, methods and arguments anywhere in a class or function."""
    found: set[str] = set()
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute):
            found.add(part.attr)
        elif isinstance(part, ast.FunctionDef):
            found.add(part.name)
        elif isinstance(part, ast.arg):
            found.add(part.arg)
        elif isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
            found.add(part.id)
    return found


def unknown_names(tree: ast.Module) -> list[str]:
    """Return the names that docstrings describe and their class or function does not have."""
    return [
        f"{node.name}: {name}"
        for node in nodes(tree)
        if isinstance(node, ast.ClassDef | ast.FunctionDef)
        for title in ("Args", "Attributes")
        if (documented := documented_names(ast.get_docstring(node) or "", title))
        for name in sorted(documented - names_of(node))
    ]


def test_docstrings_describe_only_names_that_exist():
    assert not [f"{relative(path)}: {name}" for path in SOURCES for name in unknown_names(parsed(path))]
    assert unknown_names(ast.parse('def f(new):\n    """Do.\n\n    Args:\n      old: what. new: it.\n    """')) == [
        "f: old"
    ]


def test_functions_fit_on_a_screen():
    wrong = []
    for path in SOURCES:
        for node in nodes(parsed(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                length, name = node.end_lineno - node.lineno + 1, f"{relative(path)}:{node.name}"
                if length > 60 and name not in LONGER_FUNCTIONS:
                    wrong.append(f"{name} has {length} lines")
    assert not wrong, "\n".join(wrong)


def test_exceptions_are_still_needed():
    for file in MORE:
        assert (PACKAGE / file).exists(), f"{file} no longer exists; remove it from the table"
    for file, (modules, _) in MORE.items():
        used = imported(ast.parse((PACKAGE / file).read_text()))
        assert all(any(name.startswith(module) for name in used) for module in modules), (
            f"{file} needs fewer exceptions; shorten the table"
        )


# Names of other packages that begin with `_`, each with what to look at when it is gone.
PRIVATE: dict[str, str] = {
    "jax._src": "jsrl/parallel.py: forget_pmap frees compiled programs of jax 0.10",
    "jax._src.pmap._cached_shard_map": "jsrl/parallel.py: forget_pmap frees compiled programs of jax 0.10",
    "dataclasses._FIELD_INITVAR": "jsrl/references/importing.py: fields that only the constructor takes",
    "atexit._run_exitfuncs": "jsrl/workers/actor_host.py: a forked child ends as a process of its own does",
}
DOCUMENTED = {"os._exit", "sys._current_frames"}


def private_names(tree: ast.AST) -> set[str]:
    """Return the dotted private names of other packages that a tree imports or reads."""
    known: dict[str, str] = {}  # name in the file -> in its package
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            known |= {alias.asname or alias.name: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            known |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    read = [ast.unparse(node).partition(".") for node in nodes(tree) if isinstance(node, ast.Attribute)]
    dotted = [*known.values(), *(f"{known[name]}.{rest}" for name, _, rest in read if name in known)]
    found = (re.match(r"[\w.]*\._[a-zA-Z]\w*", name) for name in dotted if not name.startswith("jsrl."))
    return {match[0] for match in found if match}


def test_private_names_of_libraries_are_known_and_exist():
    found = set().union(*(private_names(parsed(path)) for path in SOURCES))
    assert found == PRIVATE.keys() | DOCUMENTED
    for name, purpose in PRIVATE.items():
        home, _, attribute = name.rpartition(".")
        assert hasattr(importlib.import_module(home), attribute), f"there is no {name} any more; {purpose}"
    cache = importlib.import_module("jax._src.pmap")._cached_shard_map
    assert callable(cache.evict_function), PRIVATE["jax._src.pmap._cached_shard_map"]


def test_no_file_of_the_package_has_two_module_names():
    assert not [path for path in PACKAGE.rglob("*") if path.is_symlink()]
    assert sorted(path.name for path in (ROOT / "experiments").glob("*.py")) == ["bench.py", "run.py"]


# -- experiments ------------------------------------------------------------------------------------------------------

CONFIGS = sorted(p.stem for p in (PACKAGE / "configs").glob("*.py") if p.stem != "__init__")


def test_every_experiment_builds_and_has_a_one_line_description():
    for name in CONFIGS:
        module = importlib.import_module(f"jsrl.configs.{name}")
        assert module.config().name == name
        description = (module.__doc__ or "").strip()
        assert description and "\n" not in description and len(description) <= 100, f"{name}: {description!r}"
        functions = [n for n in parsed(Path(module.__file__)).body if isinstance(n, ast.FunctionDef)]
        assert [f.name for f in functions] == ["config"], f"{name}: one short function per file"


def test_the_promised_experiments_exist():
    assert {"ppo", "impala", "ppo_cartpole", "ppo_pong", "impala_pong", "ppo_halfcheetah", "ppo_memory"} <= set(CONFIGS)
