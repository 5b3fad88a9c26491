"""A Ray cluster of several nodes on this machine in a separate process: `python -m tests.system.ray_cluster COUNT CPUS`.

It prints the address of the head, then reads commands from its input: `remove N` kills a node without notice, `add` starts
one; each prints `done`. The head has no CPUs. It ends with its input.
"""

from __future__ import annotations

import sys

from ray.cluster_utils import Cluster

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": "dashboard" in sys.argv})
cpus = int(sys.argv[2])
nodes = [cluster.add_node(num_cpus=cpus, object_store_memory=75 << 20) for _ in range(int(sys.argv[1]))]
sys.stdout.write(f"{cluster.address} {cluster.head_node.webui_url or '-'}\n")
sys.stdout.flush()
for line in sys.stdin:
    words = line.split()
    if words[0] == "remove":
        cluster.remove_node(nodes[int(words[1])], allow_graceful=False)
    elif words[0] == "add":
        nodes.append(cluster.add_node(num_cpus=cpus, object_store_memory=75 << 20))
    sys.stdout.write("done\n")
    sys.stdout.flush()
cluster.shutdown()
