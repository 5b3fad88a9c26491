"""Definitions of scripts and notebooks, written as modules and imported in fresh processes."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
import textwrap
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from jsrl.errors import ConfigError
from jsrl.references.capture import Entry, ordered
from jsrl.references.importing import own_paths
from jsrl.references.reference import from_json, to_json
from jsrl.references.source_index import used_names

READ = (
    "import json, sys; from jsrl.references.importing import import_target; from jsrl.references.reference import *\n"
    "tree = from_json(json.load(open(sys.argv[1])))\n"
)
WRITE = """
import functools, json, sys
from jsrl.references.reference import to_json
from jsrl.errors import ConfigError

def written(tree, path="agent"):
    tree = to_json(tree, "captured", path)
    with open("tree.json", "w") as file:
        json.dump(tree, file)
    return tree

def refusals(**things):
    said = {}
    for name, make in things.items():
        try:
            to_json({"network": make}, "captured", "agent")
            said[name] = "ACCEPTED"
        except ConfigError as error:
            said[name] = str(error)
    print(json.dumps(said))
"""


class Folder:
    """A folder in which one script runs, and then a new process reads its output."""

    def __init__(self, path):
        self.path = path

    def python(self, *arguments):
        paths = os.pathsep.join([str(self.path / "captured"), *own_paths()])
        variables = {**os.environ, "PYTHONPATH": paths, "JAX_PLATFORMS": "cpu"}
        finished = subprocess.run(
            [sys.executable, *arguments], cwd=self.path, env=variables, capture_output=True, text=True, timeout=120,
            check=False,
        )  # fmt: skip
        assert finished.returncode == 0, finished.stdout + finished.stderr
        return finished.stdout

    def script(self, text, name="script.py"):
        future, text = ("", textwrap.dedent(text))
        if text.lstrip().startswith("from __future__"):
            future, text = "from __future__ import annotations\n", text.lstrip().partition("\n")[2]
        (self.path / name).write_text(f"{future}{text}\n")
        return self.python(name)

    def read(self, code):
        return self.python("-c", READ + textwrap.dedent(code), "tree.json").strip()

    @property
    def modules(self):
        return sorted((self.path / "captured").glob("*.py"))


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path)


def with_write(text):
    """Return a script whose definitions come first and whose last part, after `---`, converts them."""
    definitions, _, conversion = textwrap.dedent(text).partition("---\n")
    return f'{definitions}\nif __name__ == "__main__":\n{textwrap.indent(WRITE + conversion, "    ")}'


SCRIPT = '''
from __future__ import annotations
import dataclasses, enum, functools, logging, os.path as osp, re, typing
import xml.etree.ElementTree
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from jsrl.types import ArraySpec

GAMMA = 0.99
LIMITS = {"low": (-float("inf"),), "names": ["a", b"b"], "table": np.array([[1.5], [np.nan]], np.float32)}
DTYPE = np.dtype("uint8")
MISSING = object()
HERE = Path(__file__).parent
WORD = re.compile(r"\\w+", re.I)
LOG = logging.getLogger("things")
T = TypeVar("T")
Pair = typing.Tuple[int, "T"]
FILE = __file__

def scaled(factory):
    def wrapper(*args):
        return factory(*args) * helper()
    return wrapper

def helper():
    return TWO

TWO = 2

class Color(enum.Enum):
    RED = 1

class Point(NamedTuple):
    """A point,
    in "two" lines."""
    x: float
    y: float = GAMMA

class Base:
    def make(self):
        return Derived()

if TWO:
    class Derived(Base):
        rows = [GAMMA * i for i in range(TWO)]
        def value(self):
            return super().make()
        @property
        def kind(self):
            return Color.RED

@dataclasses.dataclass(frozen=True)
class Config:
    lr: float = 1e-3
    spec: ArraySpec = ArraySpec((3,), "float32")
    color: Color = Color.RED
    point: Point = Point(1.0)
    rows: list = dataclasses.field(default_factory=lambda: [TWO])

DEFAULT = Config(lr=float("inf"))
square = lambda x: x * x
part = functools.partial(square, 3)

@scaled
def weird(x):
    return square(x)

alias = weird
HANDLERS = {"weird": weird, "sqrt": np.sqrt, "helper": helper}

@functools.singledispatch
def show(x):
    return "other"

@show.register
def _(x: int):
    return "int"

@functools.lru_cache(maxsize=None)
def count(n):
    return n if n < 2 else count(n - 1) + count(n - 2)

async def later():
    return TWO

def make(config: Config = DEFAULT, extra: Unknown | None = None, *, name: str = osp.join("a", "b")):
    def nested(x):
        return [alias(x) + i for i in range(helper())]
    root = xml.etree.ElementTree.fromstring("<a/>")
    return {
        "lr": config.lr, "same": isinstance(config, Config), "nested": nested(2), "part": part(), "name": name,
        "root": root.tag, "show": show(1) + show(""), "count": count(10), "derived": type(Derived().value()).__name__,
        "rows": Derived.rows, "word": WORD.findall("ab c"), "here": str(HERE), "missing": MISSING is MISSING,
        "handlers": HANDLERS["weird"](2), "limit": LIMITS["low"][0], "nan": str(LIMITS["table"][1, 0]),
        "dtype": str(DTYPE), "log": LOG.name, "rows_of_config": config.rows, "file": FILE, "color": config.color.name,
    }

class Factory:
    class Inner:
        @staticmethod
        def make():
            return helper()
---
tree = {
    "agent": functools.partial(make, config=Config(lr=2.0, point=Point(3.0))),
    "class": Config, "named": square, "wrapped": weird, "point": Point(4.0), "color": Color.RED,
    "inner": Factory.Inner, "static": Factory.Inner.make, "partial": functools.partial(make, DEFAULT),
}
written(tree)
print(json.dumps(make(Config(lr=2.0))))
'''


def test_script_with_every_kind_of_definition(folder):
    expected = json.loads(folder.script(with_write(SCRIPT)))
    assert len(folder.modules) == 1
    out = folder.read(
        """
        agent = tree["agent"]
        assert type(agent.keywords["config"]) is tree["class"]
        assert tree["point"] == (4.0, 0.99) and type(tree["point"]).__name__ == "Point"
        assert type(agent.keywords["config"].point) is type(tree["point"])
        assert type(tree["color"]) is type(agent.keywords["config"].color)
        assert tree["named"](3) == 9 and tree["wrapped"](3) == 18
        assert tree["inner"].make() == tree["static"]() == 2
        assert tree["partial"]()["lr"] == float("inf")
        assert "__main__" not in json.dumps(to_json(tree))
        assert "script" not in sys.modules
        print(json.dumps(agent()))
        """
    )
    assert json.loads(out) == expected
    assert expected["same"] and expected["show"] == "intother" and expected["nested"] == [8, 9]
    text = folder.modules[0].read_text()
    assert text.startswith('"""Definitions of a script or notebook, written by jsrl')
    assert "script.py" in text.split('"""')[1]
    assert text.index("class Base") < text.index("class Derived") < text.index("def make(config")
    assert "refusals" not in text and "Factory" in text


