"""The cluster in `TF_CONFIG` or of a Slurm step, validated before TensorFlow uses it.

TensorFlow responds to an invalid `TF_CONFIG` with a bare `KeyError`, or waits forever for a peer
that does not exist. This module does not import TensorFlow.
"""

import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from official_lite.common import errors, suggestions

STRATEGIES = (
    "off",
    "one_device",
    "mirrored",
    "multi_worker_mirrored",
    "parameter_server",
    "tpu",
)

_TASK_TYPES = ("chief", "worker", "ps", "evaluator")

_EXAMPLE = (
    '{"cluster": {"worker": ["host0:2222", "host1:2222"]}, "task": {"type": "worker", "index": 0}}'
)

_SLURM_VARIABLES = (
    "SLURM_PROCID",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_STEP_NODELIST",
    "SLURM_STEP_TASKS_PER_NODE",
)

# These ports are below those that operating systems use for outgoing connections. Jobs with
# consecutive IDs get consecutive port ranges, because they may share a node.
_FIRST_PORT = 20000

_NUM_PORTS = 10000


@dataclass(frozen=True, kw_only=True)
class ClusterConfig:
    """All processes of a run, and the task of this process.

    Attributes:
        jobs: The `host:port` addresses of each job, such as `worker`.
        task_type: The job of this process.
        task_index: The index of this process in its job.
    """

    jobs: Mapping[str, tuple[str, ...]]
    task_type: str
    task_index: int

    @property
    def num_workers(self) -> int:
        """The number of processes that train: the chief and the workers."""
        return len(self.members("chief", "worker"))

    @property
    def is_one_of_several_trainers(self) -> bool:
        """Whether this process is one of several that train; an evaluator is not."""
        return self.task_type in ("chief", "worker") and self.num_workers > 1

    @property
    def name(self) -> str:
        """The name of this process in messages."""
        return task_name(self.task_type, self.task_index)

    def members(self, *jobs: str) -> dict[str, str]:
        """Return the address of each process of these jobs by process name, in rank order."""
        return {
            task_name(job, index): address
            for job in jobs
            for index, address in enumerate(self.jobs.get(job, ()))
        }


def task_name(task_type: str, index: int) -> str:
    """Return the name of a process in messages: `worker 1`, or `chief`, which has no index."""
    return task_type if task_type == "chief" else f"{task_type} {index}"


def split_address(address: str) -> tuple[str, int]:
    """Split `host:port` into host and port, removing the brackets of an IPv6 host."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def read_tf_config() -> ClusterConfig | None:
    """Return the cluster in the environment variable `TF_CONFIG`; None if unset, blank or `{}`.

    Raises:
        ConfigValueError: If the value is not JSON, lacks `cluster` or `task`, has an address that
            is not `host:port` or a duplicate address, or if its task is not in the cluster.
    """
    text = os.environ.get("TF_CONFIG", "").strip()
    if not text:
        return None
    try:
        config = json.loads(text)
    except json.JSONDecodeError as error:
        raise _invalid(f"it is not JSON ({error})") from error
    if config == {}:
        return None
    jobs = _checked_jobs(config)
    task_type, task_index = _checked_task(config, jobs)
    return ClusterConfig(jobs=jobs, task_type=task_type, task_index=task_index)


def configure_cluster(worker_hosts: str | Sequence[str] | None = None, task_index: int = -1) -> int:
    """Describe the cluster to TensorFlow in `TF_CONFIG`, unless the variable is already set.

    Args:
        worker_hosts: The `host:port` of every worker, as a list or separated by commas. All workers
            must pass the same value.
        task_index: The index of this process in `worker_hosts`. It is optional if there is only one
            worker.

    Returns:
        The number of workers; 1 without a cluster.

    Raises:
        ConfigValueError: If `task_index` is missing or out of range, or if `TF_CONFIG` is invalid;
            see `read_tf_config`.
    """
    cluster = read_tf_config()
    if cluster is not None:
        return cluster.num_workers
    if not worker_hosts:
        return 1
    hosts = worker_hosts.split(",") if isinstance(worker_hosts, str) else worker_hosts
    workers = [host.strip() for host in hosts]
    if wrong := [host for host in workers if not _is_address(host)]:
        raise errors.ConfigValueError(
            f"`worker_hosts` must list the `host:port` of every worker; got {wrong[0]!r}. For "
            "example: --set=runtime.worker_hosts='host0:2222,host1:2222'"
        )
    if len(workers) > 1 and task_index < 0:
        raise errors.ConfigValueError(
            f"Must specify task_index when number of workers > 1; got {task_index} for "
            f"{len(workers)} workers."
        )
    config = {
        "cluster": {"worker": workers},
        "task": {"type": "worker", "index": max(task_index, 0)},
    }
    _checked_task(config, _checked_jobs(config))
    os.environ["TF_CONFIG"] = json.dumps(config)
    return len(workers)


def find_cluster(
    worker_hosts: str | Sequence[str] | None = None, task_index: int = -1
) -> ClusterConfig | None:
    """Find the cluster of a multi-process strategy; return None if there is none.

    The cluster is taken from `TF_CONFIG`, or else from `worker_hosts`, or else from all tasks of
    the Slurm step of this process. `TF_CONFIG` is set accordingly.

    Args:
        worker_hosts: See `configure_cluster`.
        task_index: See `configure_cluster`.

    Raises:
        ConfigValueError: If the description of the cluster is invalid.
    """
    configure_cluster(worker_hosts, task_index)
    if read_tf_config() is None and (step := read_slurm_step(os.environ)):
        os.environ["TF_CONFIG"] = json.dumps(step)
    return read_tf_config()


def read_slurm_step(environment: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the contents of `TF_CONFIG` for this task of a Slurm step; all tasks are workers.

    TensorFlow's `SlurmClusterResolver` is not used, for four reasons. It sorts hosts
    alphabetically, so the tasks of `n9` and `n10` get each other's addresses. It fails without a
    GPU or `nvidia-smi`. It assigns the same ports to all jobs. It requires TensorFlow, although all
    of its information comes from the environment.

    Args:
        environment: An environment with Slurm's variables. Except for the rank, all tasks of a step
            have the same values.

    Returns:
        The cluster and the task; None if this process is not a task of a step, or its only task.

    Raises:
        errors.ConfigValueError: If the tasks are not distributed in blocks, or if a variable is
            invalid.
    """
    if not environment.keys() >= set(_SLURM_VARIABLES):
        return None
    rank, count, node_list, tasks_per_node = (environment[name] for name in _SLURM_VARIABLES)
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


