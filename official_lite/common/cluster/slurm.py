"""The cluster that consists of the tasks of a Slurm step, each of which is a worker.

This module does not use TensorFlow's `SlurmClusterResolver`, for four reasons. It sorts hosts
alphabetically, so the tasks of `n9` and `n10` get each other's addresses. It fails without a GPU or
`nvidia-smi`. It assigns the same ports to all jobs. It requires TensorFlow, although all of its
information comes from the environment.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from official_lite.common import errors

__all__ = ["expand_hosts", "read_step"]


_VARIABLES = (
    "SLURM_PROCID",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_STEP_NODELIST",
    "SLURM_STEP_TASKS_PER_NODE",
)

# These ports are below those that systems use for outgoing connections. Jobs with consecutive
# numbers may share a node, and get consecutive ports.
_FIRST_PORT = 20000

_NUM_PORTS = 10000


def read_step(environment: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the contents of `TF_CONFIG` for this task of a Slurm step.

    Args:
        environment: An environment with Slurm's variables. Except for the rank, all tasks of a step
            have the same values.

    Returns:
        The cluster and the task; None if this process is not a task of a step, or its only task.

    Raises:
        errors.ConfigValueError: If the tasks are not distributed in blocks, or if a variable is
            invalid.
    """
    if not environment.keys() >= set(_VARIABLES):
        return None
    rank, count, node_list, tasks_per_node = (environment[name] for name in _VARIABLES)
    if count == "1":
        return None
    hosts, sizes = expand_hosts(node_list), _expand_sizes(tasks_per_node)
    if len(hosts) != len(sizes) or str(sum(sizes)) != count or not rank.isdecimal():
        raise errors.ConfigValueError(
            f"Can't interpret the Slurm step with {count} tasks, {tasks_per_node!r} of them on "
            f"the nodes {node_list!r}. Set TF_CONFIG instead."
        )
    places = [(node, task) for node, size in enumerate(sizes) for task in range(size)]
    _check_place(environment, places[int(rank)])
    first_port = _first_port(environment.get("SLURM_JOB_ID", "0"), max(sizes))
    workers = [f"{hosts[node]}:{first_port + task}" for node, task in places]
    return {"cluster": {"worker": workers}, "task": {"type": "worker", "index": int(rank)}}


def expand_hosts(node_list: str) -> list[str]:
    """Expand a node list such as `n[08-10,12],login`, keeping its order."""
    parts = re.findall(r"(?:[^,\[]|\[[^\]]*\])+", node_list)
    return [host for part in parts for host in _expand(part)]


def _expand(part: str) -> Iterator[str]:
    head, bracket, rest = part.partition("[")
    if not bracket:
        yield part
        return
    ranges, _, tail = rest.partition("]")
    for numbers in ranges.split(","):
        first, _, last = numbers.partition("-")
        for number in range(int(first), int(last or first) + 1):
            for end in _expand(tail):
                yield f"{head}{number:0{len(first)}d}{end}"


def _expand_sizes(tasks_per_node: str) -> list[int]:
    """Parse the number of tasks on each node, such as `2(x3),1`."""
    found = re.findall(r"(\d+)(?:\(x(\d+)\))?", tasks_per_node)
    return [int(size) for size, times in found for _ in range(int(times or 1))]


def _check_place(environment: Mapping[str, str], place: tuple[int, int]) -> None:
    node, task = (environment.get(name, "") for name in ("SLURM_NODEID", "SLURM_LOCALID"))
    if node and task and (int(node), int(task)) != place:
        raise errors.ConfigValueError(
            f"Slurm placed rank {environment['SLURM_PROCID']} on node {node} as task {task}, but "
            f"block distribution requires node {place[0]}, task {place[1]}. Use `srun "
            "--distribution=block`, or set TF_CONFIG."
        )


def _first_port(job_id: str, tasks_per_node: int) -> int:
    job = int(job_id) if job_id.isdecimal() else 0
    return _FIRST_PORT + job * tasks_per_node % _NUM_PORTS
