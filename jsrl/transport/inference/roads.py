"""Make the ends of an inference stream from an address.

Which road is taken is the address's business (jsrl.transport.roads).
"""

from __future__ import annotations

from jsrl.transport.base import InferenceClient, InferenceServer, InferenceSpec, ProducerId
from jsrl.transport.meeting.address import check_producer
from jsrl.transport.meeting.admission import ANYBODY, JoinRules
from jsrl.transport.meeting.handshake import Check
from jsrl.transport.meeting.keys import KeyPath
from jsrl.transport.roads import road_of


def bind_inference(
    address: str, spec: InferenceSpec, *, keys: KeyPath = None, guests: JoinRules = ANYBODY
) -> InferenceServer:
    """Return the answering end at `address`; its `.address` is what clients connect to (tcp port 0: a free one).

    Args:
      address: where. spec: schema of one environment's request and reply.
      keys: folder or file of the keys (jsrl.transport.meeting.keys) that encrypt, and keep out who has none; tcp needs
        them, on loopback too. The other roads do not leave the host, and need none.
      guests: who may connect, and with how many groups and rows.

    Raises:
      ConfigError: the address cannot be, or is taken.
    """
    return road_of(address).bind_inference(address, spec, keys=keys, guests=guests)


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
    """Return the asking end, connected and with its schema compared.

    Args:
      address: the server's. spec: schema of one environment's request and reply.
      client: which life of which worker asks; a higher incarnation fences an older one.
      group_sizes: rows B of each group (group -> B).
      timeout_s: how long to wait for the server to be there and to answer the hello.
      keys: folder or file of the keys that the server wants, where its stream is encrypted.
      check: called now and then while it waits at an address that the server's next life may not have.

    Raises:
      SpecMismatch: the two ends mean different arrays; names the leaf. StreamTimeout: no server answered in time.
      StreamClosed: the server refused (the message says why), or `check` raised it. ConfigError: the address cannot be.
      AccessDenied: the keys are missing, or another run's.
    """
    check_producer(client)
    road = road_of(address)
    return road.connect_inference(address, spec, client, group_sizes, timeout_s, keys=keys, check=check)
