"""IMPALA's architecture out of any other: every actor acts by itself with the newest params.

`python experiments/run.py impala --num-actors 4 --graph graphs.impala:all_inline`
"""

from __future__ import annotations

from jsrl.graph.graph import Graph, Link


def all_inline(graph: Graph) -> Graph:
    """Let every actor act by itself; inference servers go."""
    params = graph.worker("inference-0").link("params").stream
    for actor in graph.family("actor"):
        graph = graph.replace(actor.name, links=(actor.link("samples"), Link("params", params)))
    return graph.without("inference")
