"""The quick tests with other versions: `python benchmarks/versions.py 3.11 oldest`, `... 3.13 newest`, `... --table`.

Makes a virtual environment with that Python, installs this checkout with its extras (oldest: each core package with the least
version that pyproject.toml allows), runs `pytest -m "not slow"`, and keeps a row in benchmarks/results/versions.json: what was
installed and what passed. `--table` prints the rows as docs/installation.md shows them.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import tempfile
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "versions.json"
SHOWN = ("jax", "flax", "numpy", "gymnasium", "orbax-checkpoint", "mujoco")


def least_versions() -> list[str]:
    """Return a constraint for each package that a user cannot do without, and for MuJoCo."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *project["optional-dependencies"]["hide-and-seek"]]
    return [re.sub(r">=([\w.]+).*", r"==\1", text) for text in asked]


def run(python: str, which: str, options: list[str]) -> dict:
    """Install and test one column, and return its row."""
    with tempfile.TemporaryDirectory(prefix="jsrl-versions-", dir="/var/tmp") as folder:
        subprocess.run([f"python{python}", "-m", "venv", folder], check=True)
        own, constraints = f"{folder}/bin/python", Path(folder, "constraints")
        constraints.write_text("\n".join(least_versions() if which == "oldest" else []))
        install = [own, "-m", "pip", "install", "--quiet", "--constraint", str(constraints), "-e", ".[dev]"]
        subprocess.run(install, cwd=ROOT, check=True)
        listed = subprocess.run([own, "-m", "pip", "list", "--format=json"], capture_output=True, check=True)
        versions = {entry["name"].lower(): entry["version"] for entry in json.loads(listed.stdout)}
        began_s = time.monotonic()
        command = [own, "-m", "pytest", "-q", "-n", "auto", "--dist", "loadfile", "-m", "not slow", *options]
        if which == "oldest":  # old packages warn of what they use of each other
            command += ["-W", "ignore::DeprecationWarning", "-W", "ignore::pytest.PytestUnraisableExceptionWarning"]
        tested = subprocess.run(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, check=False).stdout
        seconds = round(time.monotonic() - began_s)
    print(tested)
    asked = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    counts = re.findall(r"(\d+) (passed|failed|skipped|error)", tested.strip().splitlines()[-1])
    failed = sorted(re.findall(r"^(?:FAILED|ERROR) (\S+)", tested, re.MULTILINE))
    row = {"python": python, "which": which, "commit": commit, "seconds": seconds}
    return row | {what: int(count) for count, what in counts} | {"failed_tests": failed, "versions": versions}


def table() -> str:
    """Return the rows as a table in Markdown."""
    lines = [f"| Python | versions | {' | '.join(SHOWN)} | quick tests |", "|---" * (len(SHOWN) + 3) + "|"]
    for row in json.loads(RESULTS.read_text()):
        versions = " | ".join(row["versions"].get(name, "-") for name in SHOWN)
        passed = f"{row['passed']:,} passed" + (f", {row['failed']} failed" if row.get("failed") else "")
        lines.append(f"| {row['python']} | {row['which']} | {versions} | {passed} |")
    return "\n".join(lines)


def main() -> None:
    """Test one column, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("python", nargs="?", help="such as 3.12; `python3.12` must be on PATH")
    parser.add_argument("which", nargs="?", default="newest", choices=["oldest", "newest"])
    parser.add_argument("--table", action="store_true", help="print what is known as a table, and run nothing")
    args, options = parser.parse_known_args()
    if not args.table:
        row = run(args.python, args.which, options)
        rows = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
        rows = [other for other in rows if (other["python"], other["which"]) != (args.python, args.which)]
        rows = sorted([*rows, row], key=lambda row: (row["which"] == "newest", row["python"]))
        RESULTS.write_text(json.dumps(rows, indent=1) + "\n")
    print(table())


if __name__ == "__main__":
    main()
