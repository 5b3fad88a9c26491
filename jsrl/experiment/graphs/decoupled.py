"""SRL's decoupled architecture, made from any graph: inference servers and learner use different devices.

`python experiments/run.py impala --num-actors 4 --graph jsrl.experiment.graphs.decoupled:own_devices`

SRL (arXiv 2306.16688) decouples policy workers from trainers, so that each scales independently and an update never delays an
action. With two or more accelerators, the servers use the last one and the learner the others; with one, the servers act on
CPU.
"""

from __future__ import annotations

from jsrl.experiment.graphs.seed import beside_learner
from jsrl.extend import Graph


def own_devices(graph: Graph) -> Graph:
    """Let two inference servers, on a device without the learner, act for all actors."""
    graph = beside_learner(graph)
    graph = graph.replace("inference-0", own_device=True)
    return graph.scale("inference", 2)
