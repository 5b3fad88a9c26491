"""Who is at the other end of a stream, and what to do once that is somebody else: a worker outlives those it talks to.

The names of a run say which life of a worker has bound a stream. A stream that closed is taken up again at the next life's
address; while there is none, its worker waits, as it would for a slow peer: the controller decides whether one will come.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any

from jsrl.errors import StreamClosed, StreamTimeout
from jsrl.runs.names import NameService, Registration
from jsrl.transport.base import ParamsSubscriber

LOOK_S = 0.5  # between looks at a name
CONNECT_S = 2.0  # for a bound stream to answer a hello
REFUSED_S = 5.0  # after which a living peer that does not take this worker back has a reason


class Peer:
    """The worker behind a name, as known since the last connection.

    Args:
      names: of the run. name: such as `samples`. known: whom this worker is connected to.
    """

    def __init__(self, names: NameService, name: str, known: Registration) -> None:
        self.name, self.known, self._names = name, known, names
        self._look_at_s = time.monotonic() + LOOK_S

    def find(self, timeout_s: float) -> Registration | None:
        """Return who lives behind the name now, waiting up to `timeout_s` for somebody."""
        try:
            return self._names.lookup(self.name, timeout_s)
        except StreamTimeout:
            return None

    def is_known(self, found: Registration) -> bool:
        """Return whether this is the life that this worker is connected to."""
        known = self.known
        return (found.name, found.incarnation, found.pid) == (known.name, known.incarnation, known.pid)

    def check(self) -> None:
        """Look, every half second, whether the peer still lives.

        Raises:
          StreamClosed: it has died, or was replaced.
        """
        if time.monotonic() < self._look_at_s:
            return
        self._look_at_s = time.monotonic() + LOOK_S
        found = self.find(0.0)
        if found is None or not self.is_known(found):
            raise StreamClosed(self._why(found))

    def _why(self, found: Registration | None) -> str:
        who = f"process {self.known.pid}, incarnation {self.known.incarnation}"
        return f"{self.known.name} at {self.known.address}: {who}, is gone."


class Patience:
    """Retries for a while with a living peer that refuses a worker: it may be the last moment of its predecessor."""

    def __init__(self) -> None:
        self._since_s: float | None = None

    def bear(self, refusal: StreamClosed) -> None:
        """Pause before the next try. Raises the refusal once it has been heard for `REFUSED_S`."""
        now_s = time.monotonic()
        self._since_s = self._since_s or now_s
        if now_s - self._since_s > REFUSED_S:
            raise refusal
        time.sleep(0.05)

    def end(self) -> None:
        """Note that the peer took this worker."""
        self._since_s = None


class PeerOfMany(Peer):
    """The worker behind the first of several names: one's own, or another that does the same while one's own is gone.

    Args:
      names: of the run. candidates: names, one's own first. known: whom this worker is connected to.
    """

    def __init__(self, names: NameService, candidates: Sequence[str], known: Registration) -> None:
        super().__init__(names, candidates[0], known)
        self._candidates = candidates

    @property
    def is_away(self) -> bool:
        """Return whether this worker is connected to another than its own."""
        return self.known.name != self.name

    def find(self, timeout_s: float) -> Registration | None:
        """Return who lives behind the first name that somebody lives behind, waiting up to `timeout_s` for one's own."""
        return first_present(self._names, self._candidates) or super().find(timeout_s)

    def _why(self, found: Registration | None) -> str:
        if found is not None and self.is_away and found.name == self.name:
            return f"{self.name} is back; {self.known.name} stood in for it."
        return super()._why(found)


def first_present(names: NameService, candidates: Sequence[str]) -> Registration | None:
    """Return who lives behind the first of these names that somebody lives behind."""
    for name in candidates:
        with contextlib.suppress(StreamTimeout):
            return names.lookup(name, 0.0)
    return None


class FollowingParams:
    """A ParamsSubscriber that goes over to the next life of its publisher, wherever that is bound."""

    def __init__(self, peer: Peer, connect: Callable[[str], ParamsSubscriber]) -> None:
        self._peer, self._connect = peer, connect
        self._road = connect(peer.known.address)
        self._look_at_s = time.monotonic() + LOOK_S

    def _follow(self) -> ParamsSubscriber:
        now_s = time.monotonic()
        if now_s >= self._look_at_s:
            self._look_at_s = now_s + LOOK_S
            found = self._peer.find(0.0)
            if found is not None and found.address != self._peer.known.address:  # at the same address a road follows
                road = self._connect(found.address)
                self._road.close()
                self._peer.known, self._road = found, road
        return self._road

    def poll(self, policy: int = 0) -> tuple[int, list[Any]] | None:
        """Return (version, leaves, freshly copied) when there is something new since the last poll, else None."""
        return self._follow().poll(policy)

    def wait(self, policy: int, min_updates: int, timeout_s: float) -> None:
        """Block until a version with at least `min_updates` updates can be polled. Raises StreamTimeout."""
        self._follow().wait(policy, min_updates, timeout_s)

    def close(self) -> None:
        """Leave."""
        self._road.close()
