"""Who may join a stream: names, groups and rows, and which life of each. A hello is checked against this first."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from jsrl.errors import CodecError, ConfigError, StreamClosed
from jsrl.transport.base import ProducerId
from jsrl.transport.meeting.address import check_producer

MOST_NAMES = 4096  # of a stream that takes any name
_SHOWN = 8


@dataclass(frozen=True)
class JoinRules:
    """Who may join a stream.

    Attributes:
      names: of the workers that may join; None: any, up to 4096 names.
      num_groups: most groups of environments per worker, numbered from 0.
      rows: most rows per group (inference).
    """

    names: frozenset[str] | None = None
    num_groups: int = 1024
    rows: int = 1 << 20

    def check(self, guest: ProducerId, known: Collection[str]) -> None:
        """Check who it is; `known` are the names that were let in so far.

        Raises:
          ConfigError: a name or an incarnation that cannot be. StreamClosed: a name that may not join this stream.
        """
        check_producer(guest)
        if self.names is None:
            if guest.name not in known and len(known) >= MOST_NAMES:
                raise StreamClosed(
                    f"{guest.name} cannot join: this stream has seen {len(known)} names, the most it takes."
                )
        elif guest.name not in self.names:
            shown = ", ".join(sorted(self.names)[:_SHOWN]) + (", ..." if len(self.names) > _SHOWN else "")
            raise StreamClosed(
                f"{guest.name} cannot join: this stream is for {shown}; is the address of another stream?"
            )

    def check_groups(self, guest: ProducerId, groups: dict[int, int]) -> None:
        """Check the groups that it names (group -> rows).

        Raises:
          ConfigError: none, too many, one that this stream does not have, or one with too many rows.
        """
        if not 1 <= len(groups) <= self.num_groups:
            raise ConfigError(f"{guest.name} has {len(groups)} groups, expected 1 to {self.num_groups} on this stream.")
        for group, rows in groups.items():
            if not (0 <= group < self.num_groups and 1 <= rows <= self.rows):
                raise ConfigError(
                    f"{guest.name} asks for group {group} with {rows} rows, expected group 0 to {self.num_groups - 1} with "
                    f"1 to {self.rows} rows on this stream."
                )


ANYBODY = JoinRules()


class Admission:
    """Which life of each guest may speak at an end that binds: incarnations only rise, and who is in cannot come again.

    Args:
      rules: for joining at all.
    """

    def __init__(self, rules: JoinRules = ANYBODY) -> None:
        self.rules = rules
        self._lowest: dict[str, int] = {}  # name -> the lowest incarnation that may come

    def check(self, guest: ProducerId, groups: dict[int, int]) -> None:
        """Check that this guest may join at all, with these groups (group -> rows).

        Raises:
          ConfigError: a name, an incarnation or a group that cannot be. StreamClosed: the name may not join.
        """
        self.rules.check(guest, self._lowest)
        self.rules.check_groups(guest, groups)

    def check_life(self, guest: ProducerId) -> None:
        """Check that this life is a new one.

        Raises:
          StreamClosed: it is in already, was fenced, or a later one was let in.
        """
        latest = self._lowest.get(guest.name, 0) - 1
        if guest.incarnation <= latest:
            verb = "has joined before" if guest.incarnation == latest else f"was replaced by incarnation {latest}"
            raise StreamClosed(
                f"{guest.name}, incarnation {guest.incarnation}, {verb}: start the worker again with a higher incarnation."
            )

    def admit(self, guest: ProducerId) -> None:
        """Let a new life in; earlier ones may not come again.

        Raises:
          StreamClosed: see `check_life`.
        """
        self.check_life(guest)
        self._lowest[guest.name] = guest.incarnation + 1

    def leave(self, guest: ProducerId) -> None:
        """Take note that a life left, of which nothing is kept: it may come again, unless a later one was let in."""
        if self._lowest.get(guest.name) == guest.incarnation + 1:
            self._lowest[guest.name] = guest.incarnation

    def fence(self, guest: ProducerId) -> None:
        """Let this life in no more, nor earlier ones."""
        self._lowest[guest.name] = max(guest.incarnation + 1, self._lowest.get(guest.name, 0))


def read_pairs(given: Any, most: int) -> dict[int, int]:
    """Return the groups that a hello names ([[group, rows], ...]) as group -> rows, looking at no more than `most`.

    Raises:
      CodecError: there are more, or they are not pairs of integers, each group once.
    """
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
