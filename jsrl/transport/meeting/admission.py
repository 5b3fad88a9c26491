"""Who may join a stream: names, groups, rows and incarnations. Every hello is checked for them first, then for its schema."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from jsrl.errors import CodecError, ConfigError, StreamClosed
from jsrl.transport.base import ProducerId
from jsrl.transport.meeting.address import check_producer
from jsrl.transport.wire.schema import Leaf, compare_schemas, schema_from_fields

if TYPE_CHECKING:
    from jsrl.transport.wire.codec import Message

HELLO = "hello"
Check = Callable[[], None]
"""Raises StreamClosed if the awaited end is gone, so that waiting is useless."""
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


class Hello(NamedTuple):
    """The first message of the connecting end.

    Attributes:
      sender: name and incarnation of the worker. schema: of the stream.
      groups: group of environments -> how often a message of the group has the schema: rows of a request, or one trajectory.
    """

    sender: ProducerId
    groups: dict[int, int]
    schema: tuple[Leaf, ...]


def hello_of_producer(producer: ProducerId, num_groups: int, schema: tuple[Leaf, ...]) -> Hello:
    """Return the hello of a worker that sends trajectories of groups 0 to `num_groups` - 1."""
    return Hello(producer, dict.fromkeys(range(num_groups), 1), schema)


class HelloChecker:
    """Checks hellos for a binding end: first the identity and groups, then the schema.

    Args:
      name: of this end, for messages. schema: of the stream. rules: for joining.

    Attributes:
      admission: which incarnations may join; the end records admissions.
    """

    def __init__(self, name: str, schema: tuple[Leaf, ...], rules: JoinRules) -> None:
        self.admission = Admission(rules)
        self._name, self.schema = name, schema

    def read(self, message: Message, speaks_for: Callable[[str], bool] = lambda worker: True) -> Hello:
        """Return a hello, after checking that its sender may join.

        Args:
          message: with the hello. speaks_for: whether the key of its connection may use a worker's name.

        Raises:
          CodecError: it is not a hello. ConfigError, StreamClosed: the sender may not join this stream.
          SpecMismatch: its schema differs.
        """
        fields = message.fields
        name, incarnation = fields.get("name"), fields.get("incarnation")
        if message.kind != HELLO or not isinstance(name, str) or type(incarnation) is not int:
            raise CodecError(f"expected a hello, found {message.kind[:40]!r} with {sorted(fields)[:8]}.")
        groups = read_pairs(fields.get("groups"), self.admission.rules.num_groups)
        sender = ProducerId(name, incarnation)
        self.admission.check(sender, groups)
        if not speaks_for(name):
            raise StreamClosed(f"{name} cannot join with the key of this host: the run has not placed it there.")
        return self._compared(Hello(sender, groups, schema_from_fields(fields.get("schema"))))

    def check(self, hello: Hello) -> None:
        self.admission.check(hello.sender, hello.groups)
        self._compared(hello)

    def _compared(self, hello: Hello) -> Hello:
        compare_schemas(self.schema, hello.schema, self._name, hello.sender.name)
        return hello
