"""Two policies in one run: a second learner trains another policy on half of the environments.

`python experiments/run.py ppo_cartpole --num-actors 4 --graph jsrl.experiment.graphs.two_policies:second_seed`
"""

from __future__ import annotations

from jsrl.extend import Graph, with_policy


def second_seed(graph: Graph) -> Graph:
    """Train the policy `b` from another seed on the last half of the groups."""
    groups = graph.stream("samples").groups
    return with_policy(graph, "b", groups[len(groups) // 2 :], {"seed": 1_000})
