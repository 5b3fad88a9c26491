"""Padding of images for windows."""

from __future__ import annotations

from typing import Literal, TypeAlias

Padding: TypeAlias = Literal["VALID", "SAME"]
Pads: TypeAlias = tuple[tuple[int, int], tuple[int, int]]


def pads_of(length: int, size: int, stride: int, padding: Padding) -> tuple[int, int]:
    """Return the padding before and after an axis of `length`."""
    if padding == "VALID":
        return (0, 0)
    total = max((-(-length // stride) - 1) * stride + size - length, 0)
    return (total // 2, total - total // 2)
