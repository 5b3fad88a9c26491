"""Architectures of the literature, made from any graph: which workers compute the actions, and on which devices.

`jsrl run impala --num-actors 4 --graph jsrl.experiment.graphs.architectures:all_inline`

Source: IMPALA, arXiv 1802.01561; SEED RL, arXiv 1910.06591; SRL, arXiv 2306.16688.
"""

from __future__ import annotations

from jsrl.extend import Graph, Stream, node


def all_inline(graph: Graph) -> Graph:
    """IMPALA, in SRL's words inline inference: every actor evaluates the policy itself, on its CPU.

    Nothing waits for another process; V-trace corrects for stale params.
    """
    for actor in graph.family("actor"):
        graph = graph.connect(actor.name, inference=None, params=graph.params)
    return graph.without("inference") if graph.family("inference") else graph


def beside_learner(graph: Graph) -> Graph:
    """SEED: one inference server on the learner's device acts for all actors, which only step environments."""
    graph = all_inline(graph)
    groups = {actor.name: graph.groups(actor.end("samples")) for actor in graph.family("actor")}
    every = tuple(sorted(group for own in groups.values() for group in own))
    server = node("inference-0", "inference", inference=("inference", every), params=graph.params)
    graph = graph.add(server, Stream("inference", "inference", groups=every))
    for actor, own in groups.items():
        graph = graph.connect(actor, params=None, inference=("inference", own))
    return graph


def own_devices(graph: Graph) -> Graph:
    """SRL, decoupled: two inference servers on a device without the learner, so that an update never delays an action.

    With two or more accelerators the servers use the last one and the learner the others; with one they act on CPU.
    """
    graph = beside_learner(graph).replace("inference-0", own_device=True)
    return graph.scale("inference", 2)


def half_inline(graph: Graph) -> Graph:
    """Inline and remote inference in one run, as in SRL: every second actor acts itself, on a spare CPU core."""
    graph = beside_learner(graph)
    for actor in graph.family("actor")[1::2]:
        graph = graph.connect(actor.name, inference=None, params=graph.params)
    return graph
