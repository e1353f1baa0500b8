"""A Ray cluster of three nodes on this machine, in a process that ends with its parent.

Prints the head's address. Each line on stdin kills a node (its number; 0: the head) as a lost
machine would be; when stdin ends, the cluster is removed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile


class RayNodes:
    """The test's side."""

    def __init__(self):
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        self.address = self._process.stdout.readline().strip()

    def kill(self, node):
        self._process.stdin.write(f"{node}\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "killed\n"

    def close(self):
        self._process.communicate()


def main():
    """Serve until stdin ends."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    folder = tempfile.mkdtemp(prefix="ray-")
    every = {"num_cpus": 2, "object_store_memory": 80 << 20}
    cluster = Cluster()
    try:
        nodes = [cluster.add_node(include_dashboard=False, temp_dir=folder, **every)]
        nodes += [cluster.add_node(**every) for _ in range(2)]
        print(cluster.address, flush=True)
        for line in sys.stdin:
            for some in nodes[int(line)].all_processes.values():
                for each in some:
                    each.process.kill()
            print("killed", flush=True)
    finally:
        cluster.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
