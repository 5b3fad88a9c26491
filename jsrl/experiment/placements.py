"""Placements: where the workers of a run are, what steps, acts and trains there, and what carries their streams."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from jsrl.transport.stream import Stream

Carrier: TypeAlias = Literal["local", "shared-memory", "zeromq"]  # of streams: in the one process, or between several
PlacementName: TypeAlias = Literal["auto", "serial", "inline", "served", "apart", "fused", "fused-serial"]
TOGETHER: PlacementName = "fused-serial"  # of several runs that share a compiled program


@dataclass(frozen=True)
class Placement:
    """Where the workers of a run are.

    Attributes:
      processes: each worker has a process of its own; else all take turns in the launching one.
      serves: inference servers act, unless a policy says otherwise; else those who step the environments act themselves.
        serves_alone: they have a device without the learner.
      trains: kind of the workers that train the policies. has_actors: actors step the environments; else those do.
      transport: of streams between processes, as the experiment says.
    """

    processes: bool = True
    serves: bool = False
    serves_alone: bool = False
    trains: str = "learner"
    has_actors: bool = True
    transport: Carrier = "shared-memory"

    @property
    def waits(self) -> bool:
        """Return whether a worker's step may wait for messages: in one process nobody would send them meanwhile."""
        return self.processes

    @property
    def is_ordered(self) -> bool:
        """Return whether rows always come in the same order, so that the seed fixes every bit."""
        return not (self.processes and self.has_actors)

    @property
    def shares_memory(self) -> bool:
        """Return whether streams between processes of one host are in shared memory."""
        return self.processes and self.transport == "shared-memory"

    @property
    def uses_zeromq(self) -> bool:
        return self.processes and self.transport == "zeromq"

    def channel(self, stream: Stream) -> str:
        """Return what carries a stream between workers of one host: a Carrier, or the stream's own transport."""
        if not self.processes:
            return "local"
        if stream.transport:
            return stream.transport
        return "zeromq" if stream.type == "ranks" else self.transport


PLACEMENTS: dict[str, Placement] = {
    "serial": Placement(processes=False),
    "inline": Placement(),
    "served": Placement(serves=True),
    "apart": Placement(serves=True, serves_alone=True),
    "fused": Placement(trains="fused", has_actors=False),
    "fused-serial": Placement(processes=False, trains="fused", has_actors=False),
}