JAX_SCRIPT = """
from typing import Callable
import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from jax.nn import relu as act

WIDTH = 8
norm = jnp.tanh

@jax.custom_vjp
def clip(x):
    return x

def clip_fwd(x):
    return x, None

def clip_bwd(_, g):
    return (jnp.clip(g, -1, 1),)

clip.defvjp(clip_fwd, clip_bwd)

@jax.tree_util.register_pytree_node_class
class Node:
    def __init__(self, a): self.a = a
    def tree_flatten(self): return (self.a,), None
    @classmethod
    def tree_unflatten(cls, _, children): return cls(*children)

class Pair:
    def __init__(self, a): self.a = a

jax.tree_util.register_pytree_node(Pair, lambda p: ((p.a,), None), lambda _, c: Pair(*c))

class Torso(nn.Module):
    width: int = WIDTH
    activation: Callable = nn.tanh
    kernel_init: Callable = nn.initializers.orthogonal(2.0)

    @nn.compact
    def __call__(self, x):
        return norm(self.activation(nn.Dense(self.width, kernel_init=self.kernel_init)(x)))

@jax.jit
def jitted(x):
    return clip(act(x)) * 3

master_key = jax.random.key(0)
weights = jnp.ones(3)
def uses_key(): return master_key
def uses_array(): return weights
def uses_compiled(): return compiled()

def make(network):
    x = jnp.ones((1, 3))
    out = network.apply(network.init(jax.random.key(0), x), x)
    updates, _ = optax.sgd(0.5).update(jnp.ones(2), optax.sgd(0.5).init(jnp.ones(2)))
    return [
        list(out.shape), float(out.sum()), float(jax.grad(lambda x: jitted(x))(2.0)), updates.tolist(),
        len(jax.tree.leaves([Node(1), Pair(2)])),
    ]

compiled = jax.jit(make)
---
network = Torso(width=4, activation=nn.relu)
written({"agent": functools.partial(make, network=network), "jitted": jitted})
print(json.dumps(make(network)))
refusals(key=uses_key, array=uses_array, compiled=uses_compiled, module=Torso(kernel_init=nn.initializers.normal()))
"""


