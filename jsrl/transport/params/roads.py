"""Make the ends of a params road from an address.

`local:NAME` (this process), `shm:FOLDER/NAME` (this host), `tcp://HOST:PORT` and `ipc://PATH` (ZeroMQ).
"""

from __future__ import annotations

from typing import Any

from jsrl.errors import ConfigError
from jsrl.transport.base import ParamsPublisher, ParamsSubscriber
from jsrl.transport.meeting.keys import KeyPath

_SCHEMES = "local:NAME, shm:FOLDER/NAME, tcp://HOST:PORT or ipc://PATH"


def bind_params(address: str, *, keys: KeyPath = None, **options: Any) -> ParamsPublisher:
    """Return the publishing end at `address`; its `.address` is what subscribers connect to (tcp port 0: a free one).

    Args:
      address: where. options: as the road's publisher takes them (shm: `checksum`).
      keys: folder or file of the keys (jsrl.transport.meeting.keys) that encrypt, and keep out who has none; tcp needs
        them, on loopback too. The other roads do not leave the host, and need none.

    Raises:
      ConfigError: the address cannot be, or is taken.
    """
    scheme, _, rest = address.partition(":")
    if scheme == "local":
        from jsrl.transport.params.local import LocalParamsPublisher

        return LocalParamsPublisher(rest, **options)
    if scheme == "shm":
        from jsrl.transport.params.shared import SharedParamsPublisher

        return SharedParamsPublisher(rest, **options)
    if scheme in ("tcp", "ipc"):
        from jsrl.transport.params.zmq import ZmqParamsPublisher

        return ZmqParamsPublisher(address, keys=keys, **options)
    raise ConfigError(f"the params address {address!r} has no known scheme; expected {_SCHEMES}.")


def connect_params(address: str, *, keys: KeyPath = None, **options: Any) -> ParamsSubscriber:
    """Return the reading end; the publisher may come later, go, and come back.

    Args:
      address: the publisher's. options: as the road's subscriber takes them.
      keys: folder or file of the keys that the publisher wants, where its road is encrypted; missing or wrong ones show as
        AccessDenied when params are polled or waited for.

    Raises:
      ConfigError: the address cannot be.
    """
    scheme, _, rest = address.partition(":")
    if scheme == "local":
        from jsrl.transport.params.local import LocalParamsSubscriber

        return LocalParamsSubscriber(rest, **options)
    if scheme == "shm":
        from jsrl.transport.params.shared import SharedParamsSubscriber

        return SharedParamsSubscriber(rest, **options)
    if scheme in ("tcp", "ipc"):
        from jsrl.transport.params.zmq import ZmqParamsSubscriber

        return ZmqParamsSubscriber(address, keys=keys, **options)
    raise ConfigError(f"the params address {address!r} has no known scheme; expected {_SCHEMES}.")
