"""A parameter server cluster for tests, in one process or in several."""

import json
import pathlib
import socket
from typing import Any

from tests import commands

# These references keep the servers running.
_servers: list[Any] = []

# A process can't leave a cluster to which TensorFlow has connected it, so each script runs in a
# process of its own.
_SCRIPT = """
import json
import sys

sys.path.insert(0, {root!r})

from tests import parameter_servers

strategy = parameter_servers.start_in_process(num_workers={workers}, num_ps={ps})
results = {{}}
{text}
print(json.dumps(results), flush=True)
parameter_servers.leave()
"""


def run_script(
    directory: pathlib.Path, text: str, *, num_workers: int = 2, num_ps: int = 1
) -> dict[str, Any]:
    """Run Python code that uses `strategy` and fills `results`; return the results."""
    script = directory / "script.py"
    root = str(commands.ROOT)
    script.write_text(_SCRIPT.format(root=root, workers=num_workers, ps=num_ps, text=text))
    result = commands.run([script])
    assert result.returncode == 0, result.stderr[-4000:]
    return json.loads(result.stdout.splitlines()[-1])


def start_in_process(num_workers: int, num_ps: int) -> Any:
    """Start parameter servers and workers in this process, and return a strategy that uses them."""
    import tensorflow as tf

    spec = tf.train.ClusterSpec(
        {
            "worker": [f"127.0.0.1:{port}" for port in free_ports(num_workers)],
            "ps": [f"127.0.0.1:{port}" for port in free_ports(num_ps)],
        }
    )
    config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=num_workers + 2)
    for job, count in (("worker", num_workers), ("ps", num_ps)):
        for index in range(count):
            server = tf.distribute.Server(
                spec, job_name=job, task_index=index, protocol="grpc", config=config
            )
            _servers.append(server)
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(spec, rpc_layer="grpc")
    return tf.distribute.ParameterServerStrategy(resolver)


def leave() -> None:
    """End the process immediately, because running servers would keep it alive."""
    import os

    os._exit(0)


def free_ports(count: int) -> list[int]:
    """Return ports on which no process listens."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


class Cluster:
    """The processes of a command under `parameter_server`; each can be started more than once.

    Args:
        command: A script and its arguments.
        num_workers: The number of workers besides the chief.
        num_ps: The number of parameter servers.
    """

    def __init__(self, command: list[str], *, num_workers: int = 2, num_ps: int = 1) -> None:
        self._command = command
        chief, *others = [f"127.0.0.1:{port}" for port in free_ports(1 + num_workers + num_ps)]
        self.jobs = {"chief": [chief], "worker": others[:num_workers], "ps": others[num_workers:]}

    def start(self, job: str, index: int = 0, **environment: str) -> commands.Command:
        """Start one process of the cluster."""
        config = {"cluster": self.jobs, "task": {"type": job, "index": index}}
        return commands.Command(self._command, env={"TF_CONFIG": json.dumps(config), **environment})

    def start_servers(self) -> dict[str, list[commands.Command]]:
        """Start all processes except the chief."""
        return {
            job: [self.start(job, index) for index in range(len(self.jobs[job]))]
            for job in ("ps", "worker")
        }
