"""Actors that act by themselves beside actors that a server acts for, in one run.

`python experiments/run.py ppo_cartpole --num-actors 4 --graph graphs.mixed:half_inline`
"""

from __future__ import annotations

from jsrl.graph.graph import Graph, Link


def half_inline(graph: Graph) -> Graph:
    """Let every second actor act by itself; an inference server acts for the others."""
    params = graph.worker("inference-0").link("params")
    for actor in graph.family("actor")[1::2]:
        samples = actor.link("samples")
        graph = graph.replace(actor.name, links=(samples, Link("params", params.stream)))
    return graph
