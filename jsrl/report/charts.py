"""Curves as inline SVG: no scripts, no network; colours come from the page's style sheet (classes `line0`, `line1`, ...)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

WIDTH, HEIGHT = 560, 230
LEFT, RIGHT, TOP, BOTTOM = 58, 12, 12, 34
MOST_POINTS = 400


@dataclass(frozen=True)
class Series:
    """One curve: its name, and arrays of the same length. `half`: half widths of a band around it."""

    name: str
    x: np.ndarray
    y: np.ndarray
    half: np.ndarray | None = None

    def finite(self) -> Series:
        """Return the points that can be drawn, at most MOST_POINTS (means of neighbours)."""
        keep = np.isfinite(self.x) & np.isfinite(self.y)
        half = np.zeros_like(self.y) if self.half is None else np.nan_to_num(self.half)
        columns = [self.x[keep], self.y[keep], half[keep]]
        if keep.sum() > MOST_POINTS:
            columns = [np.array([part.mean() for part in np.array_split(c, MOST_POINTS)]) for c in columns]
        return Series(self.name, columns[0], columns[1], columns[2] if self.half is not None else None)


def chart(title: str, x_label: str, series: Sequence[Series], *, from_zero: bool = False) -> str:
    """Return a chart as HTML, or an empty string when there are not two points to join.

    Args:
      title: what it shows, with its unit. x_label: of the horizontal axis. series: curves. from_zero: the axis begins at 0.
    """
    drawn = [one for one in (s.finite() for s in series) if len(one.x)]
    if not drawn or max(len(one.x) for one in drawn) < 2:
        return ""
    x_low, x_high = _range([one.x for one in drawn])
    bands = [one.y + sign * one.half for one in drawn if one.half is not None for sign in (-1, 1)]
    y_low, y_high = _range([*(one.y for one in drawn), *bands])
    if from_zero:
        y_low, y_high = min(0.0, *(float(one.y.min()) for one in drawn)), y_high or 1.0
    frame = _Frame(x_low, x_high, y_low, y_high)
    parts = [*_axes(frame, x_label), *(_curve(frame, one, index) for index, one in enumerate(drawn))]
    legend = "".join(
        f'<span class="key"><i class="line{index % 6}"></i>{escape(one.name)}</span>' for index, one in enumerate(drawn)
    )
    label = f'role="img" aria-label="{escape(title, quote=True)}"'
    return (
        f'<figure><figcaption>{escape(title)} <span class="legend">{legend}</span></figcaption>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" {label}>{"".join(parts)}</svg></figure>'
    )


@dataclass(frozen=True)
class _Frame:
    """Where values lie on the paper."""

    x_low: float
    x_high: float
    y_low: float
    y_high: float

    def x(self, values: np.ndarray | float) -> np.ndarray:
        return LEFT + (np.asarray(values) - self.x_low) / (self.x_high - self.x_low) * (WIDTH - LEFT - RIGHT)

    def y(self, values: np.ndarray | float) -> np.ndarray:
        return (
            HEIGHT - BOTTOM - (np.asarray(values) - self.y_low) / (self.y_high - self.y_low) * (HEIGHT - TOP - BOTTOM)
        )


def _range(arrays: Sequence[np.ndarray]) -> tuple[float, float]:
    values = np.concatenate(arrays)
    low, high = float(values.min()), float(values.max())
    if low == high:
        pad = abs(low) * 0.1 or 1.0
        return low - pad, high + pad
    return low, high


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


def _axes(frame: _Frame, x_label: str) -> list[str]:
    parts = []
    for value in ticks(frame.y_low, frame.y_high):
        y = float(frame.y(value))
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{short(value)}</text>')
    for value in ticks(frame.x_low, frame.x_high, 6):
        x = float(frame.x(value))
        parts.append(
            f'<text class="tick" x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{short(value)}</text>'
        )
    parts.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{HEIGHT - BOTTOM}" y2="{HEIGHT - BOTTOM}"/>')
    parts.append(
        f'<text class="tick" x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 4}" text-anchor="middle">{escape(x_label)}</text>'
    )
    return parts


def _curve(frame: _Frame, series: Series, index: int) -> str:
    x, y = frame.x(series.x), frame.y(series.y)
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))
    text = f'<polyline class="line{index % 6}" points="{points}"/>'
    if series.half is not None and series.half.any():
        upper = list(zip(x, frame.y(series.y + series.half), strict=True))
        lower = list(zip(x, frame.y(series.y - series.half), strict=True))[::-1]
        outline = " ".join(f"{a:.1f},{b:.1f}" for a, b in upper + lower)
        text = f'<polygon class="band{index % 6}" points="{outline}"/>' + text
    if len(x) <= 40:
        text += "".join(
            f'<circle class="line{index % 6}" cx="{a:.1f}" cy="{b:.1f}" r="2"/>' for a, b in zip(x, y, strict=True)
        )
    return text