def _checked_jobs(config: Any) -> dict[str, tuple[str, ...]]:
    jobs = config.get("cluster") if isinstance(config, dict) else None
    if not isinstance(jobs, dict) or not jobs:
        raise _invalid("it has no `cluster` with at least one job")
    for job, addresses in jobs.items():
        if job not in _TASK_TYPES:
            raise _invalid(
                f"`{job}` is not a known job. {suggestions.did_you_mean(job, _TASK_TYPES)}"
            )
        if not isinstance(addresses, list) or not all(map(_is_address, addresses)):
            raise _invalid(f"`cluster.{job}` must be a list of `host:port`; got {addresses!r}")
    counts = Counter(address for addresses in jobs.values() for address in addresses)
    repeated = sorted(address for address, count in counts.items() if count > 1)
    if repeated:
        raise _invalid(f"each process must have its own address, but {repeated} is repeated")
    return {job: tuple(addresses) for job, addresses in jobs.items()}


def _is_address(address: Any) -> bool:
    if not isinstance(address, str):
        return False
    host, _, port = address.rpartition(":")
    return bool(host) and port.isdecimal() and 0 < int(port) < 65536


def _checked_task(config: dict[str, Any], jobs: Mapping[str, Sequence[str]]) -> tuple[str, int]:
    task = config.get("task")
    if not isinstance(task, dict) or not {"type", "index"} <= task.keys():
        raise _invalid("it has no `task` with `type` and `index`")
    task_type, index = task["type"], task["index"]
    # An evaluator is not part of the cluster and need not be listed in it.
    if task_type not in jobs and task_type != "evaluator":
        raise _invalid(f"`task.type` is {task_type!r}, but the cluster has {sorted(jobs)}")
    if not isinstance(index, int) or isinstance(index, bool):
        raise _invalid(f"`task.index` must be a whole number; got {index!r}")
    size = len(jobs.get(task_type, ("itself",)))
    if not 0 <= index < size:
        raise _invalid(f"`task.index` must be from 0 to {size - 1} for `{task_type}`; got {index}")
    return task_type, index


def _invalid(problem: str) -> errors.ConfigValueError:
    return errors.ConfigValueError(f"TF_CONFIG is invalid: {problem}. A valid example: {_EXAMPLE}")


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
    """Parse Slurm's task counts per node, such as `2(x3),1` for four nodes."""
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
