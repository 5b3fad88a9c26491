"""Makes the ends of an inference stream from an address.

The address selects the transport (jsrl.transport.transports).
"""

from __future__ import annotations

from jsrl.transport.base import InferenceClient, InferenceServer, InferenceSpec, ProducerId
from jsrl.transport.meeting.address import check_producer
from jsrl.transport.meeting.admission import ANYBODY, JoinRules
from jsrl.transport.meeting.handshake import Check
from jsrl.transport.meeting.keys import KeyPath
from jsrl.transport.transports import transport_of
from jsrl.transport.wire.packing import PLAIN, Packing


def bind_inference(
    address: str,
    spec: InferenceSpec,
    *,
    keys: KeyPath = None,
    join_rules: JoinRules = ANYBODY,
    packing: Packing = PLAIN,
) -> InferenceServer:
    """Return the server end at `address`; its `.address` is for clients (tcp port 0: a free port).

    Args:
      address: where to bind. spec: schema of one environment's request and reply.
      keys: folder or file of the keys (jsrl.transport.meeting.keys) for encryption and access; tcp needs
        them, even on loopback. The other transports do not leave the host and need none.
      join_rules: which workers may connect, and with how many groups and rows.
      packing: what to leave out of requests; only tcp uses it.

    Raises:
      ConfigError: the address is invalid or taken.
    """
    return transport_of(address).bind_inference(address, spec, keys=keys, join_rules=join_rules, packing=packing)


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
    transport = transport_of(address)
    return transport.connect_inference(address, spec, client, group_sizes, timeout_s, keys=keys, check=check)
