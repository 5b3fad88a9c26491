"""Make a project of your own: `jsrl new my_project` writes a config, an environment, an algorithm and a test that run."""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from jsrl.errors import ConfigError

NAME = "PROJECT"  # stands for the project's name in what is copied
FILES = {
    "README.md": "README.md",
    "environment.py": "environment.py",
    "algorithm.py": "algorithm.py",
    "test_project.py": "test_project.py",
    "configs/experiment.py": f"configs/{NAME}.py",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the project and say what to do next."""
    parser = argparse.ArgumentParser(prog="jsrl new", description=__doc__)
    parser.add_argument("path", type=Path, help="folder to make; its last part names the project and its experiment")
    options = parser.parse_args(arguments)
    try:
        written = write_project(options.path)
    except (ConfigError, OSError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    print("\n".join(f"  {path}" for path in written))
    print(f"Next: cd {options.path} && {jsrl_command()} run {options.path.name}")
    return 0


def jsrl_command() -> str:
    """Return how jsrl is called in any folder: `jsrl`, or this Python's module where its environment is not activated."""
    found = shutil.which("jsrl")
    ours = found is not None and Path(found).parent == Path(sys.executable).parent
    return "jsrl" if ours else f"{sys.executable} -m jsrl"


def write_project(folder: Path) -> list[Path]:
    """Write the files of a new project; return their paths.

    Raises:
      ConfigError: the name is none that Python can import, or there is such a folder with something in it.
    """
    name = folder.name
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise ConfigError(f"the project's name is {name!r}; use lower-case letters, digits and _, a letter first.")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} is there already and not an empty folder; choose another name, or remove it.")
    written = []
    for source, target in FILES.items():
        path = folder / target.replace(NAME, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(files("jsrl.cli.project").joinpath(source).read_text().replace(NAME, name))
        written.append(path)
    return written
