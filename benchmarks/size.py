"""How much there is to read, and how much of it a run needs: `python benchmarks/size.py 6eb8cb0b HEAD`.

  rooms    files and lines of each room of jsrl/: code, docstrings, imports; tokens per line of code, longest lines, imports
           inside functions
  imports  files and lines that the process of a plain serial run has imported when it exits, and those of an inline
           actor's process and an inline learner's
  rows     files with functions that run for one row of a served run: called by its workers at least once per update. Those
           of agents and networks that run while jax traces them are counted too
  option   files with a function that has a value of one option in its arguments, variables or result, in all processes of an
           inline run; directly, as text, or in an object or container that has it as an element. Without those that only show
           texts, such as the report and the command in environment.json, they are counted apart

Commits are checked out; `.` is this checkout as it is. Prints a table and writes benchmarks/results/size.json.
"""

from __future__ import annotations

import argparse
import ast
import collections
import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import time
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.paired import checked_out
from benchmarks.process_tree import end_tree

ROOT = Path(__file__).resolve().parents[1]
COUNTING = Path(__file__).with_name("counting")
RESULTS = Path(__file__).with_name("results") / "size.json"
PARTS = ("rooms", "imports", "rows", "option")
QUIETLY = ("--display", "quiet")
PLAIN = ("ppo_cartpole", "--placement", "serial", "--total-env-steps", "8192", "--stop-at-return", "none")
INLINE = ("ppo_cartpole", "--placement", "inline", "--total-env-steps", "8192", "--stop-at-return", "none")
# Many short updates, so that what happens by the clock (heartbeats, reports) is rarer than an update.
SERVED = ("ppo_cartpole", "--placement", "served", "--total-env-steps", "1000000000", "--stop-at-return", "none",
          "--rollout-length", "16", "--agent.num-epochs", "1", "--no-evaluator.enabled")  # fmt: skip
DQN = ("dqn", "--placement", "inline", "--total-env-steps", "4096", "--stop-at-return", "none")
OPTIONS = {  # values that nothing else has
    "--actor.step-deadline-s": ("61.251951", INLINE),
    "--agent.learning-rate": ("0.00031251", INLINE),
    "--replay.updates-per-env-step": ("0.0517251", DQN),
}
TEXTS = (
    "jsrl/tools/report/",
    "jsrl/control/result.py",
    "jsrl/services/runs/provenance.py",
    "jsrl/services/runs/runs.py",
    "jsrl/plain_files.py",
)  # show a whole experiment or a command, or read their files
WINDOW_S, LIMIT_S = 8.0, 300.0
NO_TOKENS = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


# -- what there is ----------------------------------------------------------------------------------------------------


def lines_of(node: ast.AST) -> range:
    """Return the numbers of a statement's lines."""
    return range(node.lineno, node.end_lineno + 1)  # type: ignore[attr-defined]


def docstrings(tree: ast.Module) -> set[int]:
    """Return the numbers of the lines of docstrings."""
    found: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                found.update(lines_of(first))
    return found


