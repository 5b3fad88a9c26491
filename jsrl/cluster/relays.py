"""The params on a joined host: fetched once for all its workers, and relayed to the hosts below it in the tree."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from jsrl.errors import JsrlError
from jsrl.graph.addresses import tcp
from jsrl.services.runs.values import Registration
from jsrl.transport.door.keys import named_by_key
from jsrl.transport.network.relay import ParamsRelay


class HostRelays:
    """A relay for each params stream that workers of this host read.

    Args:
      memory: folder in shared memory. keys: folder of this host's keys. notify: shows a line to the user.

    Attributes:
      addresses: stream -> address for relays of other hosts, with this host's key in it.
    """

    def __init__(self, memory: Path, keys: Path, notify: Callable[[str], None]) -> None:
        self._memory, self._keys, self._notify = memory, keys, notify
        self._relays: dict[str, ParamsRelay] = {}
        self._failed: set[str] = set()
        self.addresses: dict[str, str] = {}

    def follow(self, parents: Mapping[str, Sequence[str]], own_address: str) -> None:
        """Relay exactly these streams: stream -> addresses to fetch it from, the parent's first."""
        for name in set(self._relays) - set(parents):
            self._end(name)
        for name in set(parents) - self._failed:
            if name not in self._relays:
                self._begin(name, own_address)
            if name in self._relays:
                self._relays[name].follow(parents[name])
        for name, relay in list(self._relays.items()):
            if relay.failure:
                self._fail(name, relay.failure)

    def _begin(self, name: str, own_address: str) -> None:
        try:
            relay = ParamsRelay(f"shm:{self._memory}/{name}", tcp(own_address), self._keys)
        except (JsrlError, OSError) as error:
            self._fail(name, str(error))
            return
        self._relays[name], self.addresses[name] = relay, named_by_key(relay.address, self._keys)

    def _fail(self, name: str, why: str) -> None:
        self._end(name)
        self._failed.add(name)
        self._notify(f"each worker here fetches {name} for itself, because this host cannot relay it: {why}")

    def _end(self, name: str) -> None:
        self.addresses.pop(name, None)
        if (relay := self._relays.pop(name, None)) is not None:
            relay.close()

    def shown(self, entries: Iterable[Registration]) -> list[Registration]:
        """Return the names of a run for workers of this host: they read relayed params in shared memory."""
        return [
            dataclasses.replace(entry, address=f"shm:{self._memory}/{entry.name}")
            if entry.name in self._relays
            else entry
            for entry in entries
        ]

    def close(self) -> None:
        for name in list(self._relays):
            self._end(name)
