"""Ask every command below benchmarks/ and experiments/ for --help, as `python FILE --help` does, in one process."""

import contextlib
import io
import re
import runpy
import sys
from importlib.util import find_spec
from pathlib import Path

import jsrl

ROOT = Path(jsrl.__file__).parents[1]
OWN = [str(ROOT / name) for name in ("benchmarks", "experiments", "tests")]
LEFT_OUT = ("run_*.py",)  # drivers, which other environments run
NAMED = re.compile(r'"(benchmarks[.\w]+):\w+"')  # an environment that workers import


def commands() -> list[Path]:
    """Return the files with a command line."""
    files = [path for path in (ROOT / "benchmarks").rglob("*.py") if "ArgumentParser(" in path.read_text()]
    wanted = [path for path in files if not any(path.match(name) for name in LEFT_OUT)]
    return sorted([*wanted, *(ROOT / "experiments").glob("*.py")])


def error_of(path: Path) -> str | None:
    """Return why a command prints no help."""
    known, sys.argv, printed = set(sys.modules), [str(path), "--help"], io.StringIO()
    sys.path.insert(0, str(path.parent))
    try:
        with contextlib.redirect_stdout(printed):
            missing = [name for name in NAMED.findall(path.read_text()) if find_spec(name) is None]
            if missing:
                return f"cannot import {missing}"
            runpy.run_path(str(path), run_name="__main__")
    except SystemExit as end:
        return f"exit status {end.code}" if end.code else None if "usage" in printed.getvalue() else "no usage"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        places = {name: str(getattr(module, "__path__", module)) for name, module in sys.modules.items()}
        for name, place in places.items():
            if name not in known and any(folder in place for folder in OWN):
                del sys.modules[name]  # the next command must find its own modules itself
    return "no end by --help"


if __name__ == "__main__":
    paths = sys.path[1:]  # without this script's folder
    found = {}
    for command in commands():
        sys.path[:] = paths
        found[str(command.relative_to(ROOT))] = error_of(command)
    sys.stdout.write("".join(f"{name}: {error}\n" for name, error in found.items() if error))
