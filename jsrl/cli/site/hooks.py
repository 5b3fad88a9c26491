"""Changes by mkdocs to a page: links to files outside the docs become the files' paths, which work without a network."""

from __future__ import annotations

import re
from posixpath import dirname, join, normpath

LINK = re.compile(r"\[([^\]]*)\]\(((?:\.\./)+[^)\s]+)\)")


def on_page_markdown(markdown: str, *, page, config, files) -> str:
    """Return a page's text with links out of the docs folder written as paths (`jsrl/types.py`)."""
    folder = dirname(page.file.src_uri)

    def replace(found: re.Match[str]) -> str:
        text, path = found.group(1), normpath(join("docs", folder, found.group(2)))
        if path.startswith("docs/"):
            return found.group(0)
        return f"`{path}`" if text.strip("`") == path else f"{text} (`{path}`)"

    return LINK.sub(replace, markdown)
