"""References, trees as JSON, and the imports of a child process."""

import functools
import json
import math
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from jsrl.errors import ConfigError
from jsrl.references.capture import Entry, module_text
from jsrl.references.importing import import_target, shown_target, spawn_environment
from jsrl.references.reference import from_json, to_json
from jsrl.types import ArraySpec, Continuous, EnvSpec

ROOT = pathlib.Path(__file__).parents[2]
THINGS = """
import dataclasses, enum, functools
from typing import NamedTuple

class Color(enum.Enum):
    RED = 1
    BLUE = "b"

class Level(enum.IntEnum):
    LOW = 3

class Point(NamedTuple):
    x: float
    y: tuple = ()

@dataclasses.dataclass(frozen=True)
class Config:
    lr: float = 1e-3
    sizes: tuple[int, ...] = (64, 64)
    derived: int = dataclasses.field(init=False, default=7)
    activation: object = None

@dataclasses.dataclass
class WithInitVar:
    seed: dataclasses.InitVar[int]
    def __post_init__(self, seed):
        pass

@dataclasses.dataclass
class OtherFields:
    rate: float

class Factory:
    limit = 3
    @classmethod
    def small(cls, size=1):
        return cls, size
    def method(self):
        return 1
    class Inner:
        pass

def scale(x, factor=2):
    return x * factor

double = lambda x: 2 * x

def outer(hidden_size=64):
    def inner(x):
        return x * hidden_size
    return inner

def maker():
    class Local:
        pass
    return Local

tripled = outer(3)
"""


@pytest.fixture(scope="module")
def things(tmp_path_factory):
    folder = tmp_path_factory.mktemp("things")
    (folder / "reference_things.py").write_text(THINGS)
    (folder / "reference_broken.py").write_text("VALUE = 1 / 0\n")
    (folder / "reference_needy.py").write_text("import package_that_nobody_has\n")
    (folder / "reference_syntax.py").write_text("def f(:\n")
    sys.path.insert(0, str(folder))
    try:
        yield __import__("reference_things")
    finally:
        sys.path.remove(str(folder))


def round_trip(value):
    return from_json(json.loads(json.dumps(to_json(value), allow_nan=False)))


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        0,
        2**80,
        -(2**63) - 1,
        1.5,
        -0.0,
        math.inf,
        -math.inf,
        "text",
        "$text",
        [1, [2, (3,)]],
        (),
        ((1,), [2], {"a": (3, None)}),
        {"a": 1, "b": {"c": ()}},
        {1: "a", ("x", 2): "b"},
        {"$type": "not a tag"},
        {1, 2},
        frozenset({"a"}),
        pathlib.Path("some/where"),
        np.dtype("uint8"),
        EnvSpec({"x": ArraySpec((3,), "float32")}, Continuous((-math.inf,), (1.0,)), num_agents=2),
        len,
        math.sqrt,
        np.tanh,
        np.float32,
    ],
    ids=repr,
)
def test_round_trip_keeps_value_and_type(value):
    again = round_trip(value)
    assert again == value
    assert type(again) is type(value)
    assert repr(again) == repr(value)


def test_round_trip_of_nan():
    assert math.isnan(round_trip(math.nan))
    assert math.isnan(round_trip(np.float32("nan")))


@pytest.mark.parametrize("scalar", [np.float32(0.1), np.float64(1e300), np.int64(-5), np.bool_(True), np.uint8(255)])
def test_round_trip_of_numpy_scalars(scalar):
    again = round_trip(scalar)
    assert again == scalar
    assert type(again) is type(scalar)


@pytest.mark.parametrize(
    "array",
    [np.arange(6.0).reshape(2, 3), np.zeros((0, 4), np.int32), np.array(3, np.uint8), np.array([np.nan, -np.inf]),
     np.array([[True], [False]]), np.array(["a", "bc"]), np.arange(8)[::2]],
)  # fmt: skip
def test_round_trip_of_arrays(array):
    again = round_trip(array)
    assert again.dtype == array.dtype
    assert again.shape == array.shape
    np.testing.assert_array_equal(again, array)


def test_round_trip_of_importable_objects(things):
    config = things.Config(lr=math.inf, sizes=(1,), activation=things.scale)
    value = {
        "config": config,
        "enum": [things.Color.BLUE, things.Level.LOW],
        "point": things.Point(1.0, (2, [3])),
        "class": things.Factory.Inner,
        "small": things.Factory.small,
        "named": [things.double, things.tripled],
    }
    again = round_trip(value)
    assert again == value
    assert type(again["enum"][1]) is things.Level
    assert type(again["point"]) is things.Point
    assert "derived" not in to_json(config)["fields"]
    partial = round_trip(functools.partial(things.scale, 3, factor=(1,)))
    assert (partial.func, partial.args, partial.keywords) == (things.scale, (3,), {"factor": (1,)})


