"""Makes the ends of a params stream from an address.

The address selects the transport (jsrl.transport.transports).
"""

from __future__ import annotations

from typing import Any

from jsrl.transport.base import ParamsPublisher, ParamsSubscriber
from jsrl.transport.meeting.keys import KeyPath
from jsrl.transport.transports import transport_of


def bind_params(address: str, *, keys: KeyPath = None, **options: Any) -> ParamsPublisher:
    """Return the publishing end at `address`; its `.address` is for subscribers (tcp port 0: a free port).

    Args:
      address: where to bind. options: of the transport's publisher (shm: `checksum`).
      keys: folder or file of the keys (jsrl.transport.meeting.keys) for encryption and access; tcp needs
        them, even on loopback. The other transports do not leave the host and need none.

    Raises:
      ConfigError: the address is invalid or taken.
    """
    return transport_of(address).bind_params(address, keys=keys, **options)


def connect_params(address: str, *, keys: KeyPath = None, **options: Any) -> ParamsSubscriber:
    """Return the reading end; the publisher may start later, end, and restart.

    Args:
      address: the publisher's. options: of the transport's subscriber.
      keys: folder or file of the publisher's keys, if its stream is encrypted; missing or wrong keys raise
        AccessDenied in `poll` or `wait`.

    Raises:
      ConfigError: the address is invalid.
    """
    return transport_of(address).connect_params(address, keys=keys, **options)
