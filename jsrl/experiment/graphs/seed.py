"""SEED's architecture, made from any graph: one inference server, on the learner's device, acts for all actors.

`python experiments/run.py impala --num-actors 4 --graph jsrl.experiment.graphs.seed:beside_learner`

SEED RL (arXiv 1910.06591): the policy is evaluated on the learner's device, so that params are never sent and actors only
step environments. SRL (arXiv 2306.16688) places its policy workers on the trainer's node for this; updates and inference then
share one device.
"""

from __future__ import annotations

from jsrl.experiment.graphs.impala import all_inline
from jsrl.extend import Graph, Stream, node


def beside_learner(graph: Graph) -> Graph:
    """Let one inference server that shares the learner's device act for all actors."""
    graph = all_inline(graph)
    groups = {actor.name: graph.groups(actor.end("samples")) for actor in graph.family("actor")}
    every = tuple(sorted(group for own in groups.values() for group in own))
    server = node("inference-0", "inference", inference=("inference", every), params=graph.params)
    graph = graph.add(server, Stream("inference", "inference", groups=every))
    for actor, own in groups.items():
        graph = graph.connect(actor, params=None, inference=("inference", own))
    return graph
