"""The parts of every page, as self-contained HTML: no network. All text is escaped, except Html."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from html import escape

from jsrl.control.result import is_intended

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


# light and dark, by the reader's setting
STYLE = """
:root{--ink:#1c2430;--soft:#5d6b7c;--paper:#f6f7f9;--card:#fff;--line:#dfe4ea;--good:#1a7f4b;--bad:#b3261e;
--c0:#2563b0;--c1:#d9822b;--c2:#2a9d6f;--c3:#b0426a;--c4:#7a5bc0;--c5:#6b7785;--c6:#0f9bb8;--c7:#8a5a2b;
--simulate:#2a9d6f;--infer:#2563b0;--train:#7a5bc0;--transport:#d9822b;--publish:#b0426a;--wait:#c9d1db;--other:#8593a3}
@media(prefers-color-scheme:dark){:root{--ink:#e4e9f0;--soft:#9aa7b7;--paper:#12161c;--card:#1b2129;--line:#303945;
--good:#57c98d;--bad:#f2857c;--c0:#6ea8f0;--c1:#f0a65a;--c2:#5ac99a;--c3:#e884a8;--c4:#ad94ea;--c5:#93a0af;--c6:#4cc4de;--c7:#c79a6b;
--simulate:#3fae81;--infer:#5590dc;--train:#977be0;--transport:#e09a4e;--publish:#cf6a92;--wait:#3b4654;--other:#6d7b8b}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
main{max-width:1200px;margin:0 auto;padding:28px 20px 60px}
h1{font-size:26px;margin:0 0 6px;overflow-wrap:anywhere}
h2{font-size:17px;margin:0 0 12px}
header p{margin:2px 0;color:var(--soft);overflow-wrap:anywhere}
section{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:18px 20px;margin-top:18px}
.cards{background:none;border:0;padding:0;display:grid;gap:12px;grid-template-columns:repeat(auto-fit,minmax(160px,1fr))}
.card{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:12px 16px}
.card b{display:block;font-size:22px;font-variant-numeric:tabular-nums}
.card span,figcaption,.legend,summary,.tick{color:var(--soft);font-size:13px}
.verdict{border-left:5px solid var(--c1)}
.verdict p{margin:0 0 6px;font-size:16px}
.badge{font-size:13px;font-weight:600;border:1px solid;border-radius:20px;padding:2px 10px}
.badge{vertical-align:middle;color:var(--soft)}
.badge.live{color:var(--c0)}.gone{display:none;color:var(--bad)}.away .gone{display:block}
.badge.good{color:var(--good)}.badge.bad{color:var(--bad)}
.grid2{display:grid;gap:18px;grid-template-columns:repeat(auto-fit,minmax(min(420px,100%),1fr))}
.grid3{display:grid;gap:16px 18px;grid-template-columns:repeat(auto-fill,minmax(min(300px,100%),1fr))}
h3{font-size:14px;margin:18px 0 8px}
figure{margin:0;min-width:0}svg,video{width:100%;height:auto;display:block}
figcaption{font-weight:600;display:flex;flex-wrap:wrap;gap:4px 14px;justify-content:space-between}
.legend{font-weight:400;margin:0 0 8px}
.key{display:inline-block;margin-right:12px}.key:last-child{margin-right:0}
.key i{display:inline-block;width:11px;height:11px;border-radius:2px;margin-right:5px}
.grid{stroke:var(--line)}.axis{stroke:var(--soft)}
.tick{fill:var(--soft);font-size:11px;font-family:inherit}
polyline{fill:none;stroke-width:1.8;stroke-linejoin:round}
.line0{color:var(--c0)}.line1{color:var(--c1)}.line2{color:var(--c2)}.line3{color:var(--c3)}
.line4{color:var(--c4)}.line5{color:var(--c5)}.line6{color:var(--c6)}.line7{color:var(--c7)}
polyline,circle{stroke:currentColor}polyline.dash1{stroke-dasharray:7 4}polyline.dash2{stroke-dasharray:2 3}
polyline.faint{stroke-width:1;opacity:.5}
circle{fill:var(--card);stroke-width:1.6}
i[class^=line]{background:currentColor}
i.dash1{background:repeating-linear-gradient(90deg,currentColor 0 4px,transparent 4px 6px)}
i.dash2{background:repeating-linear-gradient(90deg,currentColor 0 2px,transparent 2px 4px)}
polygon.band{fill:currentColor;opacity:.18}
.simulate{background:var(--simulate)}.infer{background:var(--infer)}.train{background:var(--train)}
.transport{background:var(--transport)}.publish{background:var(--publish)}.wait{background:var(--wait)}.other{background:var(--other)}
table{border-collapse:collapse;width:100%;font-size:14px}
table.narrow{width:auto;min-width:260px}
th,td{padding:6px 12px 6px 0;text-align:left;border-bottom:1px solid var(--line);font-weight:400;vertical-align:middle}
thead th{color:var(--soft);font-size:13px}
.numbers td,.numbers thead th:not(:first-child){text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.numbers td.text,.numbers thead th.text{text-align:left!important;white-space:normal}
th a{white-space:nowrap}
.bar{display:flex;min-width:180px;width:30vw;max-width:400px;height:18px;border-radius:4px;overflow:hidden;background:var(--line)}
.bar i{display:block;height:100%}
.scroll{overflow-x:auto}.scroll svg{max-width:none!important}
@media(max-width:560px){.grid2 .tick{font-size:15px}}
details{margin-top:12px}summary{cursor:pointer}
dl{display:grid;grid-template-columns:max-content 1fr;gap:6px 18px;margin:0}dt{color:var(--soft)}
dd{margin:0;overflow-wrap:anywhere}
pre{margin:6px 0;white-space:pre-wrap;overflow-wrap:anywhere;font-size:13px}
.warning{border-left:3px solid var(--c1);padding-left:10px}
.error{border-left:3px solid var(--bad);padding-left:10px;margin:8px 0}
ul.files{display:flex;flex-wrap:wrap;gap:4px 22px;margin:0;padding:0;list-style:none}
a{color:var(--c0)}
"""
