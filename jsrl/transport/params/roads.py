"""Make the ends of a params road from an address.

Which road is taken is the address's business (jsrl.transport.roads).
"""

from __future__ import annotations

from typing import Any

from jsrl.transport.base import ParamsPublisher, ParamsSubscriber
from jsrl.transport.meeting.keys import KeyPath
from jsrl.transport.roads import road_of


def bind_params(address: str, *, keys: KeyPath = None, **options: Any) -> ParamsPublisher:
    """Return the publishing end at `address`; its `.address` is what subscribers connect to (tcp port 0: a free one).

    Args:
      address: where. options: as the road's publisher takes them (shm: `checksum`).
      keys: folder or file of the keys (jsrl.transport.meeting.keys) that encrypt, and keep out who has none; tcp needs
        them, on loopback too. The other roads do not leave the host, and need none.

    Raises:
      ConfigError: the address cannot be, or is taken.
    """
    return road_of(address).bind_params(address, keys=keys, **options)


def connect_params(address: str, *, keys: KeyPath = None, **options: Any) -> ParamsSubscriber:
    """Return the reading end; the publisher may come later, go, and come back.

    Args:
      address: the publisher's. options: as the road's subscriber takes them.
      keys: folder or file of the keys that the publisher wants, where its road is encrypted; missing or wrong ones show as
        AccessDenied when params are polled or waited for.

    Raises:
      ConfigError: the address cannot be.
    """
    return road_of(address).connect_params(address, keys=keys, **options)
