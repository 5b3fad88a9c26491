"""Named experiments: those of jsrl, and those in the folder `configs` of the working directory."""

from __future__ import annotations

import contextlib
import importlib.util
import pkgutil
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType

import jsrl
import jsrl.experiment.configs
from jsrl.cli.main import Parser
from jsrl.errors import ConfigError, JsrlError
from jsrl.experiment import Experiment
from jsrl.fields import InvalidValue

FOLDER = "configs"  # of the working directory: one file per experiment, each with a function `config() -> Experiment`


def use_working_directory() -> None:
    """Allow imports of environments, agents, workers and configs from the working directory.

    The folder of `python experiments/run.py` is left out, because its link `configs` would hide that of a user.
    """
    here, scripts = str(Path.cwd()), str(Path(jsrl.experiment.configs.__path__[0]).parents[2] / "experiments")
    sys.path[:] = [here, *(path for path in sys.path if path not in (here, scripts))]


def files() -> dict[str, tuple[str, Path]]:
    """Return name -> (module, file) of every experiment; a user's experiment hides jsrl's of the same name."""
    own = Path(jsrl.experiment.configs.__path__[0])
    found = dict(_modules("jsrl.experiment.configs", *map(Path, jsrl.experiment.configs.__path__)))
    here = Path.cwd() / FOLDER
    if here.resolve() != own:
        found |= dict(_modules(FOLDER, here))
    return dict(sorted(found.items()))


def _modules(package: str, *folders: Path) -> Iterator[tuple[str, tuple[str, Path]]]:
    for module in pkgutil.iter_modules(map(str, folders)):
        paths = [path for folder in folders if (path := folder / f"{module.name}.py").exists()]
        if paths:  # a package in the folder is not an experiment
            yield module.name, (f"{package}.{module.name}", paths[0])


def load(name: str) -> Experiment:
    """Return an experiment by its name."""
    known = files()
    if name not in known:
        raise ConfigError(f"there is no experiment {name!r} here; go to the folder that has {FOLDER}/{name}.py.")
    module, path = known[name]
    with _one_sentence(path):
        config = getattr(_import(module, path), "config", None)
    if not callable(config):
        raise ConfigError(f"{path} has no function config(); an experiment's file has one that returns an Experiment.")
    with _one_sentence(path):
        experiment = config()
    if not isinstance(experiment, Experiment):
        raise ConfigError(f"config() of {path} returned {type(experiment).__name__}; it must return an Experiment.")
    return experiment


@contextlib.contextmanager
def _one_sentence(path: Path) -> Iterator[None]:
    """Raise an error of an experiment's file, or of a module beside it, as one sentence with file, line and reason."""
    try:
        yield
    except Exception as error:  # any error of the file's own code: it is shown, and chained
        if isinstance(error, JsrlError) and type(error) not in (ConfigError, InvalidValue):
            raise
        raise ConfigError(f"{_place(error, path)}: {_reason(error)}") from error


def _place(error: Exception, path: Path) -> str:
    """Return file and line of the last frame that is the user's own, or of a syntax error."""
    if isinstance(error, SyntaxError):
        return f"{error.filename or path}, line {error.lineno or 1}"
    frames = [(Path(frame.filename), frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    foreign = (Path(jsrl.__file__).parent, Path(sys.prefix))
    own = [
        (file, line)
        for file, line in frames
        if file == path or (file.is_relative_to(Path.cwd()) and not any(map(file.is_relative_to, foreign)))
    ]
    return f"{own[-1][0]}, line {own[-1][1]}" if own else str(path)


def _reason(error: Exception) -> str:
    if isinstance(error, ConfigError):
        return str(error)
    text = " ".join((error.msg if isinstance(error, SyntaxError) else str(error)).split())
    return f"{type(error).__name__}: {text}{'' if text.endswith(('.', '?')) else '.'}"


def _import(name: str, path: Path) -> ModuleType:
    """Return the module of a file, even if another package with its folder's name has been imported."""
    found = sys.modules.get(name)
    if found is None or found.__file__ != str(path):
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        found = sys.modules[name] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(found)
        except BaseException:
            del sys.modules[name]
            raise
    return found


def experiments() -> dict[str, Callable[[], Experiment]]:
    """Return name -> a function that makes the experiment."""
    return {name: partial(load, name) for name in files()}


def summaries() -> dict[str, str]:
    """Return name -> first line of each experiment's description."""
    return {name: summary(path) for name, (_, path) in files().items()}


def summary(path: Path) -> str:
    """Return the first line of a file's docstring; empty: it has none."""
    parts = path.read_text(errors="replace").split('"""')
    return parts[1].strip().splitlines()[0] if len(parts) > 2 and parts[1].strip() else ""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Parser(prog="jsrl list", description=__doc__)
    parser.add_argument("--tuned", action="store_true", help="list settings that are known to learn, as commands")
    if parser.parse_args(arguments).tuned:
        from jsrl.cli import tuned

        print(tuned.listing())
    else:
        print(listing())
    return 0


def listing() -> str:
    found = summaries()
    width = max(map(len, found))
    return "\n".join(f"  {name:<{width}}  {text}" for name, text in found.items())
