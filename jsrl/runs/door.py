"""How much a sender may say to the controller: checked once, where its messages enter. The rest is dropped and counted.

    one message             at most MAX_MESSAGE_BYTES
    the text of a sender    at most TEXT_BYTES at once, and TEXT_BYTES_PER_S more each second

Text is what the controller keeps or shows: errors, notes, stages, and names that the sender has not said before. Numbers are
free. A sender of which MAX_DROPS messages are dropped within DROPS_S seconds is cut off.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from jsrl.rate_limit import RateLimit, is_reported

MAX_MESSAGE_BYTES = 16 << 20
TEXT_BYTES, TEXT_BYTES_PER_S = 1 << 20, 1 << 10
NAME_BYTES = 100  # that a new name takes besides its characters
MAX_DROPS, DROPS_S = 10, 60.0
# Messages that wait to be passed on to the controller. There is no such limit for what arrives: libzmq 4.3 aborts the process
# if a connection ends whose reading has stopped at a limit.
MAX_WAITING = 16

Clock = Callable[[], float]


class TextBudget:
    """The text that one incarnation of a worker may still say."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock, self._left, self._since_s = clock, float(TEXT_BYTES), clock()
        self._names: set[str] = set()

    def pay(self, texts: Iterable[str], names: Iterable[str]) -> bool:
        """Take texts, and those of the names that are new, from the budget; return False if it is too small for them."""
        now_s = self._clock()
        self._left = min(TEXT_BYTES, self._left + TEXT_BYTES_PER_S * (now_s - self._since_s))
        self._since_s = now_s
        new = {name for name in names if name not in self._names}
        price = sum(map(len, texts)) + sum(len(name) + NAME_BYTES for name in new)
        if price > self._left:
            return False
        self._left -= price
        self._names |= new
        return True


class Drops:
    """The dropped messages of one sender."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._recent = RateLimit(MAX_DROPS - 1, DROPS_S, clock)
        self.count = 0

    def add(self, sender: str, why: str) -> tuple[str, str]:
        """Count a dropped message; return (a line for the user, why the sender is cut off), each empty if there is none.

        There is a line for the first message, and then for ever fewer.
        """
        self.count += 1
        number = f" ({self.count} so far)" if self.count > 1 else ""
        line = f"a message of {sender} was dropped{number}: {why}" if is_reported(self.count) else ""
        cut_off = f"{MAX_DROPS} of its messages were dropped within {DROPS_S:g} s, the last because {why}"
        return line, "" if self._recent.spend() else cut_off


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
