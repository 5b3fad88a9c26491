"""Rules for joining a stream: names, groups, rows and incarnations. Every hello is checked against them first."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from jsrl.errors import CodecError, ConfigError, StreamClosed
from jsrl.transport.base import ProducerId
from jsrl.transport.meeting.address import check_producer

MOST_NAMES = 4096  # for a stream that accepts any name
_SHOWN = 8


@dataclass(frozen=True)
class JoinRules:
    """Rules for joining a stream.

    Attributes:
      names: of the workers that may join; None: any, up to 4096 names.
      num_groups: most groups of environments per worker, numbered from 0.
      rows: most rows per group (inference).
    """

    names: frozenset[str] | None = None
    num_groups: int = 1024
    rows: int = 1 << 20

    def check(self, sender: ProducerId, known: Collection[str]) -> None:
        """Check name and incarnation; `known` are the names admitted so far."""
        check_producer(sender)
        if self.names is None:
            if sender.name not in known and len(known) >= MOST_NAMES:
                raise StreamClosed(
                    f"{sender.name} cannot join: this stream has reached its limit of {len(known)} names."
                )
        elif sender.name not in self.names:
            shown = ", ".join(sorted(self.names)[:_SHOWN]) + (", ..." if len(self.names) > _SHOWN else "")
            raise StreamClosed(
                f"{sender.name} cannot join: this stream is for {shown}; is the address of another stream?"
            )

    def check_groups(self, sender: ProducerId, groups: dict[int, int]) -> None:
        if not 1 <= len(groups) <= self.num_groups:
            raise ConfigError(
                f"{sender.name} has {len(groups)} groups, expected 1 to {self.num_groups} on this stream."
            )
        for group, rows in groups.items():
            if not (0 <= group < self.num_groups and 1 <= rows <= self.rows):
                raise ConfigError(
                    f"{sender.name} asks for group {group} with {rows} rows, expected group 0 to {self.num_groups - 1} with "
                    f"1 to {self.rows} rows on this stream."
                )


ANYBODY = JoinRules()


class Admission:
    """Which incarnation of each worker may use a binding end: incarnations only rise, and each joins once.

    Args:
      rules: for joining.
    """

    def __init__(self, rules: JoinRules = ANYBODY) -> None:
        self.rules = rules
        self._lowest: dict[str, int] = {}  # name -> the lowest incarnation that may join

    def check(self, sender: ProducerId, groups: dict[int, int]) -> None:
        self.rules.check(sender, self._lowest)
        self.rules.check_groups(sender, groups)

    def check_incarnation(self, sender: ProducerId) -> None:
        """Refuse an incarnation that has joined already, was fenced, or after which a later one has joined."""
        latest = self._lowest.get(sender.name, 0) - 1
        if sender.incarnation <= latest:
            verb = "has joined before" if sender.incarnation == latest else f"was replaced by incarnation {latest}"
            raise StreamClosed(
                f"{sender.name}, incarnation {sender.incarnation}, {verb}: start the worker again with a higher incarnation."
            )

    def admit(self, sender: ProducerId) -> None:
        """Admit a new incarnation; earlier ones may not join any more."""
        self.check_incarnation(sender)
        self._lowest[sender.name] = sender.incarnation + 1

    def leave(self, sender: ProducerId) -> None:
        """Record that an incarnation left without a trace: it may join again, unless a later one has joined."""
        if self._lowest.get(sender.name) == sender.incarnation + 1:
            self._lowest[sender.name] = sender.incarnation

    def fence(self, sender: ProducerId) -> None:
        """Reject this incarnation and earlier ones from now on."""
        self._lowest[sender.name] = max(sender.incarnation + 1, self._lowest.get(sender.name, 0))


def read_pairs(given: Any, most: int) -> dict[int, int]:
    """Return the groups of a hello ([[group, rows], ...]) as group -> rows; reads no more than `most`."""
    if not isinstance(given, Sequence) or isinstance(given, str | bytes) or len(given) > most:
        number = len(given) if isinstance(given, Sequence) else "no"
        raise CodecError(f"a hello with {number} groups, expected at most {most} as a list.")
    pairs: dict[int, int] = {}
    for pair in given:
        if not (isinstance(pair, Sequence) and len(pair) == 2 and all(type(n) is int for n in pair)):
            raise CodecError(f"a hello with the group {str(pair)[:80]}, expected [group, rows].")
        pairs[pair[0]] = pair[1]
    if len(pairs) != len(given):
        raise CodecError(f"a hello that names {len(given)} groups, of which only {len(pairs)} differ.")
    return pairs
