"""Learners of several ranks: processes, on one host or several, that make each update together.

Rank 0 is the learner. A stream of type `ranks` connects it to the others; the ranks use it to agree before each update.
"""

from __future__ import annotations

from typing import Literal

from jsrl.graph.graph import Graph, WorkerNode

RANKS: Literal["ranks"] = "ranks"  # the port, the type of the stream, and its name


def ranks_of(graph: Graph, worker: WorkerNode) -> list[WorkerNode]:
    """Return all ranks of a worker's learner, the learner first; of another worker, the worker itself."""
    link = worker.link(RANKS)
    if link is None:
        return [worker]
    return [w for w, _ in (*graph.sinks(link.stream), *graph.sources(link.stream))]
