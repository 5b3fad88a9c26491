"""The params of frozen players in a worker that acts: loaded on request, within a limit of bytes.

A request may need several players at once. The request that waits longest is served first, and its players stay until all are
loaded: otherwise two requests could evict each other's players for ever.
Players of open episodes may be evicted, and are loaded again when they act: no request waits for the end of an episode.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from jsrl.directors.messages import INITIAL
from jsrl.errors import ConfigError, SnapshotError
from jsrl.services.runs.limits import MIB
from jsrl.services.snapshots.players import PLAYERS_FOLDER, PlayerStore, SentPlayers
from jsrl.types import Tree
from jsrl.workers.jobs import Job


class FrozenParams:
    """Params by version; the least recently used ones are evicted first.

    Args:
      load: version -> leaves of its params; raises SnapshotError. as_params: leaves -> params for `act`.
      max_bytes: most bytes kept, but always all players of one request.
      background: load in a thread, so that other requests are served meanwhile.

    Attributes:
      misses: loads so far. size_bytes: bytes kept.
    """

    def __init__(
        self,
        load: Callable[[int], list[np.ndarray]],
        as_params: Callable[[list[np.ndarray]], Tree],
        *,
        max_bytes: int,
        background: bool,
    ) -> None:
        self._load, self._as_params, self._max_bytes = load, as_params, max_bytes
        # version -> params, bytes; least recently used first
        self._kept: OrderedDict[int, tuple[Tree, int]] = OrderedDict()
        # waiting owners, longest first -> the versions that they need
        self._waiting: dict[Hashable, frozenset[int]] = {}
        self._thread = ThreadPoolExecutor(1, "frozen-players") if background else None
        self._loading: tuple[int, Future[list[np.ndarray]]] | None = None
        self._failed: dict[int, BaseException] = {}
        self.misses = self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, version: int) -> Tree:
        """Return the params of a version for which `take` returned True."""
        return self._kept[version][0]

    def receive(self) -> None:
        """Store the params that the thread has loaded. May evict params that were taken before."""
        if self._loading is None or not self._loading[1].done():
            return
        (version, loaded), self._loading = self._loading, None
        error = loaded.exception()
        if error is None:
            self._keep(version, loaded.result())
        else:
            self._failed[version] = error

    def take(self, owner: Hashable, versions: Collection[int]) -> bool:
        """Return whether all these versions are loaded, until the next `receive`; if not, call again with the same owner.

        Without a thread they always are, until the next `take`.

        Raises:
          SnapshotError: one of them cannot be loaded; the owner no longer waits.
        """
        if not self._has(versions):
            self._waiting[owner] = frozenset(versions)
            if next(iter(self._waiting)) == owner:
                self._fetch(owner, versions)
            if not self._has(versions):
                return False
        for version in versions:
            self._kept.move_to_end(version)
        self._waiting.pop(owner, None)
        return True

    def _has(self, versions: Collection[int]) -> bool:
        return all(version in self._kept for version in versions)

    def forget(self, owner: Hashable) -> None:
        """Wait no longer for the versions that an owner needed."""
        self._waiting.pop(owner, None)

    def _fetch(self, owner: Hashable, versions: Collection[int]) -> None:
        """Start loading what is missing; without a thread, load it."""
        for version in versions:
            if version in self._kept or self._loading is not None:
                continue
            try:
                if version in self._failed:
                    raise self._failed.pop(version)
                self.misses += 1
                if self._thread is None:
                    self._keep(version, self._load(version))
                else:
                    self._loading = version, self._thread.submit(self._load, version)
            except BaseException:
                self.forget(owner)
                raise

    def _keep(self, version: int, values: list[np.ndarray]) -> None:
        size = sum(value.nbytes for value in values)
        needed: Collection[int] = next(iter(self._waiting.values()), ())
        for old in [v for v in self._kept if v not in needed]:
            if self.size_bytes + size <= self._max_bytes:
                break
            self.size_bytes -= self._kept.pop(old)[1]
        self._kept[version] = self._as_params(values), size
        self.size_bytes += size

    def figures(self) -> dict[str, Any]:
        return {
            "frozen_players": len(self),
            "frozen_mib": self.size_bytes / MIB,
            "frozen_loads": self.misses,
        }

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)


def players_of(job: Job) -> PlayerStore:
    """Return the frozen players of a job's policy."""
    kind = SentPlayers if job.place.away else PlayerStore
    return kind(Path(job.folder, PLAYERS_FOLDER, job.part.folder))


def check_players(job: Job) -> None:
    """Check, before a resumed run starts, that the frozen players of a learner's policy are there and unchanged."""
    store, run = players_of(job), Path(job.folder).name
    try:
        store.check()
    except SnapshotError as error:
        raise ConfigError(f"{run} cannot be resumed: {error}") from error
    if job.run.keeps_initial and INITIAL not in store.names():
        raise ConfigError(
            f"{run} has no frozen player {INITIAL}: it started without --evaluator.against {INITIAL}. Name a snapshot of "
            "another run: RUN@TAG."
        )


def frozen_players(job: Job, *, background: bool) -> Callable[..., FrozenParams]:
    """Return the function that makes the frozen players of an engine."""
    max_bytes = job.experiment.inference.frozen_mb * MIB
    return functools.partial(FrozenParams, players_of(job).load, max_bytes=max_bytes, background=background)