def file_figures(text: str) -> collections.Counter[str]:
    """Return the figures of one file of Python."""
    tree, lines = ast.parse(text), text.splitlines()
    inside = [
        node
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    documented = docstrings(tree)
    imported = {number for node in imports for number in lines_of(node)}
    blank = {number for number, line in enumerate(lines, 1) if not line.strip() or line.strip().startswith("#")}
    code = set(range(1, len(lines) + 1)) - blank - documented - imported
    tokens = [
        token
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in NO_TOKENS and token.start[0] in code
    ]
    return collections.Counter(
        files=1,
        lines=len(lines),
        code=len(code),
        docstrings=len(documented - blank),
        imports=len(imported),
        tokens=len(tokens),
        imports_in_functions=len({id(node) for node in inside}),
        long_lines=sum(len(line) > 110 for line in lines),
        longer_lines=sum(len(line) > 120 for line in lines),
        small_files=int(len(lines) < 60),
    )


def rooms(checkout: Path) -> dict[str, dict[str, float]]:
    """Return room -> figures, and those of all together."""
    found: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for path in sorted((checkout / "jsrl").rglob("*.py")):
        below = path.relative_to(checkout / "jsrl")
        figures = file_figures(path.read_text())
        for room in (below.parts[0] if len(below.parts) > 1 else "*.py", "all"):
            found[room].update(figures)
    return {
        room: {**figures, "tokens_per_line": round(figures["tokens"] / max(1, figures["code"]), 3)}
        for room, figures in found.items()
    }


# -- what a run needs -------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def counted(checkout: Path, what: str, options: tuple[str, ...], into: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a run of a checkout in which every process writes its counts to a folder; ends it at the end of the block."""
    words = [sys.executable, str(checkout / "experiments" / "run.py"), *options, *QUIETLY]
    variables = {"JSRL_COUNT": what, "JSRL_COUNT_INTO": str(into), "JSRL_COUNT_OF": str(checkout)}
    environment = {**os.environ, **variables, "PYTHONPATH": f"{COUNTING}:{checkout}", "JAX_PLATFORMS": "cpu"}
    process = subprocess.Popen(
        [*words, "--runs-dir", str(into / "runs"), "--run-name", "run"],
        env=environment, cwd=checkout, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        end_tree(process.pid)
        process.wait()


def complete(checkout: Path, what: str, options: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return what the processes of a whole run counted."""
    with tempfile.TemporaryDirectory() as folder, counted(checkout, what, options, Path(folder)) as process:
        _, error = process.communicate(timeout=LIMIT_S)
        if process.returncode:
            sys.exit(f"{' '.join(options)} of {checkout.name} ended with status {process.returncode}:\n{error}")
        return [json.loads(path.read_text()) for path in Path(folder).glob("*.json")]


def is_worker(found: dict[str, Any], kind: str) -> bool:
    """Return whether a process was a worker of a kind; actors are forked by their host."""
    words = found["words"]
    return "jsrl.workers" in words and kind in words and "--parent" in words


def line_count(paths: list[str]) -> dict[str, Any]:
    """Return number of files and of their lines."""
    return {"files": len(paths), "lines": sum(len(Path(path).read_text().splitlines()) for path in paths)}


def imports(checkout: Path) -> dict[str, Any]:
    """Return files and lines that processes import."""
    (serial,) = (one["imported"] for one in complete(checkout, "imports", PLAIN) if not is_worker(one, "evaluator"))
    inline = complete(checkout, "imports", INLINE)
    actor = max((one["imported"] for one in inline if is_worker(one, "actor-host") or is_worker(one, "actor")), key=len)
    (learner,) = (one["imported"] for one in inline if is_worker(one, "learner"))
    return {
        "plain serial run": line_count(serial),
        "inline actor": line_count(actor),
        "inline learner": line_count(learner),
        "names": {
            who: [str(Path(path).relative_to(checkout)) for path in paths]
            for who, paths in (("serial", serial), ("actor", actor), ("learner", learner))
        },
    }


def updates_so_far(folder: Path) -> int:
    """Return the updates of a run, from its newest complete line of metrics."""
    path = next(iter(folder.glob("runs/*/run/metrics.jsonl")), None)
    lines = path.read_text().splitlines(keepends=True) if path else []
    return max((int(json.loads(line).get("updates", 0)) for line in lines if line.endswith("\n")), default=0)


def rows(checkout: Path) -> dict[str, Any]:
    """Return the files whose functions run for one row of a served run."""
    with tempfile.TemporaryDirectory() as name, counted(checkout, "rows", SERVED, Path(name)) as process:
        folder, deadline = Path(name), time.monotonic() + LIMIT_S
        while updates_so_far(folder) < 50:  # compiled, and all of its parts have begun
            if process.poll() is not None or time.monotonic() > deadline:
                sys.exit(
                    f"the served run of {checkout.name} trains nothing: {process.stderr and process.stderr.read()}"
                )
            time.sleep(0.2)
        begin = updates_so_far(folder)
        (folder / "go").touch()
        time.sleep(WINDOW_S)
        (folder / "go").unlink()
        time.sleep(2.0)  # the metrics of the window
        updates = updates_so_far(folder) - begin
        process.terminate()
        process.wait(60)
        written = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    found = [one for one in written if "jsrl.workers" in one["words"]]
    number: collections.Counter[tuple[str, str]] = collections.Counter()
    for one in found:
        for path, function, times in one["calls"]:
            number[path, function] += times
    often = {key for key, times in number.items() if times >= updates}
    files = {path for path, _ in often}
    algorithm = {
        path for one in found for path in one["traced"] if "/jsrl/agents/" in path or "/jsrl/networks/" in path
    }
    return {
        "updates": updates,
        "functions": len(often),
        "run": line_count(sorted(files)),
        "run or traced": line_count(sorted(files | algorithm)),
        "names": sorted(str(Path(path).relative_to(checkout)) for path in files | algorithm),
    }


def option(checkout: Path) -> dict[str, Any]:
    """Return the files that each of three options passes through."""
    figures: dict[str, Any] = {"names": {}}
    for name, (value, words) in OPTIONS.items():
        found = complete(checkout, f"option={value}", (*words, name, value))
        paths = sorted({path for one in found for path in one["holders"]})
        figures["names"][name] = [str(Path(path).relative_to(checkout)) for path in paths]
        used = [path for path in paths if not str(Path(path).relative_to(checkout)).startswith(TEXTS)]
        figures |= {name: line_count(paths), f"{name}, without texts": line_count(used)}
    return figures


# -- the command ------------------------------------------------------------------------------------------------------


def table(found: dict[str, dict[str, Any]]) -> list[str]:
    """Return the lines of the table: a row per figure, a column per commit."""
    texts: list[tuple[str, list[str]]] = []
    for part, keys in (
        ("imports", ("plain serial run", "inline actor", "inline learner")),
        ("rows", ("run", "run or traced")),
        ("option", tuple(key for name in OPTIONS for key in (name, f"{name}, without texts"))),
    ):
        for key in keys:
            each = [one[part][key] for one in found.values() if part in one]
            if each:
                texts.append((f"{part}: {key}", [f"{o['files']} files {o['lines']:,} lines" for o in each]))
    every = [one["rooms"] for one in found.values() if "rooms" in one]
    for room in sorted({room for one in every for room in one}):
        cells = [one.get(room, collections.Counter()) for one in every]
        texts.append((room, [f"{c['files']} files {c['lines']:,} ({c['code']:,} code {c['docstrings']:,} doc "
                             f"{c['imports']:,} imp)" for c in cells]))  # fmt: skip
    for figure in ("tokens_per_line", "long_lines", "longer_lines", "small_files", "imports_in_functions"):
        texts += [(f"all: {figure}", [str(one["all"][figure]) for one in every])] if every else []
    return [f"{name:<60}" + "".join(f"{cell:<58}" for cell in cells).rstrip() for name, cells in texts]


def main() -> int:
    """Count, print, write the file."""
    line = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    line.add_argument("commits", nargs="*", default=["6eb8cb0b", "HEAD"])
    line.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART", help=", ".join(PARTS))
    line.add_argument("--json", type=Path, default=RESULTS, metavar="FILE", help="(default: %(default)s)")
    line.add_argument("--names", action="store_true", help="print the names of the files as well")
    given = line.parse_args()
    counts = {"rooms": rooms, "imports": imports, "rows": rows, "option": option}
    found: dict[str, dict[str, Any]] = {}
    for commit in given.commits:
        with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
            checkout = ROOT if commit == "." else stack.enter_context(checked_out(commit, Path(name, "checkout")))
            found[commit] = {part: counts[part](checkout.resolve()) for part in given.only}
    print(" " * 60 + "".join(f"{commit:<58}" for commit in given.commits).rstrip(), *table(found), sep="\n")
    if given.names:
        for commit, parts in found.items():
            for part in set(parts) & {"rows", "option", "imports"}:
                print(f"\n{commit} {part}:", json.dumps(parts[part]["names"], indent=1))
    given.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