@pytest.mark.slow
def test_script_of_jax_functions_and_flax_modules(folder):
    expected, said = (json.loads(line) for line in folder.script(with_write(JAX_SCRIPT)).splitlines())
    assert "`master_key`, which `uses_key` uses" in said["key"] and "is a jax array" in said["key"]
    assert "`weights`, which `uses_array` uses" in said["array"] and "numpy.asarray" in said["array"]
    assert "`compiled`, which `uses_compiled` uses" in said["compiled"] and "as a decorator" in said["compiled"]
    assert "agent.network.kernel_init" in said["module"] and "calling normal(...)" in said["module"]
    out = folder.read("assert tree['jitted'](2.0) == 6.0; print(json.dumps(tree['agent']()))")
    assert json.loads(out) == expected
    assert expected[0] == [1, 4] and expected[2] == 1.0 and expected[4] == 2
    assert "import jax.numpy as jnp" in folder.modules[0].read_text()


REFUSED = """
import functools, types
import numpy as np
from helpers_nearby import load

log = open("script.log", "w")
big = np.zeros(5000)
rng = np.random.default_rng(0)
made_up = types.ModuleType("made_up")

def outer(hidden=64):
    def act(x):
        return x * hidden
    return act

act = outer()

def uses_log(): log.write("x")
def uses_big(): return big.sum()
def uses_rng(): return rng.random()
def uses_closure(x): return act(x)
def uses_deep(x): return uses_closure(x)
def uses_unknown(): return unknown_name
def uses_module(): return made_up.x
def wrapped_later(x): return x
raw = wrapped_later
wrapped_later = functools.lru_cache(wrapped_later)
def uses_wrapped(x): return wrapped_later(x)
def again(): return 1
first = again
def again(): return 2
def uses_exec(): return made_by_exec()
exec("def made_by_exec(): return 1")
class Stateful:
    def step(self): return 1
def local():
    class Local: pass
    return Local
---
fine = to_json(load, "captured")
assert fine == {"$function": "helpers_nearby:load"}, fine
refusals(
    log=uses_log, big=uses_big, rng=uses_rng, closure=act, uses_closure=uses_closure, deep=uses_deep,
    unknown=uses_unknown, module=uses_module, wrapped=uses_wrapped, first=first, made=uses_exec,
    nameless=[lambda x: x], bound=Stateful().step, object=Stateful(), local=local(),
)
"""
REFUSALS = {
    "log": ["`log`, which `uses_log` uses", "TextIOWrapper", "inside your function"],
    "big": ["`big`, which `uses_big` uses", "array of 5000 values", "loaded by your function"],
    "rng": ["`rng`, which `uses_rng` uses", "Generator", "inside your function"],
    "closure": ["is defined inside outer()", "closes over hidden = 64", "with `hidden` as argument(s)", "partial"],
    "uses_closure": ["`act`, which `uses_closure` uses", "closes over hidden = 64"],
    "deep": ["`act`, which `uses_closure` uses", "closes over hidden = 64"],
    "unknown": ["uses `unknown_name`, which is not defined", "pass it as an argument"],
    "module": ["uses `made_up`, the module 'made_up'", "no other process can import"],
    "wrapped": ["`wrapped_later` wrapped after its definition", "as a decorator above `def wrapped_later`"],
    "first": ["is not what `again` is in __main__ now", "use the new one"],
    "made": ["`made_by_exec`", "has no source", "notebook cell"],
    "nameless": ["agent.network[0]", "is a lambda", "define it with `def`"],
    "bound": ["method bound to a Stateful object"],
    "object": ["__main__.Stateful object", "dataclass"],
    "local": ["is defined inside local()", "top level"],
}


