"""Texts of users and of other hosts, as they may be sent and shown."""

from __future__ import annotations

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