def test_round_trip_of_flax_modules():
    nn = pytest.importorskip("flax.linen")
    module = nn.Sequential([nn.Dense(3, use_bias=False, name="first"), nn.relu, nn.LayerNorm()])
    again = round_trip(module)
    assert again == module
    assert again.layers[0].name == "first"
    assert again.layers[1] is nn.relu
    assert json.dumps(to_json(module)).count("jax._src") == 0


def test_public_names_are_preferred():
    nn = pytest.importorskip("jax.nn")
    assert to_json(nn.relu) == {"$function": "jax.nn:relu"}


def bound(things):
    return things.Factory().method


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda t: lambda x: x, ["agent.network.torso", "is a lambda", "define it with `def`"]),
        (lambda t: t.outer(), ["is defined inside outer()", "closes over hidden_size = 64", "calling outer(...)"]),
        (lambda t: t.maker(), ["is defined inside maker()", "top level"]),
        (bound, ["method bound to a Factory", "top-level function"]),
        (lambda t: math, ["is a module", "module:function"]),
        (lambda t: object(), ["builtins.object object", "no JSON form"]),
        (lambda t: np.zeros(5000), ["array of 5000 values", "at most 4096", "save it to a file"]),
        (lambda t: np.array([object()]), ["dtype object"]),
        (lambda t: t.WithInitVar(3), ["init-only variable `seed`", "make it a field"]),
    ],
)  # fmt: skip
def test_refusals_name_location_reason_and_remedy(things, make, words):
    with pytest.raises(ConfigError) as caught:
        to_json({"network": {"torso": make(things)}}, path="agent")
    for word in ["agent.network.torso", *words]:
        assert word in str(caught.value)


def test_refusal_names_index_and_field(things):
    with pytest.raises(ConfigError, match=r"sizes\[1\]"):
        to_json(things.Config(sizes=(1, lambda: 0)))


def test_refuses_open_files_and_jax_arrays(tmp_path):
    jnp = pytest.importorskip("jax.numpy")
    with open(tmp_path / "log", "w") as file, pytest.raises(ConfigError, match=r"log: .*TextIOWrapper"):
        to_json({"log": file})
    with pytest.raises(ConfigError, match=r"is a jax array.*numpy.asarray"):
        to_json(jnp.ones(3))


def test_refuses_recursive_trees():
    tree = []
    tree.append(tree)
    with pytest.raises(ConfigError, match="deeper than"):
        to_json(tree)


def test_refuses_objects_removed_from_their_module(things):
    removed = things.Factory.Inner
    scale = things.scale
    del things.scale
    try:
        with pytest.raises(ConfigError, match="any more"):
            to_json(scale)
    finally:
        things.scale = scale
    assert to_json(removed) == {"$function": "reference_things:Factory.Inner"}


# -- reading ----------------------------------------------------------------------------------------------------------


def test_from_json_refuses_unknown_tags_and_fields(things):
    with pytest.raises(ConfigError, match=r"a\.b: unknown tag '\$tupl'; nearest: \$tuple"):
        from_json({"a": {"b": {"$tupl": []}}})
    with pytest.raises(ConfigError, match=r"lrr.*nearest: lr.*It takes lr, sizes, activation"):
        from_json({"$type": "reference_things:Config", "fields": {"lrr": 1}})
    with pytest.raises(ConfigError, match="not a dataclass or NamedTuple"):
        from_json({"$type": "reference_things:Factory", "fields": {}})
    with pytest.raises(ConfigError, match="nearest: Config"):
        from_json({"$type": "reference_things:Confg", "fields": {}})
    with pytest.raises(ConfigError, match=r"no member 'GREEN'.*RED, BLUE"):
        from_json({"$enum": "reference_things:Color", "name": "GREEN"})


# -- importing by name --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["", "math", "math:", ":sqrt", "a b:c", "math:sqrt()", "x:y:z", "./file:f"])
def test_malformed_targets_are_refused(target):
    with pytest.raises(ConfigError, match="is not a reference; expected"):
        import_target(target)