@pytest.fixture(scope="module")
def refusals(tmp_path_factory):
    folder = Folder(tmp_path_factory.mktemp("refused"))
    (folder.path / "helpers_nearby.py").write_text("def load(): pass\n")
    said = json.loads(folder.script(with_write(REFUSED)))
    assert not folder.modules
    return said


@pytest.mark.parametrize("name", REFUSALS)
def test_unsupported_main_modules_are_refused(refusals, name):
    for word in ["agent.network", *REFUSALS[name]]:
        assert word in refusals[name]


def test_all_refusals_are_listed(refusals):
    assert set(refusals) == set(REFUSALS)


def test_without_capture_main_is_refused(folder):
    said = folder.script(with_write("def f(): pass\n---\ntry: to_json(f)\nexcept ConfigError as e: print(e)"))
    assert "is defined in __main__, which no other process can import" in said


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="newer interpreters keep the source of `python -c`")
def test_interactive_code_has_no_source(folder):
    code = (
        "from jsrl.references.capture import Capture\ndef f(): pass\nclass C: pass\n"
        "for thing in f, C:\n"
        "    try: Capture('captured').target(thing)\n"
        "    except Exception as error: print(type(error).__name__, error)\n"
    )
    said = folder.python("-c", code)
    assert said.count("ConfigError") == 2
    assert said.count("has no source that can be found") == 2
    assert "put it into a file or a notebook cell" in said


def test_script_edited_since_it_ran_is_refused(folder):
    text = """
    import pathlib
    LIMIT = 1
    def f(): return LIMIT + 1
    ---
    path = pathlib.Path(__file__)
    path.write_text(path.read_text().replace("LIMIT + 1", "LIMIT + 2"))
    refusals(f=f)
    """
    assert "a file may have changed since it ran" in json.loads(folder.script(with_write(text)))["f"]


def test_equal_definitions_give_the_same_module(folder):
    text = with_write("A = {'b', 'a', 'c'}\ndef f(): return A\n---\nwritten(f)")
    folder.script(text)
    before = folder.modules
    folder.script(text)
    assert folder.modules == before
    folder.script(text.replace("'c'", "'d'"))
    assert len(folder.modules) == 2


@pytest.mark.slow
def test_module_keeps_its_name_when_definitions_move(folder):
    here = "def scale(x):\n    return FACTOR * x\n"
    text = WRITE + "FACTOR = 2\n" + here + 'written({"f": scale})\n'
    folder.script(text)
    folder.script(text.replace("FACTOR = 2", "FACTOR = 2\n# a comment that moves it\n\n"))
    assert len(folder.modules) == 1
    folder.script(text.replace("FACTOR = 2", "FACTOR = 3"))
    folder.script(text.replace("FACTOR * x", "FACTOR + x"))
    assert len(folder.modules) == 3


def test_relative_imports_of_a_package_main(folder):
    package = folder.path / "package_of_main"
    package.mkdir()
    (package / "near.py").write_text("def near(): return 'near'\n")
    (package / "__init__.py").write_text("")
    script = with_write(
        "from .near import near as close\nfrom . import near\ndef f(): return close(), near.near()\n---\nwritten(f)"
    )
    (package / "__main__.py").write_text(script)
    folder.python("-m", "package_of_main")
    assert folder.read("print(*tree())") == "near near"


