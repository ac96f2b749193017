"""The kinds of hardware topology of a run: its replicas and processes."""

import enum

import tensorflow as tf

from official_lite.common import cluster, roll_call
from official_lite.core import config_definitions

__all__ = ["Engine", "engine_of", "expected_engine", "is_chief", "meet_workers"]

_ON_A_CLUSTER = ("multi_worker_mirrored", "parameter_server")


class Engine(enum.Enum):
    """The topology of a run: one replica, several replicas in one process, or several processes."""

    SINGLE = "one replica"
    LOCAL_CLUSTER = "several replicas in one process"
    CLUSTER = "several processes"


def engine_of(strategy: tf.distribute.Strategy) -> Engine:
    """Return the engine of a strategy."""
    if isinstance(strategy, tf.distribute.ParameterServerStrategy):
        return Engine.CLUSTER
    resolver = strategy.cluster_resolver
    if resolver is not None:
        jobs = resolver.cluster_spec().as_dict()
        if len(jobs.get("chief", ())) + len(jobs.get("worker", ())) > 1:
            return Engine.CLUSTER
    return _by_replicas(strategy.num_replicas_in_sync)


def expected_engine(config: config_definitions.RuntimeConfig) -> Engine:
    """Return the engine that a config requests, without initializing devices."""
    found = _cluster(config)
    if found is not None and found.num_workers > 1:
        return Engine.CLUSTER
    name = config.distribution_strategy.lower()
    if name == "tpu":
        return Engine.LOCAL_CLUSTER
    if name in ("off", "one_device"):
        return Engine.SINGLE
    if config.devices is not None:
        return _by_replicas(len(config.devices))
    wants_all = name in _ON_A_CLUSTER or config.num_gpus == -1
    gpus = len(tf.config.list_physical_devices("GPU")) if wants_all else config.num_gpus
    return _by_replicas(gpus)


def is_chief(config: config_definitions.RuntimeConfig) -> bool:
    """Return whether this process will be the one that writes. Requires no strategy."""
    found = _cluster(config)
    if found is None or found.task_type in ("chief", "evaluator"):
        return True
    return "chief" not in found.jobs and (found.task_type, found.task_index) == ("worker", 0)


def meet_workers(config: config_definitions.RuntimeConfig) -> None:
    """Wait for all workers that the strategy requires; return at once if there are none.

    Raises:
        errors.ClusterError: If a worker is missing.
    """
    found = _cluster(config)
    if found is not None and config.distribution_strategy.lower() == "multi_worker_mirrored":
        roll_call.meet(found)


def _by_replicas(count: int) -> Engine:
    return Engine.LOCAL_CLUSTER if count > 1 else Engine.SINGLE


def _cluster(config: config_definitions.RuntimeConfig) -> cluster.ClusterConfig | None:
    """Return the cluster, or None if the strategy does not use one."""
    if config.distribution_strategy.lower() not in _ON_A_CLUSTER:
        return None
    return cluster.find_cluster(config.worker_hosts, config.task_index)
