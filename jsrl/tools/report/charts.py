"""Curves as inline SVG: no scripts, no network; colours come from the page's style sheet.

Curve `index` has the classes `line0` to `line7`; from the ninth on they repeat with dashes (`dash1`, `dash2`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

WIDE, SMALL = (560, 230), (360, 170)  # width and height of a chart
LEFT, RIGHT, TOP, BOTTOM = 58, 12, 12, 34
MOST_POINTS = 400
LEAST_SPAN = 0.01
COLOURS, DASHES = 8, 3


@dataclass(frozen=True)
class Series:
    """One curve: its name, and arrays of the same length.

    Attributes:
      low, high: of a band around it, if any. index: of its colour; None: its place among the curves. faint: draw it thin.
      points: draw points without a line.
    """

    name: str
    x: np.ndarray
    y: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    index: int | None = None
    faint: bool = False
    points: bool = False

    def finite(self) -> Series:
        """Return the points to draw, at most MOST_POINTS (means of neighbours)."""
        keep = np.isfinite(self.x) & np.isfinite(self.y)
        bounds = [
            self.y if bound is None else np.where(np.isfinite(bound), bound, self.y) for bound in (self.low, self.high)
        ]
        columns = [column[keep] if self.points else thinned(column[keep]) for column in (self.x, self.y, *bounds)]
        low, high = columns[2:] if self.low is not None else (None, None)
        return dataclasses.replace(self, x=columns[0], y=columns[1], low=low, high=high)

    @property
    def css(self) -> str:
        index = self.index or 0
        dash = index // COLOURS % DASHES
        return f"line{index % COLOURS}" + (f" dash{dash}" if dash else "")


def thinned(column: np.ndarray) -> np.ndarray:
    """Return at most MOST_POINTS values: means of neighbours."""
    count = min(len(column), MOST_POINTS)
    return np.array([part.mean() for part in np.array_split(column, count)]) if count else column


@dataclass(frozen=True)
class Axis:
    """A horizontal axis: logarithmic, or with names at 0, 1, 2, ..."""

    log: bool = False
    names: tuple[str, ...] = ()

    def ticks(self, low: float, high: float, most: int) -> list[tuple[float, str]]:
        """Return the positions of ticks between two values, and their texts."""
        if self.names:
            return [(float(index), name) for index, name in enumerate(self.names) if low <= index <= high]
        if self.log:
            decades = range(math.floor(low), math.ceil(high) + 1)
            factors = (1,) if high - low >= 2 else (1, 2, 5)
            values = [factor * 10.0**decade for decade in decades for factor in factors]
            return [(math.log10(v), f"{v:g}") for v in values if low - 1e-9 <= math.log10(v) <= high + 1e-9]
        return [(place, short(place)) for place in ticks(low, high, most)]


def chart(
    title: str,
    x_label: str,
    series: Sequence[Series],
    *,
    from_zero: bool = False,
    x_range: tuple[float, float] | None = None,
    size: tuple[int, int] = WIDE,
    hint: str = "",
    axis: Axis = Axis(),
    legend: bool = True,
) -> str:
    """Return a chart as HTML, or an empty string when there are fewer than two points.

    Args:
      title: what it shows, with its unit. from_zero: the vertical axis starts at 0.
      x_range: of the horizontal axis; None: that of the curves. size: width and height. hint: shown under the mouse pointer.
      axis: the horizontal one. legend: show the names of the curves, if there are several.
    """
    if axis.log:
        series = [dataclasses.replace(one, x=np.log10(one.x)) for one in series]
    drawn = [dataclasses.replace(s, index=i if s.index is None else s.index).finite() for i, s in enumerate(series)]
    drawn = [one for one in drawn if len(one.x)]
    if not drawn or max(len(one.x) for one in drawn) < 2:
        return ""
    x_low, x_high = x_range or _range([one.x for one in drawn])
    bands = [bound for one in drawn for bound in (one.low, one.high) if bound is not None]
    y_low, y_high = _with_least_span(*_range([*(one.y for one in drawn), *bands]))
    if from_zero:
        y_low, y_high = min(0.0, *(float(one.y.min()) for one in drawn)), y_high or 1.0
    frame = _Frame(x_low, x_high, y_low, y_high, size)
    parts = [*_axes(frame, x_label, axis), *(_curve(frame, one) for one in drawn)]
    named = {one.name: one.css for one in sorted(drawn, key=lambda one: one.index or 0) if not one.faint}
    return _figure(title, keys_of(named) if legend and len(named) > 1 else "", parts, size, hint)


def keys_of(named: Mapping[str, str]) -> str:
    """Return a legend: name of a curve -> its classes."""
    return "".join(f'<span class="key"><i class="{css}"></i>{escape(name)}</span>' for name, css in named.items())


def _figure(title: str, legend: str, parts: Sequence[str], size: tuple[int, int], hint: str = "") -> str:
    label = f'role="img" aria-label="{escape(title, quote=True)}"'
    tooltip = f' title="{escape(hint, quote=True)}"' if hint else ""
    keys = f' <span class="legend">{legend}</span>' if legend else ""
    return (
        f"<figure{tooltip}><figcaption><span>{escape(title)}</span>{keys}</figcaption>"
        f'<svg viewBox="0 0 {size[0]} {size[1]}" {label}>{"".join(parts)}</svg></figure>'
    )


@dataclass(frozen=True)
class _Frame:
    x_low: float
    x_high: float
    y_low: float
    y_high: float
    size: tuple[int, int]

    @property
    def right(self) -> int:
        return self.size[0] - RIGHT

    @property
    def bottom(self) -> int:
        return self.size[1] - BOTTOM

    def x(self, values: np.ndarray | float) -> np.ndarray:
        return LEFT + (np.asarray(values) - self.x_low) / (self.x_high - self.x_low) * (self.right - LEFT)

    def y(self, values: np.ndarray | float) -> np.ndarray:
        return self.bottom - (np.asarray(values) - self.y_low) / (self.y_high - self.y_low) * (self.bottom - TOP)


def _range(arrays: Sequence[np.ndarray]) -> tuple[float, float]:
    values = np.concatenate(arrays)
    low, high = float(values.min()), float(values.max())
    if low == high:
        pad = abs(low) * 0.1 or 1.0
        return low - pad, high + pad
    return low, high


def _with_least_span(low: float, high: float) -> tuple[float, float]:
    """Return a range of at least LEAST_SPAN of its values: a narrower one has ticks of too many digits."""
    missing = LEAST_SPAN * max(abs(low), abs(high)) - (high - low)
    return (low - missing / 2, high + missing / 2) if missing > 0 else (low, high)


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Return round numbers between `low` and `high`."""
    step = 10.0 ** math.floor(math.log10((high - low) / most))
    step *= next((factor for factor in (1, 2, 5) if (high - low) / (step * factor) <= most), 10)
    first = math.ceil(low / step - 1e-9)
    return [round(index * step, 12) for index in range(first, math.floor(high / step + 1e-9) + 1)]


