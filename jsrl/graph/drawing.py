"""A graph as an SVG picture: workers in columns along the data flow, streams between them, with measurements."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from typing import NamedTuple

from jsrl.graph.graph import Graph, WorkerNode

COLUMN, ROW, WIDTH, HEIGHT, MARGIN = 300, 124, 160, 80, 24
LANE = 26  # distance of streams that run above or below the workers
COLORS = {"samples": "#3b6fb6", "inference": "#b0622f", "params": "#4f8a4b", "ranks": "#7a5ba6"}
SMALL_PX, LETTER_PX = 11, 6.2  # font of labels, and the width of its letters
_STYLE = "font-family: system-ui, sans-serif; font-size: 13px"
_INK, _SOFT = 'style="fill:var(--ink,#1c2430)"', 'style="fill:var(--soft,#5d6b7c)"'
Point = tuple[float, float]


class Note(NamedTuple):
    """Measurements of a family of workers: two lines, the share of time spent working (0-1), whether others work less."""

    lines: tuple[str, str]
    busy: float
    busiest: bool = False


class Box(NamedTuple):
    """Workers of a family with the same streams: their name, and the position of the box."""

    workers: tuple[WorkerNode, ...]
    title: str
    column: int
    row: int

    @property
    def corner(self) -> tuple[float, float]:
        return MARGIN + self.column * COLUMN, MARGIN + self.row * ROW


class Edge(NamedTuple):
    """A stream between two boxes: its name, its type, the reading family, the points of a cubic curve."""

    stream: str
    type: str
    reader: str
    points: tuple[Point, Point, Point, Point]

    def at(self, t: float) -> Point:
        weights = ((1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3)
        x, y = (sum(w * p[axis] for w, p in zip(weights, self.points, strict=True)) for axis in (0, 1))
        return x, y


def draw(
    graph: Graph,
    measured: Mapping[str, Note] | None = None,
    rates: Mapping[tuple[str, str], str] | None = None,
    note: str = "",
) -> str:
    """Return an SVG picture of a graph; workers of a family that use the same streams are one box.

    Args:
      graph: to draw. measured: by family (`actor`). rates: by (stream, reading family). note: a line below.
    """
    measured, rates = measured or {}, rates or {}
    boxes = _boxes(graph)
    edges = _edges(graph, boxes)
    width = max((box.corner[0] for box in boxes), default=0) + WIDTH + MARGIN
    middles = [edge.at(0.5)[1] for edge in edges]
    top = min([0.0, *(y - MARGIN for y in middles)])
    bottom = max([box.corner[1] + HEIGHT for box in boxes] + middles, default=0.0) + MARGIN + (20 if note else 0)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 {top:g} {width:g} {bottom - top:g}" width="{width:g}" role="img" '
        f'style="{_STYLE}; width: {width:g}px; max-width: 100%">',
        "<title>workers and streams</title>",
        *(_marker(stream_type, color) for stream_type, color in COLORS.items()),
        *(_line(edge) for edge in edges),
        *(_box(box, measured.get(box.workers[0].family)) for box in boxes),
        *_labels(boxes, edges, rates),
        f'<text x="{MARGIN}" y="{bottom - 12:g}" font-size="{SMALL_PX}" fill="#5d6b7c" {_SOFT}>{escape(note)}</text>',
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _boxes(graph: Graph) -> list[Box]:
    """Return the boxes: a column for each step along the flow of the data, a row for each box of a column."""
    boxes: list[Box] = []
    for column, level in enumerate(graph.stop_order):
        alike: dict[tuple[object, ...], list[WorkerNode]] = {}
        for worker in level:
            ends = sorted((link.port, link.stream) for link in worker.links)
            alike.setdefault((worker.family, *ends), []).append(worker)
        for row, workers in enumerate(alike.values()):
            first = workers[0]
            alone = first.family if len(graph.family(first.family)) == 1 else first.name
            title = alone if len(workers) == 1 else f"{first.family} x {len(workers)}"
            boxes.append(Box(tuple(workers), title, column, row))
    return boxes


def _pairs(graph: Graph, boxes: list[Box]) -> list[tuple[str, str, int, int]]:
    """Return (stream, its type, number of the box at its start, at its end) for every line."""
    home = {worker.name: number for number, box in enumerate(boxes) for worker in box.workers}
    found = dict.fromkeys(
        (stream.name, stream.type, home[source.name], home[sink.name])
        for stream in graph.streams
        for source, _ in graph.sources(stream.name)
        for sink, _ in graph.sinks(stream.name)
    )
    return list(found)


def _sides(source: Box, sink: Box) -> tuple[str, str]:
    """Return the sides at which a line leaves one box and enters another: right, left, top or bottom."""
    apart = sink.column - source.column
    if abs(apart) > 1:
        return ("top", "top") if source.row == sink.row == 0 else ("bottom", "bottom")  # around the boxes between
    if apart == 0:
        return ("bottom", "top") if sink.row > source.row else ("top", "bottom")
    return ("right", "left") if apart > 0 else ("left", "right")


def _edges(graph: Graph, boxes: list[Box]) -> list[Edge]:
    """Return the lines; those at one side of a box are spread over it, in the order of their destinations."""
    pairs = _pairs(graph, boxes)
    ends: dict[tuple[int, str], list[tuple[float, float, int]]] = {}
    for number, (_, _, source, sink) in enumerate(pairs):
        for end, other, side in zip((source, sink), (sink, source), _sides(boxes[source], boxes[sink]), strict=True):
            row, column = boxes[other].row, boxes[other].column
            along = (row, column) if side in ("left", "right") else (column, row)
            ends.setdefault((end, side), []).append((*along, number))
    lowest = max((box.corner[1] + HEIGHT for box in boxes), default=0.0)
    edges, lanes = [], {"top": 0, "bottom": 0}
    for number, (stream, stream_type, source, sink) in enumerate(pairs):
        out, into = _sides(boxes[source], boxes[sink])
        points = []
        for end, side in ((source, out), (sink, into)):
            here = [n for *_, n in sorted(ends[end, side])]
            points.append(_slot(boxes[end], side, here.index(number), len(here)))
        lane_y = 0.0
        if out == into:
            lanes[out] += 1
            lane_y = MARGIN - LANE * lanes[out] if out == "top" else lowest + LANE * lanes[out]
        curve = _curve(points[0], points[1], out, into, lane_y)
        edges.append(Edge(stream, stream_type, boxes[sink].workers[0].family, curve))
    return edges


def _slot(box: Box, side: str, number: int, count: int) -> Point:
    x, y = box.corner
    share = (number + 1) / (count + 1)
    if side in ("left", "right"):
        return x + (WIDTH if side == "right" else 0), y + HEIGHT * share
    return x + WIDTH * share, y + (HEIGHT if side == "bottom" else 0)


def _curve(begin: Point, end: Point, out: str, into: str, lane_y: float) -> tuple[Point, Point, Point, Point]:
    (x1, y1), (x2, y2) = begin, end
    if out == into:  # around everything: in its middle a cubic curve has moved 3/4 of the way to its inner points
        deep = (lane_y - (y1 + y2) / 8) / 0.75
        return begin, (x1, deep), (x2, deep), end
    if out in ("left", "right"):
        middle = (x1 + x2) / 2
        return begin, (middle, y1), (middle, y2), end
    middle = (y1 + y2) / 2
    return begin, (x1, middle), (x2, middle), end


# -- as SVG -----------------------------------------------------------------------------------------------------------


def _marker(stream_type: str, color: str) -> str:
    return (
        f'<marker id="{stream_type}" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="6" markerHeight="6" '
        f'orient="auto-start-reverse"><path d="M0 0 8 4 0 8z" fill="{color}"/></marker>'
    )


def _line(edge: Edge) -> str:
    (x1, y1), *others = edge.points
    path = f"M{x1:g} {y1:g} C" + " ".join(f"{x:g} {y:g}" for x, y in others)
    both = f' marker-start="url(#{edge.type})"' if edge.type in ("inference", "ranks") else ""
    color = COLORS[edge.type]
    return f'<path d="{path}" fill="none" stroke="{color}" stroke-width="1.8" marker-end="url(#{edge.type})"{both}/>'


def _box(box: Box, note: Note | None) -> str:
    """Return a box: its name, its measurements, and a bar for the share of time spent working."""
    x, y = box.corner
    busiest = note is not None and note.busiest
    border = 'stroke="#b3261e" stroke-width="2.5"' if busiest else 'stroke="#7c8794"'
    parts = [
        f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="8" fill="#fff" style="fill:var(--card,#fff)" {border}/>',
        _text(
            x,
            y + (HEIGHT / 2 + 5 if note is None else 20),
            escape(box.title),
            f'font-weight="600" fill="#1c2430" {_INK}',
        ),
    ]
    if note is not None:
        small = f'font-size="{SMALL_PX}" fill="#5d6b7c" {_SOFT}'
        parts += [_text(x, y + 37 + 15 * i, escape(line), small) for i, line in enumerate(note.lines)]
        full, color = WIDTH - 24, "#b3261e" if busiest else "#d9822b"
        bar = f'x="{x + 12}" y="{y + HEIGHT - 17}" height="7" rx="3.5"'
        parts.append(f'<rect {bar} width="{full}" fill="#dfe4ea" style="fill:var(--line,#dfe4ea)"/>')
        parts.append(f'<rect {bar} width="{full * min(max(note.busy, 0.0), 1.0):.1f}" fill="{color}"/>')
    return "".join(parts)


def _text(x: float, y: float, text: str, look: str) -> str:
    return f'<text x="{x + WIDTH / 2:g}" y="{y:g}" text-anchor="middle" {look}>{text}</text>'


def _labels(boxes: list[Box], edges: Iterable[Edge], rates: Mapping[tuple[str, str], str]) -> list[str]:
    """Return the names of the streams, placed so that they cover neither a box nor another name."""
    taken = [(*box.corner, box.corner[0] + WIDTH, box.corner[1] + HEIGHT) for box in boxes]
    parts, left = [], dict(rates)  # a rate is the total of a reader's input: it is written once
    for edge in edges:
        text = f"{edge.stream} {left.pop((edge.stream, edge.reader), '')}".strip()
        wide = LETTER_PX * len(text) / 2
        places = [(edge.at(t), dy) for t in (0.5, 0.4, 0.6, 0.3, 0.7, 0.2, 0.8) for dy in (-5, 13)]
        areas = [(x - wide, y + dy - 9, x + wide, y + dy + 3) for (x, y), dy in places]
        area = next((a for a in areas if not any(_overlap(a, other) for other in taken)), areas[0])
        taken.append(area)
        parts.append(
            f'<text x="{(area[0] + area[2]) / 2:.1f}" y="{area[3] - 3:.1f}" text-anchor="middle" font-size="{SMALL_PX}" '
            f'fill="{COLORS[edge.type]}" stroke="#fff" style="stroke:var(--card,#fff)" stroke-width="3" '
            f'paint-order="stroke">{escape(text)}</text>'
        )
    return parts


def _overlap(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
