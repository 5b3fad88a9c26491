"""Learners of several ranks: processes, on one host or several, that make each update together.

Rank 0 is the learner. A stream of sort `ranks` joins the others to it: over it they agree before each update.
"""

from __future__ import annotations

from typing import Literal

from jsrl.graph.graph import Graph, WorkerNode

RANKS: Literal["ranks"] = "ranks"  # the port, the sort of the stream, and its name


def ranks_of(graph: Graph, worker: WorkerNode) -> list[WorkerNode]:
    """Return all ranks of the learner that a worker is, or is a rank of, the learner first; of any other worker itself."""
    link = worker.link(RANKS)
    if link is None:
        return [worker]
    return [w for w, _ in (*graph.sinks(link.stream), *graph.sources(link.stream))]
