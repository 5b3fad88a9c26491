"""What the ends of a stream of sort `ranks` promise: small messages between the first rank of a learner and the others."""

from __future__ import annotations

from typing import Protocol

from jsrl.errors import StreamTimeout


class FirstRank(Protocol):
    """The end that binds.

    Attributes:
      address: that others connect to.
    """

    address: str

    def hear(self, timeout_s: float) -> list[tuple[bytes, bytes]]:
        """Return (sender, message) pairs, waiting so long for the first."""
        ...

    def tell(self, receiver: bytes, message: bytes) -> None:
        """Send a message to who sent one."""
        ...

    def close(self) -> None:
        """Leave the stream. May be called twice."""
        ...


class OtherRank(Protocol):
    """An end that connects."""

    def say(self, message: bytes) -> None:
        """Send a message."""
        ...

    def hear(self, timeout_s: float) -> bytes | None:
        """Return a message, waiting for it; None: none came."""
        ...

    def look(self) -> None:
        """Look at the connection.

        Raises:
          AccessDenied: the other end does not take this one's keys, or this end not the other's.
        """
        ...

    def no_answer(self, timeout_s: float) -> StreamTimeout:
        """Return the error for an end that does not answer."""
        ...

    def close(self) -> None:
        """Leave the stream. May be called twice."""
        ...
