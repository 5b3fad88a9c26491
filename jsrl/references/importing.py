"""Names of importable things, and a child process's environment to import the same.

Only jsrl's errors are imported here, so that every process can import this module.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
import pkgutil
import site
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

from jsrl.errors import ConfigError

MAIN_MODULES = ("__main__", "__mp_main__")
CAPTURED = "jsrl_captured_"  # begins the names of modules with the definitions of a script or notebook
ITSELF = f"{CAPTURED}itself"  # stands for such a module in targets, until its text gives it a name


def _split(target: str) -> tuple[str, str]:
    """Return (module, qualname) of "module:qualname"; ConfigError if the text has another form."""
    module, colon, qualname = target.partition(":")
    if colon and all(part.isidentifier() for part in (*module.split("."), *qualname.split("."))):
        return module, qualname
    guess = ""
    if not colon and "." in target:
        guess = f' (did you mean "{target.rpartition(".")[0]}:{target.rpartition(".")[2]}"?)'
    raise ConfigError(f'{target!r} is not a reference; expected "module:name", such as "my_envs.maze:Maze"{guess}.')


def import_target(target: str) -> Any:
    """Import and return the value of "module:qualname"."""
    module_name, qualname = _split(target)
    found: Any = import_named(module_name, target)
    where = f"module {module_name}"
    for part in qualname.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            names = [name for name in dir(found) if not name.startswith("_")]
            origin = f" ({found.__file__})" if getattr(found, "__file__", None) else ""
            raise ConfigError(
                f"{target!r}: {where}{origin} has no {part!r}{nearest(part, names)}. Correct the name, or check that "
                "this is the file you mean."
            ) from None
        where = f"{module_name}:{part}" if where.startswith("module ") else f"{where}.{part}"
    return found


def nearest(name: str, names: Iterable[str]) -> str:
    """Return a part of a sentence with the names nearest to `name`: "; nearest: a, b", or "" without any."""
    close = difflib.get_close_matches(name, sorted(set(names)), n=3, cutoff=0.5)
    return f"; nearest: {', '.join(close)}" if close else ""


def shown_target(target: Any) -> str:
    """Return a "module:qualname" for messages: definitions of a script or notebook are named by its file."""
    module, colon, name = str(target).partition(":")
    if not module.startswith(CAPTURED):
        return str(target)
    try:
        origins = str(importlib.import_module(module).__doc__).partition("\nFrom ")[2].partition(".\n")[0].split(", ")
    except Exception:  # its own fault is shown elsewhere
        return str(target)
    file = "notebook" if origins[0].startswith("cell ") else os.path.basename(origins[0])
    return f"{file}{colon}{name}"


def module_of(file: str) -> str:
    """Return the name under which this process, and those that it starts, can import a file of Python."""
    path = Path(file).resolve()
    if not path.is_file():
        raise ConfigError(f"there is no file {file}; the working directory is {os.getcwd()}.")
    folder, parts = path.parent, [path.stem]
    while (folder / "__init__.py").is_file():
        folder, parts = folder.parent, [folder.name, *parts]
    if str(folder) not in map(os.path.abspath, sys.path):
        sys.path.insert(0, str(folder))  # child processes get it in PYTHONPATH
    return ".".join(parts)


def import_named(module_name: str, target: str) -> ModuleType:
    """Import and return the module of a `target`, which errors name."""
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise ConfigError(_not_found(module_name, error.name, target)) from error
        raise ConfigError(
            f"{target!r}: importing module {module_name!r} failed because it needs {error.name!r}, which is not "
            f"installed here or not on sys.path ({error}). Install it, or correct the import."
        ) from error
    except Exception as error:  # any error of the module's own code: it is shown, and chained
        raise ConfigError(
            f"{target!r}: importing module {module_name!r} failed with {type(error).__name__}: {error}. Correct the "
            f"module; `python -c 'import {module_name}'` shows the same error."
        ) from error


def _not_found(module_name: str, missing: str, target: str) -> str:
    parent, _, last = missing.rpartition(".")
    if parent:
        known = [module.name for module in pkgutil.iter_modules(getattr(sys.modules.get(parent), "__path__", None))]
        hint = f"package {parent!r} has no module {last!r}{nearest(last, known)}"
        if last == "py":
            hint = f"a module is named without .py: {target.replace('.py', '', 1)}"
    else:
        known = [module.name for module in pkgutil.iter_modules()] + [name for name in sys.modules if "." not in name]
        hint = f"there is no module {missing!r} on sys.path{nearest(missing, known)}"
    return (
        f"{target!r}: module {module_name!r} cannot be found: {hint}. Looked in "
        f"{', '.join(_own(sys.path)) or 'no folder'} and the installed packages; the working directory is "
        f"{os.getcwd()}. Start from the folder that holds the module, add that folder to PYTHONPATH, or install the "
        "package."
    )


# -- names of things --------------------------------------------------------------------------------------------------


def importable_target(thing: Any) -> str | None:
    """Return the "module:qualname" from which any process can import this object, or None.

    Public names are preferred to private ones: jax.nn:relu, not jax._src.nn.functions:relu.
    """
    module = getattr(thing, "__module__", None)
    qualname = getattr(thing, "__qualname__", None) or getattr(thing, "__name__", None)
    if isinstance(thing, str) or not isinstance(module, str) or not isinstance(qualname, str) or module in MAIN_MODULES:
        return None
    if "<" in qualname:  # a lambda or closure, which may still have a name in its module
        members = vars(sys.modules[module]).items() if module in sys.modules else ()
        qualname = next((name for name, value in members if value is thing and not name.startswith("_")), "")
        if not qualname:
            return None
    homes = [module]
    if any(part.startswith("_") for part in module.split(".")):
        top = module.split(".")[0]
        public = [name for name in list(sys.modules) if name == top or name.startswith(f"{top}.")]
        public = [name for name in public if not any(part.startswith("_") for part in name.split("."))]
        homes = [*sorted(public, key=lambda name: (name.count("."), name)), module]
    for home in homes:
        if is_same(lookup(home, qualname), thing) and is_importable(home):
            return f"{home}:{qualname}"
    return None


def is_same(found: Any, thing: Any) -> bool:
    """Return whether two names refer to the same thing (class methods are recreated at each access)."""
    return found is thing or (inspect.ismethod(thing) and inspect.ismethod(found) and found == thing)


def lookup(module: str, qualname: str) -> Any:
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        try:
            found = inspect.getattr_static(found, part) if isinstance(found, ModuleType) else getattr(found, part)
        except AttributeError:
            return None
    return found


def is_importable(module: str) -> bool:
    """Return whether a fresh process with this sys.path would find the module (not whether it is loaded here).

    What was found is remembered for this sys.path: thousands of jobs name the same modules.
    """
    searched = (module, *sys.path)
    if searched not in _found and _find(module):
        _found.add(searched)
    return searched in _found


_found: set[tuple[str, ...]] = set()


def _find(module: str) -> bool:
    path: Any = None
    parts = module.split(".")
    if module in MAIN_MODULES:
        return False
    for count in range(1, len(parts) + 1):
        name = ".".join(parts[:count])
        finders = (getattr(finder, "find_spec", None) for finder in sys.meta_path)
        if not any(find is not None and find(name, path) is not None for find in finders):
            return _is_attribute_module(name)
        path = getattr(sys.modules.get(name), "__path__", None)
    return True


def _is_attribute_module(name: str) -> bool:
    """Return whether a module such as os.path or six.moves appears when its parent is imported."""
    parent = name.rpartition(".")[0]
    return bool(parent) and name in sys.modules and is_importable(parent)


# -- values for other processes ---------------------------------------------------------------------------------------


def refuse(path: str, thing: Any, reason: str, way_out: str) -> ConfigError:
    """Return the error for something that cannot be rebuilt in another process."""
    shown = repr(thing)
    shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
    where = f"{path}: " if path else ""
    return ConfigError(f"{where}{shown} {reason}, so it cannot be rebuilt in another process; {way_out}.")


def why_not_importable(thing: Any) -> tuple[str, str] | None:
    """Return (reason, solution) for something without a name at the top level of a module, or None if it has one."""
    kind = type(thing)
    plain = inspect.unwrap(thing) if callable(thing) and not isinstance(thing, type) else thing
    qualname = getattr(thing, "__qualname__", None)
    if inspect.ismethod(thing) and not isinstance(thing.__self__, type):
        way_out = "pass the object (a dataclass) or a top-level function instead"
        return f"is a method bound to a {type(thing.__self__).__name__} object", way_out
    if isinstance(plain, FunctionType) and "<" in plain.__qualname__:
        return _why_not_function(plain)
    if isinstance(thing, ModuleType):
        return "is a module", 'pass its name as a string, or a function of it ("module:function")'
    if kind.__module__.startswith("jax") and hasattr(thing, "dtype") and hasattr(thing, "shape"):
        return "is a jax array", "pass numpy.asarray(it), or make it inside your function"
    if isinstance(qualname, str) and "<locals>" in qualname:
        return (
            f"is defined inside {qualname.split('.<locals>')[0]}()",
            "move the definition to the top level of the module",
        )
    if not isinstance(qualname, str) or not isinstance(getattr(thing, "__module__", None), str):
        way_out = "pass the arguments it is made from and make it inside your function, or describe it by a dataclass"
        return f"is a {kind.__module__}.{kind.__qualname__} object, which has no JSON form", way_out
    module = thing.__module__
    if module in sys.modules and not hasattr(sys.modules[module], qualname.split(".")[0]):
        reason = f"is not what {module!r} has under that name any more"
        return reason, f"keep it reachable as {module}.{qualname}"
    return None


def _why_not_function(function: FunctionType) -> tuple[str, str]:
    code, outer = function.__code__, function.__qualname__.split(".<locals>")[0]
    kind = "is a lambda" if function.__name__ == "<lambda>" else f"is defined inside {outer}()"
    if not code.co_freevars:
        return kind, "define it with `def` at the top level of a module, script or notebook cell"
    free = []
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
        try:
            shown = repr(cell.cell_contents)
        except ValueError:
            shown = "not set yet"
        free.append(f"{name} = {shown if len(shown) <= 40 else shown[:37] + '...'}")
    return f"{kind} and closes over {', '.join(free)}", (
        f"define it at the top level with {', '.join(f'`{name}`' for name in code.co_freevars)} as argument(s) and "
        f"pass functools.partial(it, {code.co_freevars[0]}=...), or make it where it is used, by calling {outer}(...) inside "
        "your own top-level function or flax module"
    )


# -- the environment of a child process -------------------------------------------------------------------------------


class SpawnEnvironment(NamedTuple):
    """How to start a process that can import what this one can.

    Attributes:
      variables: environment variables to set (PYTHONPATH). working_directory: where to start it.
    """

    variables: dict[str, str]
    working_directory: str


def spawn_environment(folders: Iterable[str | os.PathLike[str]] = ()) -> SpawnEnvironment:
    """Return the environment of a child process that can import the caller's code.

    Args:
      folders: put before the caller's own sys.path, such as a run's folder of captured sources.
    """
    paths = dict.fromkeys([*map(os.path.abspath, folders), *own_paths()])
    return SpawnEnvironment({"PYTHONPATH": os.pathsep.join(paths)}, os.getcwd())


def own_paths() -> list[str]:
    """Return the entries of sys.path that a fresh interpreter would not have: absolute, existing, in order.

    The standard library and site-packages are left out: PYTHONPATH comes before the standard library, and
    site-packages must not. The folder of jsrl's checkout is one of them: without it, a checkout of that name in the
    working directory (`git clone URL jsrl`) would be taken for the package.
    """
    return _own([*sys.path, str(Path(__file__).parents[2])])


def _own(entries: Iterable[str]) -> list[str]:
    provided = {os.path.realpath(path) for path in _interpreter_paths()}
    paths = dict.fromkeys(os.path.abspath(entry or os.getcwd()) for entry in entries)
    return [path for path in paths if os.path.realpath(path) not in provided and os.path.exists(path)]


def is_own(path: str) -> bool:
    """Return whether a file lies below one of `own_paths`, and not in an interpreter or virtual environment below it."""

    def is_below(folder: str) -> bool:
        return os.path.realpath(path).startswith(os.path.realpath(folder) + os.sep)

    return any(map(is_below, own_paths())) and not any(map(is_below, _interpreter_paths()))


def _interpreter_paths() -> list[str]:
    stdlib = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    version = f"python{sys.version_info.major}{sys.version_info.minor}.zip"
    libraries = [os.path.join(os.path.dirname(path), version) for path in stdlib[:2]]
    libraries += [os.path.join(path, "lib-dynload") for path in stdlib[:2]]
    user = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    return [*stdlib, *libraries, *site.getsitepackages(), *user]
