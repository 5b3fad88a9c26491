"""What carries streams: the scheme of an address selects its transport; only this table reads it.

| address | transport |
|---|---|
| `local:NAME` | in process |
| `shm:/FOLDER/NAME` | shared memory |
| `ipc:///PATH`, `tcp://HOST:PORT` | ZeroMQ |
| `transport:MODULE:NAME:PLACE` | a user's own: the value NAME of a module, which gets the whole address |
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from jsrl.errors import ConfigError
from jsrl.transport.base import (
    InferenceClient,
    InferenceServer,
    InferenceSpec,
    ParamsPublisher,
    ParamsSubscriber,
    ProducerId,
    SampleConsumer,
    SampleProducer,
)
from jsrl.transport.inference import local as local_inference
from jsrl.transport.inference.shared import SharedInferenceServer
from jsrl.transport.inference.shared_client import SharedInferenceClient
from jsrl.transport.inference.zmq import ZmqInferenceServer
from jsrl.transport.inference.zmq_client import ZmqInferenceClient
from jsrl.transport.meeting.address import parse_address
from jsrl.transport.meeting.keys import KeyPath, keys_for
from jsrl.transport.params.local import LocalParamsPublisher, LocalParamsSubscriber
from jsrl.transport.params.shared import SharedParamsPublisher, SharedParamsSubscriber
from jsrl.transport.params.zmq import ZmqParamsPublisher, ZmqParamsSubscriber
from jsrl.transport.ranks.base import FirstRank, OtherRank
from jsrl.transport.ranks.zmq import ZmqFirstRank, ZmqOtherRank
from jsrl.transport.samples import local as local_samples
from jsrl.transport.samples.shared import SharedSampleConsumer
from jsrl.transport.samples.shared_producer import SharedSampleProducer
from jsrl.transport.samples.zmq import ZmqSampleProducer
from jsrl.transport.samples.zmq_consumer import ZmqSampleConsumer
from jsrl.types import Tree

OWN = "transport"  # the scheme of a user's transport
_EXAMPLES = "local:NAME, shm:FOLDER/NAME, tcp://HOST:PORT or ipc://PATH"


class Transport:
    """A transport makes the ends of the types of streams that it carries; a subclass overrides these methods.

    For arguments and guarantees of each end see jsrl.transport.samples.transports, .inference.transports and
    .params.transports. `connect_...` must accept the `address` of an end that the same transport has bound.
    """

    def bind_samples(self, address: str, schema: Tree, *, keys: KeyPath, **options: Any) -> SampleConsumer:
        """Return the reading end of a sample stream."""
        raise self._carries_no("samples", address)

    def connect_samples(
        self, address: str, schema: Tree, producer: ProducerId, num_groups: int, timeout_s: float, **options: Any
    ) -> SampleProducer:
        """Return the writing end of a sample stream."""
        raise self._carries_no("samples", address)

    def bind_inference(self, address: str, spec: InferenceSpec, *, keys: KeyPath, **options: Any) -> InferenceServer:
        """Return the server end of an inference stream."""
        raise self._carries_no("inference", address)

    def connect_inference(
        self,
        address: str,
        spec: InferenceSpec,
        client: ProducerId,
        group_sizes: dict[int, int],
        timeout_s: float,
        **options: Any,
    ) -> InferenceClient:
        """Return the client end of an inference stream."""
        raise self._carries_no("inference", address)

    def bind_params(self, address: str, *, keys: KeyPath, **options: Any) -> ParamsPublisher:
        """Return the publishing end of params."""
        raise self._carries_no("params", address)

    def connect_params(self, address: str, *, keys: KeyPath, **options: Any) -> ParamsSubscriber:
        """Return the reading end of params."""
        raise self._carries_no("params", address)

    def bind_ranks(self, address: str, *, keys: KeyPath) -> FirstRank:
        """Return the first rank's end of the stream over which ranks agree."""
        raise self._carries_no("ranks", address)

    def connect_ranks(self, address: str, *, keys: KeyPath) -> OtherRank:
        """Return another rank's end of the stream over which ranks agree."""
        raise self._carries_no("ranks", address)

    def carries(self, stream_type: str) -> bool:
        """Return whether this transport has ends of a type of stream: samples, inference, params or ranks."""
        return getattr(type(self), f"bind_{stream_type}") is not getattr(Transport, f"bind_{stream_type}")

    def _carries_no(self, what: str, address: str) -> ConfigError:
        return ConfigError(
            f"the transport of {address} ({type(self).__name__}) carries no {what}; give it another stream."
        )


