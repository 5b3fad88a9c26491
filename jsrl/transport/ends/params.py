"""The params stream inside one process: serial mode, notebooks, tests."""

from __future__ import annotations

import threading
import time
import weakref
from typing import NamedTuple

import numpy as np

from jsrl.errors import StreamClosed, StreamTimeout
from jsrl.transport.wire.schema import Leaf, compare_schemas, flatten_schema
from jsrl.types import version_updates

_CHECK_S = 0.25  # how often a wait checks whether it can still succeed


class Latest(NamedTuple):
    """The newest params of a policy."""

    version: int
    values: list[np.ndarray]


class LatestStore:
    """The newest params of each policy, and a bell; its arrays are never modified."""

    def __init__(self) -> None:
        self.latest: dict[int, Latest] = {}
        self.changed = threading.Condition()

    def put(self, policy: int, version: int, values: list[np.ndarray]) -> None:
        """Replace the params of a policy; the store then owns `values`."""
        with self.changed:
            self.latest[policy] = Latest(version, values)
            self.changed.notify_all()


class StoreReader:
    """A ParamsSubscriber that reads a store of its process."""

    def __init__(self, address: str, store: LatestStore) -> None:
        self.address, self._store = address, store
        self._seen: dict[int, int] = {}  # policy -> version
        self._closed = False

    def _check(self) -> None:
        """Raise the reason why nothing can come any more."""
        if self._closed:
            raise StreamClosed(f"the params subscriber {self.address} is closed.")

    def poll(self, policy: int = 0) -> tuple[int, list[np.ndarray]] | None:
        self._check()
        found = self._store.latest.get(policy)
        if found is None or self._seen.get(policy) == found.version:
            return None
        self._seen[policy] = found.version
        return found.version, [array.copy() for array in found.values]

    def wait(self, policy: int, min_updates: int, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        with self._store.changed:
            while True:
                self._check()
                found = self._store.latest.get(policy)
                if found is not None and version_updates(found.version) >= min_updates:
                    return
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    raise too_late(self.address, policy, min_updates, timeout_s, found and found.version)
                self._store.changed.wait(min(left_s, _CHECK_S))

    def close(self) -> None:
        self._closed = True


def too_late(address: str, policy: int, min_updates: int, timeout_s: float, version: int | None) -> StreamTimeout:
    have = "none was published yet" if version is None else f"the latest has {version_updates(version)} updates"
    return StreamTimeout(
        f"{address}: no params of policy {policy} with at least {min_updates} updates within {timeout_s} s; {have}."
    )


_stores: weakref.WeakValueDictionary[str, LatestStore] = weakref.WeakValueDictionary()
_stores_lock = threading.Lock()


def _store(name: str) -> LatestStore:
    with _stores_lock:
        store = _stores.get(name)
        if store is None:
            store = _stores[name] = LatestStore()
        return store


class LocalParamsPublisher:
    """The writing end of `local:NAME`; published params stay readable as long as this object or a reader exists."""

    def __init__(self, name: str):
        self.address = f"local:{name}"
        self._store = _store(name)
        self._schemas: dict[int, tuple[Leaf, ...]] = {}
        self._closed = False

    def publish(self, policy: int, version: int, values: list[np.ndarray]) -> None:
        if self._closed:
            raise StreamClosed(f"the params publisher {self.address} is closed.")
        leaves = flatten_schema(list(values))
        compare_schemas(self._schemas.setdefault(policy, leaves), leaves, f"policy {policy}", "the new params")
        self._store.put(policy, version, [np.array(value) for value in values])

    def close(self) -> None:
        self._closed = True


class LocalParamsSubscriber(StoreReader):
    """The reading end of `local:NAME`."""

    def __init__(self, name: str):
        super().__init__(f"local:{name}", _store(name))