def test_dotted_target_is_rewritten_with_a_colon():
    with pytest.raises(ConfigError, match=r'did you mean "jsrl\.types:EnvSpec"'):
        import_target("jsrl.types.EnvSpec")


@pytest.mark.parametrize(
    ("number", "entries", "shown"),
    [
        (1, ["/home/me/train.py, line 3", "/home/me/train.py, line 9"], "train.py:Maze"),
        (2, ["cell 4, line 1", "cell 7, line 2"], "notebook:Maze"),
        (3, [], "global variables:Maze"),
    ],
)
def test_messages_name_the_file_of_captured_definitions(tmp_path, monkeypatch, number, entries, shown):
    name = f"jsrl_captured_{number:012}"
    made = {str(n): Entry(str(n), None, f"x{n} = 0", "definition", (n, 0), origin) for n, origin in enumerate(entries)}
    (tmp_path / f"{name}.py").write_text(module_text(made))
    monkeypatch.syspath_prepend(tmp_path)
    assert shown_target(f"{name}:Maze") == shown
    assert shown_target("jsrl_captured_missing:Maze") == "jsrl_captured_missing:Maze"
    assert shown_target("my_envs.maze:Maze") == "my_envs.maze:Maze"


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("jsrl.types:EnvSpek", ["no 'EnvSpek'", "nearest: EnvSpec", "types.py"]),
        ("jsrl.types:EnvSpec.nam", ["jsrl.types:EnvSpec has no 'nam'", "nearest: name"]),
        ("jsrl.typs:EnvSpec", ["package 'jsrl' has no module 'typs'", "nearest: types"]),
        ("reference_thingz:Config", ["no module 'reference_thingz'", "nearest: reference_things", "PYTHONPATH"]),
        ("reference_broken:VALUE", ["'reference_broken' failed with ZeroDivisionError", "division by zero"]),
        ("reference_needy:f", ["needs 'package_that_nobody_has'", "not", "installed"]),
        ("reference_syntax:f", ["SyntaxError"]),
    ],
)
def test_import_names_the_missing_module_or_attribute(things, target, words):
    with pytest.raises(ConfigError) as caught:
        import_target(target)
    for word in words:
        assert word in str(caught.value)


def test_not_found_names_the_folders_that_were_searched(things, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(ConfigError) as caught:
        import_target("no_such_module_here:f")
    assert f"Looked in {tmp_path} and the installed packages" in str(caught.value)
    assert os.getcwd() in str(caught.value)


# -- imports of a child process ---------------------------------------------------------------------------------------


def run_python(code, environment):
    variables = {**os.environ, **environment.variables}
    command = [sys.executable, "-c", code]
    finished = subprocess.run(
        command,
        env=variables,
        cwd=environment.working_directory,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def test_child_process_imports_what_the_caller_can(things, tmp_path):
    (tmp_path / "captured_by_test.py").write_text("NAME = 'captured'\n")
    environment = spawn_environment([tmp_path])
    code = "import os, reference_things, captured_by_test; print(captured_by_test.NAME, os.getcwd())"
    assert run_python(code, environment).split() == ["captured", os.getcwd()]
    assert environment.variables["PYTHONPATH"].split(os.pathsep)[0] == str(tmp_path)


def test_import_paths_are_absolute_and_exclude_the_interpreter(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    monkeypatch.setattr(sys, "path", ["", "sub", "missing", "sub", *sys.path])
    paths = spawn_environment().variables["PYTHONPATH"].split(os.pathsep)
    assert paths[:2] == [str(tmp_path), str(tmp_path / "sub")]
    assert len(paths) == len(set(paths))
    assert not [path for path in paths if path.endswith(("site-packages", "lib-dynload"))]
    assert os.path.dirname(os.__file__) not in paths


def test_child_process_finds_jsrl_beside_a_checkout_named_jsrl(monkeypatch, tmp_path):
    """An editable installation is found after all folders of the path, among them the working directory."""
    (tmp_path / "jsrl" / "services" / "runs").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(ROOT)])
    code = "import jsrl.services.runs; print(jsrl.services.runs.__file__)"
    assert run_python(code, spawn_environment()).strip() == str(ROOT / "jsrl" / "services" / "runs" / "__init__.py")


def test_importing_references_does_not_import_jax():
    code = (
        "import sys, jsrl.references.reference, jsrl.references.capture; "
        "print([m for m in ('jax', 'flax', 'zmq', 'gymnasium') if m in sys.modules])"
    )
    assert run_python(code, spawn_environment()).strip() == "[]"
