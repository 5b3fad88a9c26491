"""A graph as an SVG picture: workers in columns along the flow of the data, streams between them, with what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from jsrl.graph.graph import Graph

COLUMN, ROW, WIDTH, HEIGHT, MARGIN = 250, 84, 150, 46, 24
COLORS = {"samples": "#3b6fb6", "inference": "#b0622f", "params": "#4f8a4b"}
_STYLE = "font-family: system-ui, sans-serif; font-size: 12px"


def draw(graph: Graph, notes: Mapping[str, str] | None = None) -> str:
    """Return an SVG picture of a graph; each family of workers is one box.

    Args:
      graph: what to draw. notes: text under a family (`actor`) or on a stream (`samples`), such as measured rates and waits.
    """
    notes = notes or {}
    places = _places(graph)
    columns = max((x for x, _ in places.values()), default=0) + 1
    rows = max((y for _, y in places.values()), default=0) + 1
    width, height = 2 * MARGIN + (columns - 1) * COLUMN + WIDTH, 2 * MARGIN + (rows - 1) * ROW + HEIGHT + 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" style="{_STYLE}" role="img">',
        "<title>workers and streams</title>",
        *(_marker(sort, color) for sort, color in COLORS.items()),
        *_edges(graph, places, notes),
        *(_box(graph, family, place, notes) for family, place in places.items()),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _places(graph: Graph) -> dict[str, tuple[int, int]]:
    """Return family -> (column, row)."""
    places: dict[str, tuple[int, int]] = {}
    for column, level in enumerate(graph.stop_order):
        for family in dict.fromkeys(worker.family for worker in level):
            if family not in places:
                places[family] = (column, sum(x == column for x, _ in places.values()))
    return places


def _corner(place: tuple[int, int]) -> tuple[int, int]:
    return MARGIN + place[0] * COLUMN, MARGIN + place[1] * ROW


def _marker(sort: str, color: str) -> str:
    return (
        f'<marker id="{sort}" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" '
        'orient="auto-start-reverse">'
        f'<path d="M0 0 8 4 0 8z" fill="{color}"/></marker>'
    )


def _box(graph: Graph, family: str, place: tuple[int, int], notes: Mapping[str, str]) -> str:
    x, y = _corner(place)
    count = len(graph.family(family))
    title = escape(family if count == 1 else f"{family} x {count}")
    note, middle = escape(notes.get(family, "")), x + WIDTH / 2
    return (
        f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="6" fill="#f4f4f2" stroke="#555"/>'
        f'<text x="{middle}" y="{y + (19 if note else 28)}" text-anchor="middle" font-weight="600" fill="#222">{title}</text>'
        f'<text x="{middle}" y="{y + 36}" text-anchor="middle" font-size="10" fill="#555">{note}</text>'
    )


def _edges(graph: Graph, places: dict[str, tuple[int, int]], notes: Mapping[str, str]) -> list[str]:
    """Return the streams: one line for each pair of families that a stream joins."""
    parts, drawn = [], dict[tuple[str, str], int]()
    for stream in graph.streams:
        pairs = dict.fromkeys(
            (source.family, sink.family)
            for source, _ in graph.sources(stream.name)
            for sink, _ in graph.sinks(stream.name)
        )
        for number, (source, sink) in enumerate(pairs):
            key = (min(source, sink), max(source, sink))
            drawn[key] = drawn.get(key, 0) + 1
            text = f"{stream.name} {notes.get(stream.name, '')}".strip() if number == 0 else ""
            parts.append(_line(_corner(places[source]), _corner(places[sink]), stream.sort, text, drawn[key] - 1))
    return parts


def _line(begin: tuple[int, int], end: tuple[int, int], sort: str, text: str, nth: int) -> str:
    """Return a curve from one box to another; the `nth` between the same two is bent away from the others."""
    forwards = end[0] > begin[0]
    shift = 14 * nth - 7
    x1 = begin[0] + (WIDTH if forwards else 0 if end[0] < begin[0] else WIDTH / 2)
    x2 = end[0] + (0 if forwards else WIDTH if end[0] < begin[0] else WIDTH / 2)
    y1, y2 = begin[1] + HEIGHT / 2 + shift, end[1] + HEIGHT / 2 + shift
    bend = max(40.0, abs(x2 - x1) / 2) * (1 if forwards else -1)
    color, both = COLORS[sort], f' marker-start="url(#{sort})"' if sort == "inference" else ""
    bow = 90 if abs(x2 - x1) > COLUMN and y1 == y2 else 0  # around the boxes between
    path = f"M{x1} {y1} C{x1 + bend} {y1 + bow} {x2 - bend} {y2 + bow} {x2} {y2}"
    label = (
        f'<text x="{(x1 + x2) / 2}" y="{(y1 + y2) / 2 - 5 + 22 * (nth % 2) + 0.75 * bow}" text-anchor="middle" font-size="10" '
        f'fill="{color}" stroke="#fff" stroke-width="3" paint-order="stroke">{escape(text)}</text>'
        if text
        else ""
    )
    return f'<path d="{path}" fill="none" stroke="{color}" stroke-width="1.6" marker-end="url(#{sort})"{both}/>{label}'
