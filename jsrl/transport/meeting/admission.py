"""Rules for joining a stream: names, groups and rows. A hello is checked against them first."""

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

    def check_number(self, guest: ProducerId, num_groups: int) -> None:
        """Check how many groups it has.

        Raises:
          ConfigError: none, or too many.
        """
        if not 1 <= num_groups <= self.num_groups:
            raise ConfigError(f"{guest.name} has {num_groups} groups, expected 1 to {self.num_groups} on this stream.")

    def check_groups(self, guest: ProducerId, group_sizes: dict[int, int]) -> None:
        """Check the groups that it names (group -> rows).

        Raises:
          ConfigError: too many, one that this stream does not have, or one with too many rows.
        """
        self.check_number(guest, len(group_sizes))
        for group, rows in group_sizes.items():
            if not (0 <= group < self.num_groups and 1 <= rows <= self.rows):
                raise ConfigError(
                    f"{guest.name} asks for group {group} with {rows} rows, expected group 0 to {self.num_groups - 1} with "
                    f"1 to {self.rows} rows on this stream."
                )


ANYBODY = JoinRules()


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