def test_unwritable_folder(folder, tmp_path):
    (tmp_path / "captured").write_text("a file, not a folder")
    script = "def f(): pass\n---\ntry: written(f)\nexcept ConfigError as e: print(e)"
    assert "Choose a folder that can be written" in folder.script(with_write(script))


def test_capture_of_importable_definitions_writes_nothing(tmp_path):
    assert to_json(json.dumps, tmp_path) == {"$function": "json:dumps"}
    assert not list(tmp_path.iterdir())


# -- notebooks --------------------------------------------------------------------------------------------------------

CELLS = [
    "import dataclasses\nfrom typing import NamedTuple\nimport numpy as np",
    "%time x = 3\nLIMIT = x + 1",
    "@dataclasses.dataclass(frozen=True)\nclass Config:\n    size: int = 1",
    "@dataclasses.dataclass(frozen=True)\nclass Config:\n    size: int = LIMIT\n    name: str = 'new'",
    "class Row(NamedTuple):\n    a: int = LIMIT",
    "def f(c):\n    return 'old'",
    "def f(c):\n    return [c.size + LIMIT, Row().a, float(np.ones(2).sum())]",
    "!true\nclass Env:\n    kind = 'first'\n    def step(self):\n        return f(Config(1)), self.kind",
    "class Env:\n    kind = 'second'\n    def step(self):\n        return f(Config(1)), self.kind",
    "def make(config=Config(2)):\n    return f(config), isinstance(config, Config), Env().step(), config.name",
]
CONVERT = "tree = written({'agent': functools.partial(make, config=Config(3)), 'env': Env, 'config': Config(5)})"
EXPECTED = [[7, 4, 2.0], True, [[5, 4, 2.0], "second"], "new"]
CHECK = "assert type(tree['config']) is type(tree['agent'].keywords['config']); print(json.dumps(tree['agent']()))"


def test_notebook_cells(folder):
    pytest.importorskip("IPython")
    cells = [*CELLS, WRITE, CONVERT, CELLS[5], CELLS[6], "refusals(f=[Config, f])"]
    folder.script(
        "from IPython.core.interactiveshell import InteractiveShell\n"
        "shell = InteractiveShell.instance(history_manager=None)\n"
        f"for cell in {cells!r}:\n"
        "    shell.run_cell(cell, store_history=True).raise_error()\n"
    )
    assert json.loads(folder.read(CHECK)) == EXPECTED
    text = folder.modules[0].read_text()
    assert "'old'" not in text and "kind = 'first'" not in text and text.count("class Config") == 1


@pytest.mark.slow
def test_notebook_in_a_real_kernel(folder):
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    cells = [nbformat.v4.new_code_cell(cell) for cell in [*CELLS, WRITE, CONVERT]]
    notebook = nbformat.v4.new_notebook(cells=cells)
    nbclient.NotebookClient(notebook, timeout=60, resources={"metadata": {"path": str(folder.path)}}).execute()
    assert json.loads(folder.read(CHECK)) == EXPECTED


def test_annotations_stay_strings_only_where_they_were_strings(folder):
    text = "from jsrl.references.source_index import *\nclass C:\n    a: int = 1\n---\nwritten(C)"
    folder.script(with_write(text))
    assert folder.read("print(tree.__annotations__['a'])") == "<class 'int'>"


def test_types_and_classes_created_by_calls(folder):
    text = """
    import collections, contextlib, enum, typing
    Point = collections.namedtuple("Point", "x y")
    Color = enum.Enum("Color", "A B")
    Sizes = list[int]
    Mode = typing.Literal["a"] | None
    T = typing.TypeVar("T")
    table = {Color.A: Point(1, 2)}
    counter = 0

    def bump():
        global counter
        counter += 1
        return counter

    @contextlib.contextmanager
    def five():
        yield 5

    class Meta(type):
        pass

    class Generic(typing.Generic[T], metaclass=Meta):
        def __private(self):
            return five()
        def go(self):
            with self.__private() as number:
                return number

    def f(sizes: Sizes = (), mode: Mode = None):
        match table[Color.A]:
            case Point(x=1):
                return [Generic().go(), bump(), bump(), [color.name for color in Color]]
    ---
    written(f)
    """
    folder.script(with_write(text))
    assert folder.read("print(json.dumps(tree()))") == '[5, 1, 2, ["A", "B"]]'


