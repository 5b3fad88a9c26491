"""The ends of streams of type `ranks`; the address selects the transport."""

from __future__ import annotations

from jsrl.transport.meeting.keys import KeyPath
from jsrl.transport.ranks.base import FirstRank, OtherRank
from jsrl.transport.transports import transport_of


def bind_ranks(address: str, *, keys: KeyPath) -> FirstRank:
    """Return the first rank's end."""
    return transport_of(address).bind_ranks(address, keys=keys)


def connect_ranks(address: str, *, keys: KeyPath) -> OtherRank:
    """Return another rank's end."""
    return transport_of(address).connect_ranks(address, keys=keys)
