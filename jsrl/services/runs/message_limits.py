"""What a worker may say to the controller, and how much. It checks itself; what comes over TCP is checked where it enters.

    one message             at most MAX_MESSAGE_BYTES
    the text of a sender    at most TEXT_BYTES at once, and TEXT_BYTES_PER_S more each second

Text is what the controller keeps or shows: errors, notes, stages, and names that the sender has not said before. Numbers are
free. A worker leaves out warnings and notes that would leave less than SPARED_BYTES for all else that it says. A host of which
MAX_DROPS messages are dropped within DROPS_S seconds is cut off.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from jsrl.rate_limit import RateLimit, is_reported
from jsrl.services.runs.control_bodies import RESERVED_EVENTS, AnyMessage, Event, complaint, metrics_of, texts_of

MAX_MESSAGE_BYTES = 16 << 20
TEXT_BYTES, TEXT_BYTES_PER_S = 1 << 20, 1 << 10
SPARED_BYTES = TEXT_BYTES // 2
NAME_BYTES = 100  # that a new name takes besides its characters
MAX_DROPS, DROPS_S = 10, 60.0


class TextBudget:
    """The text that one incarnation of a worker may still say."""

    def __init__(self) -> None:
        self._left, self._since_s = float(TEXT_BYTES), 0.0
        self._names: set[str] = set()

    def objection(self, message: AnyMessage, now_s: float) -> str:
        """Take the text of a message from the budget; return why that is too small for it, or an empty text."""
        if self.pay(*texts_of(message), now_s):
            return ""
        return f"it has more text than its sender may still say: {TEXT_BYTES >> 20} MiB, and {TEXT_BYTES_PER_S} bytes a second"

    def pay(self, texts: Iterable[str], names: Iterable[str], now_s: float, least: float = 0.0) -> bool:
        """Take texts, and those of the names that are new, from the budget; return False if that leaves less than `least`."""
        self._left = min(TEXT_BYTES, self._left + TEXT_BYTES_PER_S * (now_s - self._since_s))
        self._since_s = now_s
        new = {name for name in names if name not in self._names}
        price = sum(map(len, texts)) + sum(len(name) + NAME_BYTES for name in new)
        if self._left - price < least:
            return False
        self._left -= price
        self._names |= new
        return True


class Drops:
    """The dropped messages of one sender."""

    def __init__(self) -> None:
        self._recent = RateLimit(MAX_DROPS - 1, DROPS_S)
        self.count = 0

    def add(self, sender: str, why: str, now_s: float) -> tuple[str, str]:
        """Count a dropped message; return (a line for the user, why the sender is cut off), each empty if there is none.

        There is a line for the first message, and then for ever fewer.
        """
        self.count += 1
        number = f" ({self.count} so far)" if self.count > 1 else ""
        line = f"a message of {sender} was dropped{number}: {why}" if is_reported(self.count) else ""
        cut_off = f"{MAX_DROPS} of its messages were dropped within {DROPS_S:g} s, the last because {why}"
        return line, "" if self._recent.spend(now_s) else cut_off


class Speech(NamedTuple):
    """What a worker may say besides what all may; see `Kind.speech`.

    Attributes:
      kind: its name. sends: the events that the controller acts on, of those that it may send.
      heads: first parts of the names of its metrics. foreign: those that it may not use; None: all others.
    """

    kind: str
    sends: frozenset[str]
    heads: frozenset[str]
    foreign: frozenset[str] | None = None


def objection(message: AnyMessage, speech: Speech) -> str:
    """Return why a worker may not send a message; empty: it may."""
    if why := complaint(message):
        return why
    if isinstance(message, Event) and message.name in RESERVED_EVENTS and message.name not in speech.sends:
        return f"a worker of kind {speech.kind} does not send it"
    heads = {name.partition("/")[0] for name in metrics_of(message)} - speech.heads
    if foreign := heads if speech.foreign is None else heads & speech.foreign:
        return f"a worker of kind {speech.kind} does not measure {min(foreign)[:80]!r}"
    return ""


MAX_CHARS = 1 << 16  # of one text


def shortened(text: str, max_chars: int = MAX_CHARS) -> str:
    """Return a text of at most about so many characters: the middle is left out, and its length said."""
    if len(text) <= max_chars:
        return text
    half = max_chars // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half:,} characters left out ...]\n{text[-half:]}"


def printable(text: str) -> str:
    """Return a text for a terminal: shortened, with escapes for control characters except new lines and tabs."""
    text = shortened(text)
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in "\n\t" else char.encode("unicode_escape", "backslashreplace").decode()
        for char in text
    )
