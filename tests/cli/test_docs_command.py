"""`jsrl docs`: the site is built from the docs, and its pages fetch nothing from the internet."""

import re
import shutil
import subprocess
import sys
import threading
import tomllib
import urllib.request
from pathlib import Path

import pytest

from jsrl.cli import docs
from jsrl.cli.site import hooks
from jsrl.errors import ConfigError


def test_a_missing_extra_is_named_with_its_command(monkeypatch, tmp_path: Path, capsys) -> None:
    monkeypatch.setattr(docs, "NEEDED", ("mkdocs_that_is_not_installed",))
    assert docs.main(["--build", str(tmp_path)]) == 2
    message = capsys.readouterr().err
    assert "MissingExtra" in message
    assert "pip install" in message and "[docs]" in message


def test_invalid_port_is_refused_before_the_build(capsys) -> None:
    with pytest.raises(SystemExit):
        docs.main(["--port", "-3"])
    assert "expected 0 to 65535" in capsys.readouterr().err


def test_folder_with_other_files_is_not_changed(monkeypatch, tmp_path: Path, capsys) -> None:
    monkeypatch.setattr(docs, "NEEDED", ())
    (tmp_path / "thesis.tex").write_text("mine")
    assert docs.main(["--build", str(tmp_path)]) == 2
    assert "empty folder" in capsys.readouterr().err
    assert (tmp_path / "thesis.tex").read_text() == "mine"
    assert docs.main(["--build", str(tmp_path / "thesis.tex")]) == 2
    assert "thesis.tex is a file; choose a folder" in capsys.readouterr().err
    assert docs.main(["--build", str(tmp_path / "thesis.tex" / "site")]) == 2
    told = capsys.readouterr().err
    assert "site cannot be written (Not a directory); choose another folder" in told and told.count("\n") == 1


def test_pages_are_served_on_loopback_only(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("first page")
    source = f"from pathlib import Path; from jsrl.cli.docs import serve; serve(Path({str(tmp_path)!r}), 0)"
    server = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True)
    late = threading.Timer(60, server.kill)
    late.start()
    try:
        address = re.search(r"http://127\.0\.0\.1:\d+/", server.stdout.readline()).group(0)
        with urllib.request.urlopen(address, timeout=30) as answer:
            assert answer.read() == b"first page"
    finally:
        late.cancel()
        server.kill()
        server.communicate()


def test_a_wheel_has_every_file_of_the_pages() -> None:
    """A page or picture that is missing ends the strict build of an installed jsrl."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    packed = project["tool"]["setuptools"]["package-data"]["jsrl.cli.site"]
    found = {path for pattern in packed for path in docs.FOLDER.glob(pattern)}
    files = {path for path in (docs.FOLDER / "pages").resolve().rglob("*") if path.is_file()}
    assert files and files <= {path.resolve() for path in found}


def test_options_are_not_split_over_two_lines() -> None:
    def changed(html: str) -> str:
        return hooks.on_page_content(html, page=None, config=None, files=None)

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
    text, pictures = hooks.page_of("01", {"cells": cells})
    assert text == (
        "# Runs\n[metrics](../metrics.md), [graphs](../../experiments/graphs), [next](02.ipynb)\n\n"
        "```python\nprint(1)\n```\n\n```text\n1\n```\n\n```python\nplot()\n```\n\n![output](01-2.png)\n\n"
        "```python\ndraw()\n```\n\n![output](01-3.svg)\n"
    )
    assert pictures == {"01-2.png": b"hi", "01-3.svg": b"<svg></svg>"}


def test_each_name_of_a_docstring_has_an_entry() -> None:
    entries = pytest.importorskip("jsrl.cli.site.entries", reason="needs the extra docs")
    docstring = (
        "Run.\n\nArgs:\n  a, b: two: x. c: of a\n    note: long (text). d: last.\nplain\n\n"
        "Raises:\n  BadError: no. WorseError: no!"
    )
    split = entries.split_entries(docstring, {"a", "b", "c", "d"})
    assert split == (
        "Run.\n\nArgs:\n    a: two: x.\n    b: two: x.\n    c: of a note: long (text).\n    d: last.\nplain\n\n"
        "Raises:\n    BadError: no.\n    WorseError: no!\n"
    )
    assert entries.split_entries("Args:\n  text without a name\n", set()) == "Args:\n  text without a name\n"


@pytest.mark.slow
def test_site_is_complete_and_loads_nothing_external(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The build is strict: mkdocs fails on a dead link between pages, or on a page missing from the menu."""
    docs.build(tmp_path / "site")
    shutil.copytree(docs.FOLDER, tmp_path / "broken")
    (tmp_path / "broken" / "pages" / "index.md").write_text("# Start\n\n[nowhere](nowhere.md)\n")
    with monkeypatch.context() as changed, pytest.raises(ConfigError, match=r"nowhere\.md"):
        changed.setattr(docs, "FOLDER", tmp_path / "broken")
        docs.build(tmp_path / "other")
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > len(list((docs.FOLDER / "pages").glob("*.md"))) - 1
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
