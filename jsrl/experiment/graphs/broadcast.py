"""Two learners on the same rows: every trajectory goes to both, and the actors act with the policy of the first.

`python experiments/run.py impala --num-actors 4 --graph jsrl.experiment.graphs.broadcast:two_learners`

Both read the same data, so only their own settings differ: here the seed; with other `settings`, a learning rate or a loss.
The second learns off-policy, which V-trace corrects (arXiv 1802.01561).
"""

from __future__ import annotations

from jsrl.extend import Graph, Stream, node


def two_learners(graph: Graph) -> Graph:
    """Add a second learner that trains policy `b`, with another seed, on all trajectories of the first one."""
    samples = graph.worker("learner").end("samples").stream
    second = node("learner-b", "learner", {"seed": 1_000}, samples=samples, params="params-b")
    graph = graph.add(second, Stream("params-b", "params", policy="b")).with_stream(samples, routing="broadcast")
    if graph.family("evaluator"):
        graph = graph.add(node("evaluator-b", "evaluator", params="params-b"))
    return graph
