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
    shutil.copytree(ROOT / "docs", tmp_path / "broken" / "docs")
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
    api = (tmp_path / "site" / "api.html").read_text()
    assert "max_episode_steps" in api  # docstrings are rendered, not only titles
    assert re.search(r"<code>overwrite</code>\s*</td>", api)  # a name that shares a line of the docstring with others
