"""Inline and remote inference in one run: some actors evaluate the policy themselves, a server acts for the others.

`python experiments/run.py ppo_cartpole --num-actors 4 --graph jsrl.experiment.graphs.mixed:half_inline`

In SRL (arXiv 2306.16688) each actor names the streams that it uses, so that inline and remote inference can be mixed: spare
CPU cores evaluate the policy themselves, and the accelerator acts for the others.
"""

from __future__ import annotations

from jsrl.experiment.graphs.seed import beside_learner
from jsrl.extend import Graph


def half_inline(graph: Graph) -> Graph:
    """Let every second actor evaluate the policy itself; an inference server acts for the others."""
    graph = beside_learner(graph)
    for actor in graph.family("actor")[1::2]:
        graph = graph.connect(actor.name, inference=None, params=graph.params)
    return graph
