"""`import jsrl` and `jsrl.extend`: the public API, its names and what importing it costs."""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import jsrl
import jsrl.extend

ROOT = Path(__file__).parents[1]
API = (ROOT / "docs" / "api.md").read_text()
BLOCK = re.compile(r"^```(python|diff)\n(.*?)^```", re.MULTILINE | re.DOTALL)
NAMED = (
    "jsrl.experiment.configs",
    "jsrl.experiment.graphs",
)  # by name, as on the command line: files to copy


@pytest.mark.parametrize("module", [jsrl, jsrl.extend])
def test_names_exist_and_are_those_of_the_api_page(module) -> None:
    documented = re.findall(rf"^::: {re.escape(module.__name__)}\.(\w+)$", API, re.MULTILINE)
    assert sorted(documented) == module.__all__ == sorted(dir(module))
    assert [name for name in module.__all__ if not getattr(module, name).__doc__] == []


def test_no_name_is_in_both() -> None:
    assert not set(jsrl.__all__) & set(jsrl.extend.__all__)


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'jsrl' has no attribute 'PPOConfg'"):
        _ = jsrl.PPOConfg


def test_configs_of_environments_load_no_jax() -> None:
    """An actor's environment may say `import jsrl`."""
    used = "jsrl.EnvConfig, jsrl.extend.Kind, jsrl.extend.EnvStep"
    code = f"import sys, jsrl; {used}; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def blocks(text: str) -> Iterator[str]:
    """Yield the Python code in Markdown, and the imports that diffs add."""
    for language, block in BLOCK.findall(text):
        added = [line[1:] for line in block.splitlines() if re.match(r"\+\s*(from|import) ", line)]
        yield block if language == "python" else "\n".join(added)


def examples() -> Iterator[tuple[str, str]]:
    """Yield (file, Python code) of everything that users read and copy, and of the tests' own workers."""
    project = ROOT / "jsrl" / "cli" / "project"
    for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *project.rglob("*.md")):
        yield from ((path.name, block) for block in blocks(path.read_text()))
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        cells = json.loads(path.read_text())["cells"]
        sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
        yield from ((path.name, re.sub(r"^%.*$", "", source, flags=re.MULTILINE)) for source in sources)
    folders = ("notebooks", "examples", "experiments/configs", "experiments/graphs")
    own = ROOT / "tests" / "system" / "world" / "my_workers.py"
    for path in (own, *project.rglob("*.py"), *(file for folder in folders for file in (ROOT / folder).glob("*.py"))):
        yield path.name, path.read_text()


def private_imports(code: str) -> set[str]:
    """Return the modules of jsrl that code imports, without the public ones."""
    found = set()
    for node in ast.walk(ast.parse(code)):
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            inside = node.module == "jsrl"
            modules = (
                [f"jsrl.{a.name}" for a in node.names if a.name not in jsrl.__all__] if inside else [node.module or ""]
            )
        found |= {one for one in modules if one.startswith("jsrl.") and one != "jsrl.extend"}
    return {one for one in found if not one.startswith(NAMED)}


def test_docs_notebooks_examples_and_the_template_import_only_public_names() -> None:
    assert private_imports("import jsrl.types\nfrom jsrl import runs, run\nfrom jsrl.extend import Agent") == {
        "jsrl.types",
        "jsrl.runs",
    }
    given = list(examples())
    assert {
        "README.md",
        "my_workers.py",
        "01_write_an_algorithm.ipynb",
        "algorithm.py",
        "crossq.py",
        "ppo_pong.py",
    } <= {name for name, _ in given}
    wrong = {f"{name}: {module}" for name, code in given for module in private_imports(code)}
    assert sorted(wrong) == []
