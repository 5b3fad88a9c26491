"""Create your own project: `jsrl new my_project` writes a working config, environment, algorithm and test."""

from __future__ import annotations

import keyword
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from jsrl.cli.main import Parser, show_error
from jsrl.errors import ConfigError

NAME = "PROJECT"  # replaced by the project's name in copied files
FILES = {
    "README.md": "README.md",
    "environment.py": "environment.py",
    "algorithm.py": "algorithm.py",
    "test_project.py": "test_project.py",
    "configs/experiment.py": f"configs/{NAME}.py",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the project and print the next steps."""
    parser = Parser(prog="jsrl new", description=__doc__)
    parser.add_argument(
        "path", type=Path, help="folder to make, such as my_project or k/my_project; its last part names the project"
    )
    options = parser.parse_args(arguments)
    try:
        written = write_project(options.path)
    except (ConfigError, OSError) as error:
        return show_error(error)
    print("\n".join(f"  {path}" for path in written))
    print(f"Next: cd {shlex.quote(str(options.path))} && {jsrl_command()} run {options.path.resolve().name}")
    return 0


def jsrl_command() -> str:
    """Return the command for jsrl in any folder: `jsrl`, or this Python's module if its environment is not activated."""
    found = shutil.which("jsrl")
    ours = found is not None and Path(found).parent == Path(sys.executable).parent
    return "jsrl" if ours else f"{shlex.quote(sys.executable)} -m jsrl"


def write_project(folder: Path) -> list[Path]:
    """Write the files of a new project, named by the last part of `folder`; return their paths."""
    there = folder.resolve()  # of `.` and `absent/..` as well
    name = there.name
    if keyword.iskeyword(name):
        raise ConfigError(f"the project's name is {name!r}, a word of Python's own; choose another name.")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise ConfigError(f"the project's name is {name!r}; use lower-case letters, digits and _, a letter first.")
    if there.exists() and (not there.is_dir() or any(there.iterdir())):
        raise ConfigError(f"{folder} exists already and is not an empty folder; choose another name, or remove it.")
    written = []
    for source, target in FILES.items():
        path = folder / target.replace(NAME, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(files("jsrl.cli.project").joinpath(source).read_text().replace(NAME, name))
        written.append(path)
    return written
