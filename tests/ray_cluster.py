"""A Ray cluster of several raylets on this machine, for tests: a process that ends with whoever started it.

Run with Ray on the path: prints the address of the cluster, then does what lines on standard input say: ``add``,
``remove N``, and ends where they end.
"""

from __future__ import annotations

import os
import sys
import threading
import time

os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_DEDUP_LOGS="0")

from ray.cluster_utils import Cluster

NODE = {"num_cpus": 1, "object_store_memory": 80 << 20, "include_dashboard": False}


def reap(cluster: Cluster) -> None:
    """Waits for processes that were killed. Workers end when their raylet is gone, which it is not before."""
    while True:
        for node in cluster.list_all_nodes():
            for started in list(node.all_processes.values()):
                for one in started:
                    one.process.poll()
        time.sleep(0.5)


def main(nodes: int) -> None:
    cluster = Cluster(initialize_head=True, head_node_args=NODE)
    threading.Thread(target=reap, args=(cluster,), daemon=True).start()
    others = [cluster.add_node(**NODE) for _ in range(nodes - 1)]
    print(cluster.address, flush=True)
    for line in sys.stdin:
        what, *rest = line.split()
        if what == "add":
            others.append(cluster.add_node(**NODE))
        else:
            cluster.remove_node(others.pop(int(rest[0])), allow_graceful=False)
        print("done", flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]))