class OneHost(Transport):
    """A transport between workers of one host, without keys or compression.

    Args:
      consumer, producer, server, client, publisher, subscriber: make the ends of samples, inference and params at a place.
    """

    def __init__(
        self,
        consumer: Callable[..., SampleConsumer],
        producer: Callable[..., SampleProducer],
        server: Callable[..., InferenceServer],
        client: Callable[..., InferenceClient],
        publisher: Callable[..., ParamsPublisher],
        subscriber: Callable[..., ParamsSubscriber],
    ) -> None:
        self._consumer, self._producer = consumer, producer
        self._server, self._client = server, client
        self._publisher, self._subscriber = publisher, subscriber

    def bind_samples(self, address: str, schema: Tree, *, keys: KeyPath, **options: Any) -> SampleConsumer:
        """See Transport."""
        options.pop("packing", None)
        return self._consumer(parse_address(address).place, schema, **options)

    def connect_samples(
        self, address: str, schema: Tree, producer: ProducerId, num_groups: int, timeout_s: float, **options: Any
    ) -> SampleProducer:
        """See Transport."""
        place = parse_address(address).place
        return self._producer(place, schema, producer, num_groups, timeout_s, options["hop"], options["check"])

    def bind_inference(self, address: str, spec: InferenceSpec, *, keys: KeyPath, **options: Any) -> InferenceServer:
        """See Transport."""
        return self._server(spec, place_in(address), options["join_rules"])

    def connect_inference(
        self,
        address: str,
        spec: InferenceSpec,
        client: ProducerId,
        group_sizes: dict[int, int],
        timeout_s: float,
        **options: Any,
    ) -> InferenceClient:
        """See Transport."""
        return self._client(place_in(address), spec, client, group_sizes, timeout_s, options["check"])

    def bind_params(self, address: str, *, keys: KeyPath, **options: Any) -> ParamsPublisher:
        """See Transport."""
        return self._publisher(place_in(address), **options)

    def connect_params(self, address: str, *, keys: KeyPath, **options: Any) -> ParamsSubscriber:
        """See Transport."""
        return self._subscriber(place_in(address), **options)


class ZeroMQ(Transport):
    """A header and raw frames, over Unix sockets or, with keys, over TCP."""

    def bind_samples(self, address: str, schema: Tree, *, keys: KeyPath, **options: Any) -> SampleConsumer:
        """See Transport."""
        return ZmqSampleConsumer(parse_address(address).endpoint, schema, keys=keys, **options)

    def connect_samples(
        self, address: str, schema: Tree, producer: ProducerId, num_groups: int, timeout_s: float, **options: Any
    ) -> SampleProducer:
        """See Transport."""
        parsed = parse_address(address)
        options["keys"] = keys_for(parsed.server, options["keys"])
        return ZmqSampleProducer(parsed.endpoint, schema, producer, num_groups, timeout_s=timeout_s, **options)

    def bind_inference(self, address: str, spec: InferenceSpec, *, keys: KeyPath, **options: Any) -> InferenceServer:
        """See Transport."""
        return ZmqInferenceServer(spec, address, keys=keys, **options)

    def connect_inference(
        self,
        address: str,
        spec: InferenceSpec,
        client: ProducerId,
        group_sizes: dict[int, int],
        timeout_s: float,
        **options: Any,
    ) -> InferenceClient:
        """See Transport."""
        parsed = parse_address(address)
        options["keys"] = keys_for(parsed.server, options["keys"])
        return ZmqInferenceClient(parsed.endpoint, spec, client, group_sizes, timeout_s, **options)

    def bind_params(self, address: str, *, keys: KeyPath, **options: Any) -> ParamsPublisher:
        """See Transport."""
        return ZmqParamsPublisher(address, keys=keys, **options)

    def connect_params(self, address: str, *, keys: KeyPath, **options: Any) -> ParamsSubscriber:
        """See Transport."""
        parsed = parse_address(address)
        return ZmqParamsSubscriber(parsed.endpoint, keys=keys_for(parsed.server, keys), **options)

    def bind_ranks(self, address: str, *, keys: KeyPath) -> FirstRank:
        """See Transport."""
        return ZmqFirstRank(parse_address(address).endpoint, keys if address.startswith("tcp://") else None)

    def connect_ranks(self, address: str, *, keys: KeyPath) -> OtherRank:
        """See Transport."""
        parsed = parse_address(address)
        return ZmqOtherRank(
            parsed.endpoint, keys_for(parsed.server, keys) if parsed.endpoint.startswith("tcp://") else None
        )


IN_PROCESS = OneHost(
    local_samples.LocalSampleConsumer,
    local_samples.connect_local,
    local_inference.LocalInferenceServer,
    local_inference.connect_local,
    LocalParamsPublisher,
    LocalParamsSubscriber,
)
SHARED_MEMORY = OneHost(
    SharedSampleConsumer,
    SharedSampleProducer,
    SharedInferenceServer,
    SharedInferenceClient,
    SharedParamsPublisher,
    SharedParamsSubscriber,
)
_ZEROMQ = ZeroMQ()
TRANSPORTS: dict[str, Transport] = {"local": IN_PROCESS, "shm": SHARED_MEMORY, "ipc": _ZEROMQ, "tcp": _ZEROMQ}


def transport_of(address: str) -> Transport:
    """Return the transport of an address.

    Raises:
      ConfigError: its scheme is unknown, or a user's transport cannot be imported.
    """
    scheme = address.partition(":")[0]
    if scheme in TRANSPORTS:
        return TRANSPORTS[scheme]
    parts = address.split(":", 3)
    if scheme != OWN or len(parts) < 4:
        raise ConfigError(f"unknown address {address!r}: its scheme is no known one; expected {_EXAMPLES}.")
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
