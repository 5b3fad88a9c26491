"""IMPALA's architecture out of any other: every actor acts by itself, on its CPU, with the newest params.

`python experiments/run.py impala --num-actors 4 --graph jsrl.graphs.impala:all_inline`

IMPALA (arXiv 1802.01561): actors keep a copy of the policy and send trajectories to a central learner; V-trace corrects for
params that are behind. SRL (arXiv 2306.16688) calls this inline inference: nothing waits for another process, but the actors
need CPU for the network.
"""

from __future__ import annotations

from jsrl.graph.graph import Graph


def all_inline(graph: Graph) -> Graph:
    """Let every actor act by itself; inference servers go."""
    for actor in graph.family("actor"):
        graph = graph.connect(actor.name, inference=None, params=graph.params)
    return graph.without("inference") if graph.family("inference") else graph
