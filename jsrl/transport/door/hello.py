"""How the two ends of a stream meet, on every transport: one sends its identity and schema, the other welcomes or refuses it.

    hello(name, incarnation, groups, schema)    ->
                                                <-    welcome(what else the transport needs), or refused(error, text)

Every hello is checked for name, groups, rows and incarnation first, then for its schema. A refusal names the error that the
connecting end raises.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

import msgspec

from jsrl.errors import CodecError, ConfigError, JsrlError, SpecMismatch, StreamClosed, StreamError
from jsrl.transport.base import ProducerId
from jsrl.transport.door.address import check_producer
from jsrl.transport.wire.message import Message, pack
from jsrl.transport.wire.schema import Leaf, compare_schemas, decode_schema, encode_schema

Check = Callable[[], None]
"""Raises StreamClosed if the awaited end is gone, so that waiting is useless."""
_SHOWN = 8
_HELLO_BYTES = 1 << 15  # for a foreign schema, whose first difference is reported
_GROUP_BYTES = 16
_ERRORS: dict[str, type[JsrlError]] = {
    kind.__name__: kind for kind in (SpecMismatch, StreamClosed, ConfigError, CodecError, StreamError)
}


@dataclass(frozen=True)
class JoinRules:
    """Rules for joining a stream.

    Attributes:
      names: of the workers that may join; None: any.
      num_groups: most groups of environments per worker, numbered from 0.
      rows: most rows per group (inference).
    """

    names: frozenset[str] | None = None
    num_groups: int = 1024
    rows: int = 1 << 20

    def check(self, sender: ProducerId, groups: dict[int, int]) -> None:
        """Check a worker's name and incarnation, and the rows of its groups."""
        check_producer(sender)
        if self.names is not None and sender.name not in self.names:
            shown = ", ".join(sorted(self.names)[:_SHOWN]) + (", ..." if len(self.names) > _SHOWN else "")
            raise StreamClosed(
                f"{sender.name} cannot join: this stream is for {shown}; is the address of another stream?"
            )
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


class Hello(NamedTuple):
    """What the connecting end says of itself.

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


class HelloMessage(Message, tag="hello"):
    """The first message of a connecting end. schema: decoded once the sender may join."""

    name: str
    incarnation: int
    groups: list[tuple[int, int]]
    schema: msgspec.Raw


class Refused(Message, tag="refused"):
    """The answer to a hello, or the end of a connection: the error that the other end raises."""

    error: str
    text: str


def hello_frames(hello: Hello) -> list[Any]:
    """Return the message with a hello."""
    sender, schema = hello.sender, msgspec.Raw(encode_schema(hello.schema))
    return pack(HelloMessage(sender.name, sender.incarnation, list(hello.groups.items()), schema))


def refusal(error: JsrlError) -> Refused:
    """Return the message that makes the other end raise `error`."""
    kind = type(error).__name__
    return Refused(kind if kind in _ERRORS else "StreamError", str(error)[:4000])


def raise_refusal(refused: Refused) -> NoReturn:
    """Raise the error in a refusal, of the class that the other end named."""
    raise _ERRORS.get(refused.error, StreamError)(refused.text)


class Door:
    """Who may use a binding end: checks hellos, first the identity and groups, then the schema.

    Incarnations of a worker only rise, and each joins once.

    Args:
      name: of this end, for messages. schema: of the stream. rules: for joining.

    Attributes:
      header_bytes: limit of a hello.
    """

    def __init__(self, name: str, schema: tuple[Leaf, ...], rules: JoinRules) -> None:
        self._name, self._schema, self._rules = name, schema, rules
        self._lowest: dict[str, int] = {}  # name -> the lowest incarnation that may join
        (own,) = hello_frames(Hello(ProducerId("x" * 64, 0), {}, schema))
        self.header_bytes = max(_HELLO_BYTES, 2 * len(own)) + _GROUP_BYTES * rules.num_groups

    def read(self, message: HelloMessage, speaks_for: Callable[[str], bool] = lambda worker: True) -> Hello:
        """Return a hello, after checking that its sender may join.

        Args:
          speaks_for: whether the key of its connection may use a worker's name.

        Raises:
          ConfigError, StreamClosed: the sender may not join this stream. SpecMismatch: its schema differs.
        """
        groups = dict(message.groups)
        if len(groups) != len(message.groups):
            raise CodecError(f"a hello that names {len(message.groups)} groups, of which only {len(groups)} differ.")
        sender = ProducerId(message.name, message.incarnation)
        self._rules.check(sender, groups)
        if not speaks_for(sender.name):
            raise StreamClosed(f"{sender.name} cannot join with the key of this host: the run has not placed it there.")
        schema = decode_schema(message.schema)
        compare_schemas(self._schema, schema, self._name, sender.name)
        return Hello(sender, groups, schema)

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
