"""What carries streams: the scheme of an address selects the transport; only this table reads it.

| address | transport |
|---|---|
| `local:NAME` | in process |
| `shm:/FOLDER/NAME` | shared memory |
| `ipc:///PATH`, `tcp://HOST:PORT` | ZeroMQ |
| `transport:MODULE:NAME:PLACE` | a user's own: the value NAME of a module, which gets the whole address |
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsrl.errors import ConfigError
from jsrl.transport.base import (
    FirstRank,
    InferenceClient,
    InferenceServer,
    InferenceSpec,
    Ledger,
    OtherRank,
    ParamsPublisher,
    ParamsSubscriber,
    ProducerId,
    SampleConsumer,
    SampleProducer,
)
from jsrl.transport.door.address import check_producer, parse_address
from jsrl.transport.door.hello import ANYBODY, Check, JoinRules
from jsrl.transport.stream import StreamType
from jsrl.types import Tree

if TYPE_CHECKING:
    from jsrl.transport.door.keys import KeyPath
    from jsrl.transport.ends.packing import Packing

KEYS = "jsrl.transport.door.keys"  # imported where an address names a key
BIND, CONNECT = 0, 1  # sides of a stream
OWN = "transport"  # the scheme of a user's transport
_EXAMPLES = "local:NAME, shm:FOLDER/NAME, tcp://HOST:PORT or ipc://PATH"
# (stream type, scheme) -> what makes the ends that bind and connect, below jsrl.transport; imported at the first use.
ENDS: dict[tuple[StreamType, str], tuple[str, str]] = {
    ("samples", "local"): ("shared.samples:SharedSampleConsumer", "shared.samples:SharedSampleProducer"),
    ("samples", "shm"): ("shared.samples:SharedSampleConsumer", "shared.samples:SharedSampleProducer"),
    ("samples", "zmq"): ("network.reliable:ZmqSampleConsumer", "network.reliable:ZmqSampleProducer"),
    ("inference", "local"): ("shared.inference:SharedInferenceServer", "shared.inference:SharedInferenceClient"),
    ("inference", "shm"): ("shared.inference:SharedInferenceServer", "shared.inference:SharedInferenceClient"),
    ("inference", "zmq"): ("network.call:ZmqInferenceServer", "network.call:ZmqInferenceClient"),
    ("params", "local"): ("ends.params:LocalParamsPublisher", "ends.params:LocalParamsSubscriber"),
    ("params", "shm"): ("shared.params:SharedParamsPublisher", "shared.params:SharedParamsSubscriber"),
    ("params", "zmq"): ("network.latest:ZmqParamsPublisher", "network.latest:ZmqParamsSubscriber"),
    ("ranks", "zmq"): ("network.call:ZmqFirstRank", "network.call:ZmqOtherRank"),
}


class Transport:
    """A transport makes the ends of the types of streams that it carries.

    A subclass has `bind_TYPE` and `connect_TYPE` of these types: samples, inference, params, ranks. For arguments and
    guarantees see the functions of the same names below; `keys` always comes, other keyword arguments where they are given.
    `connect_TYPE` must accept the `address` of an end that the same transport has bound.
    """

    def carries(self, stream_type: str) -> bool:
        """Return whether this transport has ends of a type of stream."""
        return hasattr(self, f"bind_{stream_type}")


def _end(side: int, stream_type: StreamType, address: str, *given: Any, keys: KeyPath, **options: Any) -> Any:
    """Return a new end of a stream, which binds (side 0) or connects (1); only ZeroMQ's get `keys` and `packing`.

    Raises:
      ConfigError: the transport of this address does not carry it.
    """
    scheme = address.partition(":")[0]
    if scheme == OWN:
        own = transport_at(address)
        make = getattr(own, f"{('bind', 'connect')[side]}_{stream_type}", None)
        if make is None:
            raise ConfigError(
                f"the transport of {address} ({type(own).__name__}) carries no {stream_type}; give it another stream."
            )
        return make(address, *given, keys=keys, **options)
    parsed, transport = parse_address(address), "zmq" if scheme in ("ipc", "tcp") else scheme
    if (stream_type, transport) not in ENDS:
        raise ConfigError(f"{transport} carries no {stream_type}; give an address tcp://HOST:PORT or ipc://PATH.")
    module, _, name = ENDS[stream_type, transport][side].partition(":")
    make = getattr(import_module(f"jsrl.transport.{module}"), name)
    if transport != "zmq":
        options.pop("packing", None)
        return make(parsed.place, *given, **options)
    if parsed.server:
        keys = import_module(KEYS).keys_for(parsed.server, keys)
    return make(parsed.endpoint, *given, keys=keys, **options)


def bind_samples(
    address: str,
    schema: Tree,
    *,
    blocks_per_producer: int | None = None,
    keys: KeyPath = None,
    ledger: Ledger | None = None,
    join_rules: JoinRules = ANYBODY,
    leg: Path | None = None,
    packing: Packing | None = None,
) -> SampleConsumer:
    """Return the reading end of a sample stream; its `address` is for producers.

    Args:
      address: `local:NAME`, `shm:/FOLDER/NAME`, `ipc:///PATH` or `tcp://HOST:PORT` (port 0: any free one).
      schema: tree of ArraySpec leaves, as jsrl.types.make_trajectory_spec returns it.
      blocks_per_producer: trajectories of one producer that may be open, in flight or lent at once; None: two
        per group.
      keys: folder or file of the keys (jsrl.transport.door.keys) for encryption and access; tcp needs
        them, even on loopback. The other transports do not leave the host and need none.
      ledger: to count in, such as that of the learner's earlier incarnations; None: a new one.
      join_rules: which workers may join, and with how many groups.
      leg: folder of the pages in which both ends count (jsrl.transport.ledger.leg_page); None: count in memory only.
      packing: what to leave out of messages; only tcp uses it. None: nothing.

    Raises:
      ConfigError: the address is unknown, in use, or too little memory is left.
    """
    return _end(
        BIND,
        "samples",
        address,
        schema,
        keys=keys,
        blocks_per_producer=blocks_per_producer,
        ledger=ledger,
        join_rules=join_rules,
        leg=leg,
        **_packed(packing),
    )


def connect_samples(
    address: str,
    schema: Tree,
    producer: ProducerId,
    num_groups: int,
    timeout_s: float,
    *,
    keys: KeyPath = None,
    leg: Path | None = None,
    check: Check = lambda: None,
) -> SampleProducer:
    """Return the writing end of a sample stream, waiting up to `timeout_s` for the consumer.

    Args:
      address: the consumer's `address`.
      schema: as at the consumer; both sides compare.
      producer: name and incarnation of the writer; each incarnation is admitted once.
      num_groups: how many groups of environments it writes for (`commit` takes 0 to num_groups - 1).
      keys: folder or file of the consumer's keys, if its stream is encrypted.
      leg: folder of the pages, as at the consumer. If this host does not have it, the consumer counts from messages.
      check: called periodically during the wait; raises if a restarted consumer may have another address.

    Raises:
      StreamTimeout: no consumer answered. SpecMismatch: the schemas differ. StreamClosed: this incarnation is refused, or
        `check` raised it.
      AccessDenied: the keys are missing, or another run's.
    """
    return _end(CONNECT, "samples", address, schema, producer, num_groups, timeout_s, keys=keys, leg=leg, check=check)


def bind_inference(
    address: str,
    spec: InferenceSpec,
    *,
    keys: KeyPath = None,
    join_rules: JoinRules = ANYBODY,
    packing: Packing | None = None,
) -> InferenceServer:
    """Return the server end at `address`; its `.address` is for clients (tcp port 0: a free port).

    Args:
      address: where to bind. spec: schema of one environment's request and reply.
      keys: folder or file of the keys for encryption and access, as in `bind_samples`.
      join_rules: which workers may connect, and with how many groups and rows.
      packing: what to leave out of requests; only tcp uses it. None: nothing.

    Raises:
      ConfigError: the address is invalid or taken.
    """
    return _end(BIND, "inference", address, spec, keys=keys, join_rules=join_rules, **_packed(packing))


def connect_inference(
    address: str,
    spec: InferenceSpec,
    client: ProducerId,
    group_sizes: dict[int, int],
    timeout_s: float,
    *,
    keys: KeyPath = None,
    check: Check = lambda: None,
) -> InferenceClient:
    """Return the client end, connected and with its schema compared.

    Args:
      address: the server's. spec: schema of one environment's request and reply.
      client: name and incarnation of the client; a higher incarnation fences an older one.
      group_sizes: rows B of each group (group -> B).
      timeout_s: how long to wait until the server is there and answers the hello.
      keys: folder or file of the server's keys, if its stream is encrypted.
      check: called periodically during the wait; raises if a restarted server may have another address.

    Raises:
      SpecMismatch: the two schemas differ; names the leaf. StreamTimeout: no server answered in time.
      StreamClosed: the server refused (the message says why), or `check` raised it. ConfigError: the address is invalid.
      AccessDenied: the keys are missing, or another run's.
    """
    check_producer(client)
    return _end(CONNECT, "inference", address, spec, client, group_sizes, timeout_s, keys=keys, check=check)


def bind_params(address: str, *, keys: KeyPath = None, **options: Any) -> ParamsPublisher:
    """Return the publishing end at `address`; its `.address` is for subscribers (tcp port 0: a free port).

    Args:
      address: where to bind. options: of the transport's publisher.
      keys: folder or file of the keys for encryption and access, as in `bind_samples`.

    Raises:
      ConfigError: the address is invalid or taken.
    """
    return _end(BIND, "params", address, keys=keys, **options)


def connect_params(address: str, *, keys: KeyPath = None, **options: Any) -> ParamsSubscriber:
    """Return the reading end; the publisher may start later, end, and restart.

    Args:
      address: the publisher's. options: of the transport's subscriber.
      keys: folder or file of the publisher's keys, if its stream is encrypted; missing or wrong keys raise
        AccessDenied in `poll` or `wait`.

    Raises:
      ConfigError: the address is invalid.
    """
    return _end(CONNECT, "params", address, keys=keys, **options)


def bind_ranks(address: str, *, keys: KeyPath) -> FirstRank:
    """Return the first rank's end of the stream over which ranks agree."""
    return _end(BIND, "ranks", address, keys=keys if address.startswith("tcp://") else None)


