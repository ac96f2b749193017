"""The cluster that a Slurm step is: each of its tasks a worker.

TensorFlow's `SlurmClusterResolver` is not used: it orders hosts by their letters, so that tasks of
`n9` and `n10` get one another's addresses; it fails where there is no GPU or no `nvidia-smi`; it
gives all jobs the same ports; and it needs TensorFlow. All that it knows is in the environment.
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

# Below those that systems give to outgoing connections. Jobs whose numbers follow one another may
# share a node, and get ports that follow one another.
_FIRST_PORT = 20000
_NUM_PORTS = 10000


def read_step(environment: Mapping[str, str]) -> dict[str, Any] | None:
    """What `TF_CONFIG` has to say in this task of a Slurm step.

    Args:
        environment: With Slurm's variables. All tasks of a step find the same in it but for their
            rank.

    Returns:
        None if this is no task of a step, or the only one of it.

    Raises:
        errors.ConfigValueError: Tasks are not laid out in blocks, or a variable can't be read.
    """
    if not environment.keys() >= set(_VARIABLES):
        return None
    rank, count, node_list, tasks_per_node = (environment[name] for name in _VARIABLES)
    if count == "1":
        return None
    hosts, sizes = expand_hosts(node_list), _expand_sizes(tasks_per_node)
    if len(hosts) != len(sizes) or str(sum(sizes)) != count or not rank.isdecimal():
        raise errors.ConfigValueError(
            f"Slurm's step can't be understood: {count} tasks, {tasks_per_node!r} of them on the "
            f"nodes {node_list!r}. Set TF_CONFIG by yourself."
        )
    places = [(node, task) for node, size in enumerate(sizes) for task in range(size)]
    _check_place(environment, places[int(rank)])
    first_port = _first_port(environment.get("SLURM_JOB_ID", "0"), max(sizes))
    workers = [f"{hosts[node]}:{first_port + task}" for node, task in places]
    return {"cluster": {"worker": workers}, "task": {"type": "worker", "index": int(rank)}}


def expand_hosts(node_list: str) -> list[str]:
    """The hosts of a list such as `n[08-10,12],login`, in its order."""
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
    """The tasks of each node, from `2(x3),1`."""
    found = re.findall(r"(\d+)(?:\(x(\d+)\))?", tasks_per_node)
    return [int(size) for size, times in found for _ in range(int(times or 1))]


def _check_place(environment: Mapping[str, str], place: tuple[int, int]) -> None:
    node, task = (environment.get(name, "") for name in ("SLURM_NODEID", "SLURM_LOCALID"))
    if node and task and (int(node), int(task)) != place:
        raise errors.ConfigValueError(
            f"Slurm has put rank {environment['SLURM_PROCID']} on node {node} as task {task}; in "
            f"blocks it would be node {place[0]}, task {place[1]}. Start the step with `srun "
            "--distribution=block`, or set TF_CONFIG by yourself."
        )


def _first_port(job_id: str, tasks_per_node: int) -> int:
    job = int(job_id) if job_id.isdecimal() else 0
    return _FIRST_PORT + job * tasks_per_node % _NUM_PORTS
