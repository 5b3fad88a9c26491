"""A reporter that stores events, and settings from one set of values."""

from __future__ import annotations

import dataclasses
from typing import Any

from jsrl.workers.base import NullReporter


class EventRecorder(NullReporter):
    """A reporter that stores events."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict]] = []

    def event(self, name: str, text: str = "", **facts) -> None:
        self.events.append((name, {"text": text, **facts}))

    def named(self, name: str) -> list[dict]:
        return [facts for other, facts in self.events if other == name]


def taken(values: dict[str, Any], cls: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that are among the values, taken out of these."""
    return {field.name: values.pop(field.name) for field in dataclasses.fields(cls) if field.name in values}
