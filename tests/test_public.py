"""`import jsrl` and `jsrl.extend`: the public API, its names and what importing it costs."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import jsrl
import jsrl.extend

API = (Path(__file__).parents[1] / "docs" / "api.md").read_text()


@pytest.mark.parametrize("module", [jsrl, jsrl.extend])
def test_names_exist_and_are_those_of_the_api_page(module) -> None:
    documented = re.findall(rf"^::: {re.escape(module.__name__)}\.(\w+)$", API, re.MULTILINE)
    assert sorted(documented) == module.__all__ == sorted(dir(module))
    assert [name for name in module.__all__ if getattr(module, name) is None] == []


def test_no_name_is_in_both() -> None:
    assert not set(jsrl.__all__) & set(jsrl.extend.__all__)


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'jsrl' has no attribute 'PPOConfg'"):
        _ = jsrl.PPOConfg


def imported(code: str) -> dict[str, set[str]]:
    """Return module of jsrl -> names that some code imports of it."""
    found: dict[str, set[str]] = {}
    for statement in ast.walk(ast.parse(code)):
        if isinstance(statement, ast.ImportFrom) and str(statement.module).partition(".")[0] == "jsrl":
            found.setdefault(str(statement.module), set()).update(alias.name for alias in statement.names)
        elif isinstance(statement, ast.Import):
            found |= {alias.name: set() for alias in statement.names if alias.name.partition(".")[0] == "jsrl"}
    return found


def test_own_workers_import_only_public_names() -> None:
    """Those of the tests, of docs/dataflow.md and of the notebook, and the graphs that come with jsrl."""
    root = Path(__file__).parents[1]
    codes = {str(path): path.read_text() for path in (root / "experiments" / "graphs").glob("*.py")}
    codes["my_workers"] = (root / "tests" / "system" / "world" / "my_workers.py").read_text()
    page = (root / "docs" / "dataflow.md").read_text()
    codes["docs"] = "\n".join(re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL))
    notebook = json.loads((root / "notebooks" / "04_build_a_dataflow.ipynb").read_text())
    (codes["notebook"],) = (
        text for cell in notebook["cells"] if "%%writefile" in (text := "".join(cell["source"])).partition("\n")[0]
    )
    codes["notebook"] = codes["notebook"].partition("\n")[2]
    public = {"jsrl": set(jsrl.__all__), "jsrl.extend": set(jsrl.extend.__all__)}
    for where, code in codes.items():
        for module, names in imported(code).items():
            if not module.startswith("jsrl.graphs."):
                assert names <= public.get(module, set()), f"{where} imports {sorted(names)} of {module}"


def test_configs_of_environments_load_no_jax() -> None:
    """An actor's environment may say `import jsrl`."""
    used = "jsrl.EnvConfig, jsrl.extend.Kind, jsrl.extend.EnvStep"
    code = f"import sys, jsrl, jsrl.extend; {used}; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