@pytest.mark.skipif(sys.version_info < (3, 12), reason="syntax of Python 3.12")
def test_type_parameters(folder):
    text = """
    class Base: pass
    type Sizes[K] = list[K] | Base
    def first[T: Base](values: Sizes[T]) -> T:
        return [value for value in values][0]
    class Box[V](Base):
        def get(self, value: V) -> V:
            return first([value])
    ---
    written([first, Box])
    """
    folder.script(with_write(text))
    assert folder.read("print(tree[0]([3]), tree[1]().get(4))") == "3 4"


# -- parts ------------------------------------------------------------------------------------------------------------


def test_used_names_separates_definition_time_from_call_time():
    text = textwrap.dedent(
        """
        @decorate(A)
        class C(Base, metaclass=M):
            rows = [B for _ in range(3)]
            make = lambda self: L
            def method(self, x: Ann = D) -> R:
                global G
                G = 1
                return __class__, self.attribute, F, [x for x in H]
        """
    ).strip()
    names = used_names(text, future_annotations=False)
    assert {"decorate", "A", "Base", "M", "B", "Ann", "D", "R", "range"} <= names.early
    assert {"F", "H", "G", "L"} <= names.late
    assert not {"attribute", "x", "self", "method"} & (names.early | names.late)
    soft = used_names(text, future_annotations=True)
    assert {"Ann", "R"} <= soft.soft
    assert "D" in soft.early


def test_order_puts_bases_and_decorators_first():
    def entry(name, line, early=(), late=()):
        return Entry(name, None, "", "definition", (1, line), early=set(early), late=set(late))

    entries = [
        entry("decorated", 1, early=["decorator"]), entry("decorator", 2, late=["called", "decorated"]),
        entry("called", 3), entry("child", 4, early=["base"], late=["user"]), entry("base", 5, late=["child"]),
        entry("user", 6, early=["base"]),
    ]  # fmt: skip
    names = [one.name for one in ordered({one.name: one for one in entries})]
    assert sorted(names) == sorted(one.name for one in entries)
    assert names.index("called") < names.index("decorated") > names.index("decorator")
    assert names.index("base") < names.index("child")


SPACES = [
    spaces.Box(0, 255, (210, 160, 3), np.uint8),
    spaces.Box(-np.inf, np.inf, (4,), np.float64),
    spaces.Box(np.array([-1.5, 0.1], np.float32), np.array([np.inf, 1.0], np.float32), dtype=np.float32),
    spaces.Discrete(5, start=-2),
    spaces.MultiDiscrete([[2, 3], [4, 5]], start=np.array([[1, 0], [0, 1]])),
    spaces.MultiBinary((2, 3)),
    spaces.Dict({"pair": spaces.Tuple((spaces.Discrete(3), spaces.MultiBinary(4))), "seen": spaces.Box(-1, 1, (2,))}),
]
OTHERS = [b"\x00\xffab", 1 - 2j, range(3, 9, 2), re.compile(r"\w+", re.IGNORECASE), logging.getLogger("jsrl.some")]


@pytest.mark.parametrize("value", [*SPACES, *OTHERS], ids=lambda value: type(value).__name__)
def test_spaces_of_gymnasium_and_others_are_made_by_their_arguments(value):
    text = json.dumps(to_json(value))
    made: Any = from_json(json.loads(text))
    assert made == value and getattr(made, "dtype", None) == getattr(value, "dtype", None) and type(made) is type(value)
    assert len(text) < 900


def test_a_space_with_many_different_bounds_is_refused():
    high = np.arange(5000, dtype=np.float32)
    with pytest.raises(ConfigError, match=r"is an array of 5000 values, shape \(5000,\); at most 4096"):
        to_json(spaces.Box(-1.0, high, dtype=np.float32))