def short(value: float) -> str:
    """Return a tick's number: 950, 12k, 1.5M, 0.02."""
    for unit, factor in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= factor:
            return f"{value / factor:g}{unit}"
    return f"{value:g}"


def _axes(frame: _Frame, x_label: str, axis: Axis) -> list[str]:
    parts = []
    small = frame.size == SMALL
    for value in ticks(frame.y_low, frame.y_high, 5):
        y = float(frame.y(value))
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{frame.right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{short(value)}</text>')
    for value, name in axis.ticks(frame.x_low, frame.x_high, 5 if small else 6):
        x = float(frame.x(value))
        parts.append(
            f'<text class="tick" x="{x:.1f}" y="{frame.bottom + 16}" text-anchor="middle">{escape(name)}</text>'
        )
    middle = (LEFT + frame.right) / 2
    parts.append(f'<line class="axis" x1="{LEFT}" x2="{frame.right}" y1="{frame.bottom}" y2="{frame.bottom}"/>')
    parts.append(
        f'<text class="tick" x="{middle}" y="{frame.size[1] - 4}" text-anchor="middle">{escape(x_label)}</text>'
    )
    return parts


def _curve(frame: _Frame, series: Series) -> str:
    x, y = frame.x(series.x), frame.y(series.y)
    css = series.css + (" faint" if series.faint else "")
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))
    text = "" if series.points else f'<polyline class="{css}" points="{points}"/>'
    if series.low is not None and series.high is not None and (series.high > series.low).any():
        text = f'<polygon class="band {css}" points="{_outline(frame, series.x, series.low, series.high)}"/>' + text
    if series.points or (len(x) <= 40 and not series.faint):
        text += "".join(f'<circle class="{css}" cx="{a:.1f}" cy="{b:.1f}" r="2"/>' for a, b in zip(x, y, strict=True))
    return text


def _outline(frame: _Frame, x: np.ndarray, low: np.ndarray, high: np.ndarray) -> str:
    upper = list(zip(frame.x(x), frame.y(high), strict=True))
    lower = list(zip(frame.x(x), frame.y(low), strict=True))[::-1]
    return " ".join(f"{a:.1f},{b:.1f}" for a, b in upper + lower)
