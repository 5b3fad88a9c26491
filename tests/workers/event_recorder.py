"""A reporter that stores events."""

from __future__ import annotations

from jsrl.workers.base import NullReporter


class EventRecorder(NullReporter):
    """A reporter that stores events."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict]] = []

    def event(self, name: str, text: str = "", **facts) -> None:
        self.events.append((name, {"text": text, **facts}))

    def named(self, name: str) -> list[dict]:
        return [facts for other, facts in self.events if other == name]
