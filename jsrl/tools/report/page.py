"""The parts of every page, as self-contained HTML: no network. All text is escaped, except Html."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from html import escape

from jsrl.control.result import is_intended
from jsrl.tools.report.style import STYLE

RUNS = "running"  # instead of the reason for the end
UNREADABLE = "cannot be read"


class Html(str):
    """Text that is HTML already."""


@dataclass(frozen=True)
class Table:
    """A table for a page or a terminal.

    Attributes:
      rows: the first cell of each is its name. kind: CSS classes. words: columns of words, which are never aligned as numbers.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    kind: str = ""
    words: Collection[int] = ()

    def html(self) -> str:
        titles = "".join(f"<th{self._class(column)}>{_html(title)}</th>" for column, title in enumerate(self.head))
        head = f"<thead><tr>{titles}</tr></thead>" if self.head else ""
        lines = "".join(f"<tr>{self._cells(row)}</tr>" for row in self.rows)
        return f'<div class="scroll"><table class="{self.kind}">{head}<tbody>{lines}</tbody></table></div>'

    def _cells(self, row: Sequence[str]) -> str:
        cells = (f"<td{self._class(column)}>{_html(cell)}</td>" for column, cell in enumerate(row[1:], 1))
        return f"<th>{_html(row[0])}</th>{''.join(cells)}"

    def _class(self, column: int) -> str:
        return ' class="text"' if column in self.words else ""

    def text(self, most: int | None = None) -> str:
        """Return it as lines of text; `most`: rows that are shown."""
        table = (self.head, *self.rows)
        widths = [max(len(row[column]) for row in table) for column in range(len(self.head))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in table]
        lines.insert(1, "  ".join("-" * width for width in widths))
        shown = len(lines) if most is None else most + 2
        more = [f"(and {len(lines) - shown} more)"] if len(lines) > shown else []
        return "\n".join(line.rstrip() for line in [*lines[:shown], *more])


def _html(text: str) -> str:
    return text if isinstance(text, Html) else escape(text)


def shell(title: str, content: str, script: str = "") -> str:
    """Return a page with the style sheet: its title as text, its content and script as HTML."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n<body><main>\n{content}\n</main>{script}</body></html>\n"
    )


def header(title: str, *, badge: str = "", rest: str = "") -> str:
    """Return the top of a page: its title, how a run ended, and HTML below."""
    return f"<header><h1>{escape(title)} {badge}</h1>{rest}</header>"


def section(title: str, content: str, kind: str = "") -> str:
    """Return a part of a page under a heading, as HTML; an empty string without content."""
    if not content:
        return ""
    inner = f'<div class="{kind}">{content}</div>' if kind else content
    return f"<section><h2>{escape(title)}</h2>{inner}</section>"


def badge(ended: str, hint: str = "") -> Html:
    """Return how a run ended, in its colour."""
    if is_intended(ended):
        mood = "good"
    elif ended == RUNS:
        mood = "live"
    else:
        mood = "bad" if ended in ("failed", UNREADABLE) or ended.startswith("killed") else "neutral"
    tooltip = f' title="{escape(hint, quote=True)}"' if hint else ""
    return Html(f'<span class="badge {mood}"{tooltip}>{escape(ended)}</span>')


def folded(summary: str, content: str) -> str:
    """Return HTML that is shown when its summary is clicked."""
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"
