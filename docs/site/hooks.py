"""Changes by mkdocs: the notebooks are pages, links to other files outside the docs become paths, options are not split."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from posixpath import dirname, join, normpath, relpath

CODE = re.compile(r"(?<!<pre><span></span>)<code>([^<]*)</code>")  # within a line: not a block of code
WORD = re.compile(r"(?<=[ >])[^\s<>]*-[^\s<>]*(?=[ <])")  # browsers may break a line after any hyphen
LONGEST_WORD = 40  # longer ones may be split, so that they fit on a phone
NOTEBOOKS = "notebooks"  # their folder in the checkout, and that of their pages
LINK = re.compile(r"\[([^\]]*)\]\(((?:\.\./)+[^)\s]+)\)")


def notebooks(config) -> list[Path]:
    """Return the notebooks beside the docs."""
    return sorted((Path(config["docs_dir"]).resolve().parent / NOTEBOOKS).glob("*.ipynb"))


def on_config(config):
    """Add the notebooks to the menu."""
    if pages := [f"{NOTEBOOKS}/{path.stem}.md" for path in notebooks(config)]:
        config["nav"].insert(2, {"Notebooks": pages})
    return config


def on_files(files, *, config):
    """Add a page for each notebook, with the pictures of its outputs."""
    from mkdocs.structure.files import File

    for path in notebooks(config):
        text, pictures = page_of(path.stem, json.loads(path.read_text()))
        files.append(File.generated(config, f"{NOTEBOOKS}/{path.stem}.md", content=text))
        for name, content in pictures.items():
            files.append(File.generated(config, f"{NOTEBOOKS}/{name}", content=content))
    return files


def page_of(name: str, notebook) -> tuple[str, dict[str, bytes]]:
    """Return a notebook with its stored outputs as Markdown, and its pictures: file name -> content."""
    parts, pictures = [], dict[str, bytes]()
    for number, cell in enumerate(notebook["cells"]):
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source.replace("](../", "](../../").replace("](../../docs/", "](../"))
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            shown = {kind: "".join(content) for kind, content in output.get("data", {}).items()}
            if "image/png" in shown:
                pictures[f"{name}-{number}.png"] = base64.b64decode(shown["image/png"])
                parts.append(f"![output]({name}-{number}.png)")
            elif "image/svg+xml" in shown:
                pictures[f"{name}-{number}.svg"] = shown["image/svg+xml"].encode()
                parts.append(f"![output]({name}-{number}.svg)")
            else:
                text = "".join(output.get("text", shown.get("text/plain", "")))
                parts.append(f"```text\n{text.strip()}\n```")
    return "\n\n".join(parts) + "\n", pictures


def on_page_markdown(markdown: str, *, page, config, files) -> str:
    """Return a page's text with links to notebooks' pages, and other links out of the docs written as paths (`jsrl/types.py`).

    Pages without headings and pages of wide tables have no table of contents, so that their tables get the whole width.
    """
    if "\n## " not in markdown or "\n<!-- table " in markdown:
        page.meta["hide"] = ["toc"]
    folder = dirname(page.file.src_uri)

    def replace(found: re.Match[str]) -> str:
        text, path = found.group(1), normpath(join("docs", folder, found.group(2)))
        if path.startswith("docs/"):
            return found.group(0)
        notebook = path.removesuffix(".ipynb") + ".md"
        if files.get_file_from_path(notebook):
            return f"[{text}]({relpath(notebook, folder or '.')})"
        return f"`{path}`" if text.strip("`") == path else f"{text} (`{path}`)"

    return LINK.sub(replace, markdown)


def on_page_content(html: str, *, page, config, files) -> str:
    """Return a page's HTML in which words with hyphens, such as `--num-actors`, are not split (pictures/site.css)."""

    def keep(found: re.Match[str]) -> str:
        word = found.group(0)
        return word if len(word) > LONGEST_WORD else f'<span class="whole">{word}</span>'

    return CODE.sub(lambda found: WORD.sub(keep, found.group(0)), html)
