"""Changes by mkdocs to a page: links to files outside the docs become paths, options are not split over two lines."""

from __future__ import annotations

import re
from posixpath import dirname, join, normpath

CODE = re.compile(r"(?<!<pre><span></span>)<code>([^<]*)</code>")  # within a line: not a block of code
WORD = re.compile(r"(?<=[ >])[^\s<>]*-[^\s<>]*(?=[ <])")  # browsers may break a line after any hyphen
LONGEST_WORD = 40  # longer ones may be split, so that they fit on a phone
LINK = re.compile(r"\[([^\]]*)\]\(((?:\.\./)+[^)\s]+)\)")


def on_page_markdown(markdown: str, *, page, config, files) -> str:
    """Return a page's text with links out of the docs folder written as paths (`jsrl/types.py`).

    A page without headings has no table of contents, so that its tables get the whole width.
    """
    if "\n## " not in markdown:
        page.meta["hide"] = ["toc"]
    folder = dirname(page.file.src_uri)

    def replace(found: re.Match[str]) -> str:
        text, path = found.group(1), normpath(join("docs", folder, found.group(2)))
        if path.startswith("docs/"):
            return found.group(0)
        return f"`{path}`" if text.strip("`") == path else f"{text} (`{path}`)"

    return LINK.sub(replace, markdown)


def on_page_content(html: str, *, page, config, files) -> str:
    """Return a page's HTML in which words with hyphens, such as `--num-actors`, are not split (pictures/site.css)."""

    def keep(found: re.Match[str]) -> str:
        word = found.group(0)
        return word if len(word) > LONGEST_WORD else f'<span class="whole">{word}</span>'

    return CODE.sub(lambda found: WORD.sub(keep, found.group(0)), html)
