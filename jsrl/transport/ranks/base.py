"""Protocols of a stream of type `ranks`: small messages between the first rank of a learner and the others."""

from __future__ import annotations

from typing import Protocol

from jsrl.errors import StreamTimeout


class FirstRank(Protocol):
    """The binding end.

    Attributes:
      address: for the others.
    """

    address: str

    def receive(self, timeout_s: float) -> list[tuple[bytes, bytes]]:
        """Return (sender, message) pairs; wait up to `timeout_s` for the first."""
        ...

    def speaks_for(self, sender: bytes, worker: str) -> bool:
        """Return whether a sender may use the name of a worker."""
        ...

    def send(self, receiver: bytes, message: bytes) -> None:
        """Send a message to a sender."""
        ...

    def close(self) -> None:
        """Close the stream. May be called twice."""
        ...


class OtherRank(Protocol):
    """A connecting end."""

    def send(self, message: bytes) -> None:
        """Send a message."""
        ...

    def receive(self, timeout_s: float) -> bytes | None:
        """Return a message, waiting up to `timeout_s`; None: none came."""
        ...

    def look(self) -> None:
        """Check the connection.

        Raises:
          AccessDenied: the other end rejects this end's key, or the reverse.
        """
        ...

    def no_answer(self, timeout_s: float) -> StreamTimeout:
        """Return the error for an end that does not answer."""
        ...

    def close(self) -> None:
        """Close the stream. May be called twice."""
        ...
