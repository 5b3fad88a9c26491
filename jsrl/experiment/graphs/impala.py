"""IMPALA's architecture, made from any graph: every actor evaluates the policy itself, on CPU, with the newest params.

`python experiments/run.py impala --num-actors 4 --graph jsrl.experiment.graphs.impala:all_inline`

IMPALA (arXiv 1802.01561): actors keep a copy of the policy and send trajectories to a central learner; V-trace corrects for
stale params. SRL (arXiv 2306.16688) calls this inline inference: nothing waits for another process, but the actors
need CPU for the network.
"""

from __future__ import annotations

from jsrl.extend import Graph


def all_inline(graph: Graph) -> Graph:
    """Let every actor evaluate the policy itself; remove inference servers."""
    for actor in graph.family("actor"):
        graph = graph.connect(actor.name, inference=None, params=graph.params)
    return graph.without("inference") if graph.family("inference") else graph
