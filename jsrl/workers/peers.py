"""The worker at the other end of a stream, and how to reconnect when it was restarted.

The run's name service says which incarnation of a worker has bound a stream. When a stream closes, the worker connects to the
next incarnation's address. Until there is one, it waits, as for a slow peer: the controller decides about restarts.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from jsrl.errors import StreamClosed, StreamTimeout
from jsrl.services.runs.names import FileNames
from jsrl.services.runs.values import Registration
from jsrl.transport.base import ParamsSubscriber, remaining
from jsrl.transport.door.hello import Check
from jsrl.workers.jobs import CONNECT_TIMEOUT_S

POLL_S = 0.5  # between checks of a name
CONNECT_S = 2.0  # for a bound stream to answer a hello, in the first attempt
MAX_CONNECT_S = 8.0  # in later ones: a meeting takes up to six round trips; a worker has `deadlines.leave_s` to stop
CLOSED_S = 60.0  # a peer closes its streams before its process ends, which the controller limits (deadlines.snapshot_s)
REFUSED_S = 5.0  # a living peer that refuses this worker for longer has a reason
ELSEWHERE_S = 60.0  # the same for a peer on another host: a lost host is noticed late
SUSPECT_S = 30.0  # how long other servers are tried before a server on another host whose connection broke
T = TypeVar("T")


class Peer:
    """The worker behind a name, as known since the last connection.

    Args:
      names: of the run. name: of the stream, such as `samples`. known: the registration this worker is connected to.
    """

    def __init__(self, names: FileNames, name: str, known: Registration) -> None:
        self.name, self.known, self._names = name, known, names
        self._poll_at_s = time.monotonic() + POLL_S

    @property
    def is_elsewhere(self) -> bool:
        return not self.known.host

    def find(self, timeout_s: float) -> Registration | None:
        """Return the current registration of the name, waiting up to `timeout_s` for one; None: there is none."""
        try:
            return self._names.lookup(self.name, timeout_s)
        except StreamTimeout:
            return None

    def is_known(self, found: Registration) -> bool:
        known = self.known
        return (found.name, found.incarnation, found.pid) == (known.name, known.incarnation, known.pid)

    def mark_suspect(self, found: Registration) -> None:
        """Note that a registration does not answer; there is no other."""

    def check(self) -> None:
        """Check, at most every half second, that the peer is alive.

        Raises:
          StreamClosed: it has died, or was replaced.
        """
        if time.monotonic() < self._poll_at_s:
            return
        self._poll_at_s = time.monotonic() + POLL_S
        found = self.find(0.0)
        if found is None or not self.is_known(found):
            raise StreamClosed(self._why(found))

    def _why(self, found: Registration | None) -> str:
        who = f"process {self.known.pid}, incarnation {self.known.incarnation}"
        return f"{self.known.name} at {self.known.address}: {who}, is gone."


class Connector(Generic[T]):
    """Connects to the worker behind a name: at the start, and again to its next incarnations.

    A living peer that rejects this worker is asked again for a while: it may not have seen yet that its predecessor ended.

    Args:
      peer: that worker. connect: (registration, seconds, check) -> an end; it calls `check` now and then as it waits.
    """

    def __init__(self, peer: Peer, connect: Callable[[Registration, float, Check], T]) -> None:
        self.peer, self._connect = peer, connect
        self._unanswered: StreamTimeout | None = None
        self.reset()

    def reset(self) -> None:
        """Begin anew to count the time of refusals: the peer takes this worker, or there is none."""
        self._since_s, self._connect_s = math.inf, CONNECT_S

    def pause(self, refusal: StreamClosed, limit_s: float) -> None:
        """Pause before the next try. Raises the refusal once it has lasted for `limit_s`."""
        now_s = time.monotonic()
        self._since_s = min(self._since_s, now_s)
        if now_s - self._since_s > limit_s:
            raise refusal
        time.sleep(0.05)

    def first(self) -> T:
        """Return an end, waiting for the worker to answer, or for its next incarnation. Raises StreamTimeout."""
        deadline_s = time.monotonic() + CONNECT_TIMEOUT_S
        while (end := self.connect(remaining(deadline_s), remaining(deadline_s))) is None:
            if time.monotonic() >= deadline_s:
                raise self._unanswered or StreamTimeout(f"no incarnation of {self.peer.name} was found.")
        return end

    def connect(self, timeout_s: float, answer_s: float = 0.0) -> T | None:
        """Return an end, connected to the present incarnation; None: there is none, or it does not answer: call again.

        Args:
          timeout_s: for a registration. answer_s: for the answer, if that is longer than usual.

        Raises:
          StreamClosed: it is alive, but has refused this worker for a while, or not answered it from another host. About one
            on this host that does not answer, the controller decides.
        """
        found = self.peer.find(timeout_s)
        if found is None:
            self.reset()
            return None

        def check() -> None:
            if self.peer.find(0.0) != found:
                raise StreamTimeout(f"{found.name} at {found.address} has ended, or another one has taken its place.")

        try:
            end = self._connect(found, max(answer_s, self._connect_s), check)
        except StreamTimeout as silence:
            self._unanswered = silence
            if not found.host:
                self.peer.mark_suspect(found)
                self._connect_s = min(2 * self._connect_s, MAX_CONNECT_S)
                told = f"{found.name} is registered on another host, but does not answer this worker: {silence}"
                self.pause(StreamClosed(told), ELSEWHERE_S)
            return None
        except StreamClosed as refusal:  # it may be ending
            self.pause(refusal, REFUSED_S if found.host else ELSEWHERE_S)
            return None
        self.reset()
        self.peer.known = found
        return end


class FailoverPeer(Peer):
    """The first registered of several equivalent workers: the assigned one, or a substitute while that one is gone.

    Args:
      names: of the run. candidates: names, the assigned one first. known: the registration this worker is connected to.
    """

    def __init__(self, names: FileNames, candidates: Sequence[str], known: Registration) -> None:
        super().__init__(names, candidates[0], known)
        self._candidates = candidates
        self._suspect: Registration | None = None
        self._suspect_until_s = 0.0

    @property
    def is_away(self) -> bool:
        return self.known.name != self.name

    def mark_suspect(self, found: Registration) -> None:
        """Note that it does not answer: its host may be lost, so others are tried first for a while."""
        self._suspect, self._suspect_until_s = found, time.monotonic() + SUSPECT_S

    def find(self, timeout_s: float) -> Registration | None:
        """Return the first registration among the candidates, waiting up to `timeout_s` for the assigned one."""
        suspect = self._suspect if time.monotonic() < self._suspect_until_s else None
        found = first_present(self._names, self._candidates, suspect) or first_present(self._names, self._candidates)
        return found or super().find(timeout_s)

    def _why(self, found: Registration | None) -> str:
        if found is not None and self.is_away and found.name == self.name:
            return f"{self.name} is back; {self.known.name} was its substitute."
        return super()._why(found)


def first_present(
    names: FileNames, candidates: Sequence[str], suspect: Registration | None = None
) -> Registration | None:
    """Return the first of these names' registrations that differs from `suspect`, else None."""
    for name in candidates:
        with contextlib.suppress(StreamTimeout):
            found = names.lookup(name, 0.0)
            if found != suspect:
                return found
    return None


class FollowingParams:
    """A ParamsSubscriber that reconnects to the next incarnation of its publisher, at any address."""

    def __init__(self, peer: Peer, connect: Callable[[str], ParamsSubscriber]) -> None:
        self._peer, self._connect = peer, connect
        self._end = connect(peer.known.address)
        self._poll_at_s = time.monotonic() + POLL_S

    def _follow(self) -> ParamsSubscriber:
        now_s = time.monotonic()
        if now_s >= self._poll_at_s:
            self._poll_at_s = now_s + POLL_S
            found = self._peer.find(0.0)
            if found is not None and found.address != self._peer.known.address:  # else the subscriber reconnects itself
                end = self._connect(found.address)
                self._end.close()
                self._peer.known, self._end = found, end
        return self._end

    def poll(self, policy: int = 0) -> tuple[int, list[Any]] | None:
        return self._follow().poll(policy)

    def wait(self, policy: int, min_updates: int, timeout_s: float) -> None:
        self._follow().wait(policy, min_updates, timeout_s)

    def close(self) -> None:
        self._end.close()
