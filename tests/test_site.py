"""The site is built from the docs by `mkdocs build`, and its pages fetch nothing from the internet."""

import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def build(root: Path, folder: Path) -> str:
    """Build the site of a checkout; return what mkdocs says, empty: it succeeded."""
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(root / "mkdocs.yml"), "-d", str(folder)]
    variables = os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)}  # the API page reads this jsrl
    ended = subprocess.run(words, cwd=root, env=variables, capture_output=True, text=True, check=False)
    return ended.stderr if ended.returncode else ""


def test_options_are_not_split_over_two_lines() -> None:
    hook = runpy.run_path(str(ROOT / "docs" / "site" / "hooks.py"))["on_page_content"]

    def changed(html: str) -> str:
        return hook(html, page=None, config=None, files=None)

    whole = '<span class="whole">--num-actors</span>'
    assert changed("<td><code>jsrl run --num-actors 16</code></td>") == f"<td><code>jsrl run {whole} 16</code></td>"
    assert changed("<code>--num-actors</code>-b") == f"<code>{whole}</code>-b"
    for same in ("<pre><span></span><code>--num-actors</code></pre>", f"<code>--{'x' * 40}</code>", "a-b"):
        assert changed(same) == same


def test_a_notebook_is_a_page_with_its_outputs() -> None:
    def code(source: str, **output) -> dict:
        return {"cell_type": "code", "source": [source], "outputs": [output]}

    links = "# Runs\n[metrics](../docs/metrics.md), [graphs](../experiments/graphs), [next](02.ipynb)"
    cells = [
        {"cell_type": "markdown", "source": links.splitlines(keepends=True)},
        code("print(1)", text=["1\n"]),
        code("plot()", data={"image/png": "aGk=\n", "text/plain": "<Figure>"}),
        code("draw()", data={"image/svg+xml": ["<svg>", "</svg>"]}),
    ]
    page_of = runpy.run_path(str(ROOT / "docs" / "site" / "hooks.py"))["page_of"]
    text, pictures = page_of("01", {"cells": cells})
    assert text == (
        "# Runs\n[metrics](../metrics.md), [graphs](../../experiments/graphs), [next](02.ipynb)\n\n"
        "```python\nprint(1)\n```\n\n```text\n1\n```\n\n```python\nplot()\n```\n\n![output](01-2.png)\n\n"
        "```python\ndraw()\n```\n\n![output](01-3.svg)\n"
    )
    assert pictures == {"01-2.png": b"hi", "01-3.svg": b"<svg></svg>"}


def test_each_name_of_a_docstring_has_an_entry() -> None:
    pytest.importorskip("griffe", reason="needs the extra docs")
    split_entries = runpy.run_path(str(ROOT / "docs" / "site" / "entries.py"))["split_entries"]
    docstring = (
        "Run.\n\nArgs:\n  a, b: two: x. c: of a\n    note: long (text). d: last.\nplain\n\n"
        "Raises:\n  BadError: no. WorseError: no!"
    )
    split = split_entries(docstring, {"a", "b", "c", "d"})
    assert split == (
        "Run.\n\nArgs:\n    a: two: x.\n    b: two: x.\n    c: of a note: long (text).\n    d: last.\nplain\n\n"
        "Raises:\n    BadError: no.\n    WorseError: no!\n"
    )
    assert split_entries("Args:\n  text without a name\n", set()) == "Args:\n  text without a name\n"


@pytest.mark.slow
def test_site_is_complete_and_loads_nothing_external(tmp_path: Path) -> None:
    """The build is strict: mkdocs fails on a dead link between pages, or on a page missing from the menu."""
    assert not build(ROOT, tmp_path / "site")
    for folder in ("docs", "notebooks"):
        shutil.copytree(ROOT / folder, tmp_path / "broken" / folder)
    shutil.copy(ROOT / "mkdocs.yml", tmp_path / "broken")
    (tmp_path / "broken" / "docs" / "index.md").write_text("# Start\n\n[nowhere](nowhere.md)\n")
    assert "nowhere.md" in build(tmp_path / "broken", tmp_path / "other")
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > len(list((ROOT / "docs").glob("*.md"))) - 1
    for page in pages:
        text = page.read_text()
        fetched = re.findall(r"<(?:script|img|iframe)\b[^>]*\bsrc=\"?([^\s\">]+)", text)
        fetched += re.findall(r"<link\b[^>]*\brel=\"?(?:stylesheet|icon|preconnect|preload)\"?[^>]*", text)
        assert fetched
        assert not [one for one in fetched if "//" in one], page
        assert 'class="mermaid"' not in text  # for which the theme would load a script
    for page, link in (
        ("policies.html", "notebooks/05_two_policies.html"),
        ("notebooks/03_analyse_runs.html", "../metrics.html"),
    ):
        assert re.search(rf'<a href="?{link}"?>', (tmp_path / "site" / page).read_text()), page
    api = (tmp_path / "site" / "api.html").read_text()
    assert "max_episode_steps" in api  # docstrings are rendered, not only titles
    assert re.search(r"<code>overwrite</code>\s*</td>", api)  # a name that shares a line of the docstring with others