def connect_ranks(address: str, *, keys: KeyPath) -> OtherRank:
    """Return another rank's end of the stream over which ranks agree."""
    return _end(CONNECT, "ranks", address, keys=keys if address.startswith("tcp://") else None)


def _packed(packing: Packing | None) -> dict[str, Any]:
    return {} if packing is None else {"packing": packing}


def transport_at(address: str) -> Transport:
    """Return the user's transport in an address.

    Raises:
      ConfigError: the address names none, or it cannot be imported.
    """
    parts = address.split(":", 3)
    if len(parts) < 4:
        raise ConfigError(f"unknown address {address!r}: expected {_EXAMPLES}, or transport:MODULE:NAME:PLACE.")
    return find_transport(f"{parts[1]}:{parts[2]}")


def find_transport(reference: str) -> Transport:
    """Return a user's transport, `module:NAME`.

    Raises:
      ConfigError: it cannot be imported, or is something else.
    """
    module, _, name = reference.partition(":")
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"the transport {reference!r} cannot be imported ({error}); give `module:NAME` of a jsrl.extend.Transport."
        ) from error
    if not isinstance(found, Transport):
        raise ConfigError(f"{reference} is {type(found).__name__}; a transport is a value of a jsrl.extend.Transport.")
    return found


def own_address(reference: str, place: str) -> str:
    """Return the address of a place on a user's transport, `module:NAME`."""
    return f"{OWN}:{reference}:{place}"


def place_in(address: str) -> str:
    """Return the place in an address, such as `/FOLDER/NAME`."""
    scheme, _, rest = address.partition(":")
    return rest.split(":", 2)[2] if scheme == OWN else rest
