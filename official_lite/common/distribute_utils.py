"""Construction of a `tf.distribute.Strategy` from the names in a config."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from absl import logging
from tensorflow.python.eager import context

from official_lite.common import cluster, errors, suggestions, tf_config
from official_lite.common.tf_config import configure_cluster as configure_cluster

# Unused arguments that the Model Garden's drivers pass, with their default values. Other values
# cause a warning.
_WITHOUT_EFFECT = {"num_cores_per_replica": 1, "default_shard_dim": -1}

# The smallest time limit, in seconds, for connecting. Workers wait at least this long for a worker
# that is still preparing its data.
_MIN_SECONDS_TO_CONNECT = 600.0

# One week. The limit prevents an overflow, because TensorFlow counts nanoseconds in 64 bits.
_MAX_SECONDS_TO_CONNECT = 7 * 24 * 3600.0


def describe(strategy: tf.distribute.Strategy) -> str:
    """Return one line about a strategy, as in `MirroredStrategy: 2 replicas on CPU:0, CPU:1`."""
    # The default strategy has no devices of its own.
    if not tf.distribute.has_strategy() and strategy is tf.distribute.get_strategy():
        return "No distribution strategy: 1 replica"
    count = strategy.num_replicas_in_sync
    devices = [device.rsplit("device:", 1)[-1] for device in strategy.extended.worker_devices]
    return f"{type(strategy).__name__}: {count} replica{'s' * (count > 1)} on {', '.join(devices)}"


def get_distribution_strategy(
    distribution_strategy: str = "mirrored",
    num_gpus: int | None = 0,
    all_reduce_alg: str | None = None,
    num_packs: int = 1,
    tpu_address: str | None = None,
    *,
    devices: Sequence[str] | None = None,
    **kwargs: Any,
) -> tf.distribute.Strategy:
    """Build the strategy with this name, in upper or lower case.

    Args:
        distribution_strategy: `off` returns the current strategy. `one_device` and `mirrored` use
            the devices of this host, `multi_worker_mirrored` and `parameter_server` use the cluster
            in `TF_CONFIG`, and `tpu` uses the TPU at `tpu_address`. Under `parameter_server`, only
            the chief calls this function; the servers call `cluster.serve` instead.
        num_gpus: The number of GPUs of this host for `one_device` and `mirrored`. 0 uses the CPU.
            None or -1 uses all GPUs, or the CPU if there are none.
        all_reduce_alg: The all-reduce algorithm: `nccl` or `hierarchical_copy` for `mirrored`,
            `nccl` or `ring` for `multi_worker_mirrored`. None lets TensorFlow choose.
        num_packs: The number of packs into which `mirrored` groups the gradients for such an
            all-reduce.
        tpu_address: The name or address of the TPU; `local` or the empty string on a TPU host.
        devices: The devices for `one_device` and `mirrored`, instead of `num_gpus`. `["CPU:0",
            "CPU:1"]` creates two replicas on one machine without a GPU. The second logical CPU is
            created if TensorFlow has not started yet.
        **kwargs: The Model Garden's `num_cores_per_replica` and `default_shard_dim`, which have no
            effect.

    Raises:
        ConfigValueError: The strategy is unknown, or the arguments contradict each other or the
            hardware.
        ConfigTypeError: An argument is unknown.
    """
    _check_kwargs(kwargs)
    name = _checked_name(distribution_strategy)
    num_gpus = -1 if num_gpus is None else num_gpus
    if num_gpus < -1:
        raise errors.ConfigValueError(
            f"`num_gpus` cannot be less than -1; got {num_gpus}. Use -1 for all GPUs."
        )
    if devices is not None and name not in ("mirrored", "one_device"):
        raise errors.ConfigValueError(
            f"`devices` can't be combined with the strategy `{name}`; got {devices!r}. Use the "
            "strategy `mirrored` or `one_device`."
        )
    if name == "off":
        return _current_strategy(num_gpus)
    if name == "one_device":
        return _one_device(num_gpus, devices)
    if name == "mirrored":
        return _mirrored(num_gpus, all_reduce_alg, num_packs, devices)
    if name == "multi_worker_mirrored":
        return _multi_worker_mirrored(all_reduce_alg)
    if name == "parameter_server":
        return _parameter_server()
    return _tpu(tpu_address)


def tpu_initialize(tpu_address: str) -> Any:
    """Connect to a TPU, reset it and return its cluster resolver."""
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=tpu_address)
    if tpu_address not in ("", "local"):
        tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)
    return resolver


def get_strategy_scope(
    strategy: tf.distribute.Strategy | None,
) -> contextlib.AbstractContextManager[Any]:
    """Return `strategy.scope()`, or a null context if there is no strategy."""
    return strategy.scope() if strategy else contextlib.nullcontext()


def _check_kwargs(kwargs: dict[str, Any]) -> None:
    for name, value in kwargs.items():
        if name not in _WITHOUT_EFFECT:
            known = ("num_gpus", "all_reduce_alg", "num_packs", "tpu_address", "devices")
            raise errors.ConfigTypeError(
                f"get_distribution_strategy() has no argument {name!r}. "
                f"{suggestions.did_you_mean(name, known)}"
            )
        if value != _WITHOUT_EFFECT[name]:
            logging.warning(
                "`%s=%r` has no effect, because model parallelism is not supported. Remove the "
                "argument.",
                name,
                value,
            )


def _checked_name(distribution_strategy: Any) -> str:
    if not isinstance(distribution_strategy, str):
        hint = ""
        if distribution_strategy is False:
            hint = (
                " If you meant to pass the string 'off', put quotes around it: YAML reads off "
                "as a boolean."
            )
        raise errors.ConfigValueError(
            f"distribution_strategy must be a string but got: {distribution_strategy}.{hint}"
        )
    name = distribution_strategy.lower()
    if name not in tf_config.STRATEGIES:
        raise errors.ConfigValueError(
            f"Unrecognized distribution strategy: {distribution_strategy!r}. "
            f"{suggestions.did_you_mean(name, tf_config.STRATEGIES)}"
        )
    return name


def _current_strategy(num_gpus: int) -> tf.distribute.Strategy:
    if num_gpus > 1:
        raise errors.ConfigValueError(
            f"`runtime.num_gpus` is {num_gpus}, but `runtime.distribution_strategy` is `off`. Set "
            "the strategy to `mirrored` to use all GPUs."
        )
    return tf.distribute.get_strategy()


def _one_device(num_gpus: int, devices: Sequence[str] | None) -> tf.distribute.Strategy:
    if num_gpus > 1 or (devices is not None and len(devices) != 1):
        raise errors.ConfigValueError(
            "`OneDeviceStrategy` cannot be used for more than one device; got "
            f"num_gpus={num_gpus}, devices={devices!r}. Use the strategy `mirrored` instead."
        )
    return tf.distribute.OneDeviceStrategy(_local_devices(num_gpus, devices)[0])


def _mirrored(
    num_gpus: int, all_reduce_alg: str | None, num_packs: int, devices: Sequence[str] | None
) -> tf.distribute.Strategy:
    make_ops = _choice(
        all_reduce_alg,
        {
            "nccl": tf.distribute.NcclAllReduce,
            "hierarchical_copy": tf.distribute.HierarchicalCopyAllReduce,
        },
        "mirrored",
    )
    names = _local_devices(num_gpus, devices)
    ops = make_ops(num_packs=num_packs) if make_ops else None
    if ops is None and not any("GPU" in name for name in names):
        # On CPUs, TensorFlow would use collectives. Each strategy numbers its collectives from the
        # start, so the second strategy of a process reuses the numbers of the first strategy. A
        # collective fails if its number was used for tensors of other shapes.
        ops = tf.distribute.ReductionToOneDevice()
    return tf.distribute.MirroredStrategy(devices=names, cross_device_ops=ops)


def _multi_worker_mirrored(all_reduce_alg: str | None) -> tf.distribute.Strategy:
    implementations = tf.distribute.experimental.CommunicationImplementation
    implementation = _choice(
        all_reduce_alg,
        {"ring": implementations.RING, "nccl": implementations.NCCL},
        "multi_worker_mirrored",
    )
    found = tf_config.find_cluster()
    if found is None:
        logging.warning(
            "`multi_worker_mirrored` runs with a single worker, because TF_CONFIG defines no "
            "cluster. Set TF_CONFIG to train with several workers."
        )
    else:
        cluster.meet(found)
        _limit_time_to_connect(found)
    return tf.distribute.MultiWorkerMirroredStrategy(
        communication_options=tf.distribute.experimental.CommunicationOptions(
            implementation=implementation or implementations.AUTO
        )
    )


def _limit_time_to_connect(found: tf_config.ClusterConfig) -> None:
    """Limit the time that TensorFlow waits for a worker that is lost after the rendezvous.

    Configure TensorFlow's coordination service with this limit. Otherwise, the strategy would
    configure the service with time limits of an hour.
    """
    eager: Any = context.context()
    jobs = [job for job in ("chief", "worker") if job in found.jobs]
    has_no_leader = "ps" in found.jobs or found.task_type not in jobs
    if eager.coordination_service is not None or has_no_leader:
        return
    seconds = min(max(cluster.patience(), _MIN_SECONDS_TO_CONNECT), _MAX_SECONDS_TO_CONNECT)
    eager.configure_coordination_service(
        service_type="standalone",
        service_leader=f"/job:{jobs[0]}/replica:0/task:0",
        cluster_register_timeout_in_ms=int(1000 * seconds),
    )
    service: Any = eager.coordination_service
    # Enable the barrier at which all processes meet, because the time limit applies only there.
    service.cluster_register_with_barrier = True
    for job in jobs:
        service.coordinated_job_list.add(name=job, num_tasks=len(found.jobs[job]))


def _parameter_server() -> tf.distribute.Strategy:
    config = tf_config.read_tf_config()
    if config is None or not {"chief", "ps", "worker"} <= config.jobs.keys():
        raise errors.ConfigValueError(
            "`parameter_server` needs a cluster in TF_CONFIG with the jobs `chief`, `ps` and "
            f"`worker`; got {sorted(config.jobs) if config else 'none'}."
        )
    if config.task_type == "evaluator":
        # An evaluator works on checkpoints, outside the cluster.
        return _one_device(0, None)
    if config.task_type != "chief":
        raise errors.ConfigValueError(
            f"{config.name} needs no strategy under `parameter_server`, because the chief "
            "controls it. Call `cluster.serve()` in this process."
        )
    cluster.fail_fast()
    cluster.wait_for_servers(config)
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    return tf.distribute.ParameterServerStrategy(resolver)


def _tpu(tpu_address: str | None) -> tf.distribute.Strategy:
    if tpu_address is None:
        raise errors.ConfigValueError(
            "The strategy `tpu` requires the name or the address of a TPU, or `local` on a TPU "
            "host: --set=runtime.tpu=local (in Python: `tpu_address='local'`)."
        )
    return tf.distribute.TPUStrategy(tpu_initialize(tpu_address))


def _choice(
    all_reduce_alg: str | None, options: dict[str, Callable[..., Any]], strategy: str
) -> Any:
    if all_reduce_alg is None:
        return None
    if all_reduce_alg not in options:
        raise errors.ConfigValueError(
            f"When used with `{strategy}`, valid values for all_reduce_alg are "
            f"{sorted(options)}; got {all_reduce_alg!r}."
        )
    return options[all_reduce_alg]


def _local_devices(num_gpus: int, devices: Sequence[str] | None) -> list[str]:
    if devices is not None:
        return _checked_devices(devices)
    found = len(tf.config.list_logical_devices("GPU"))
    if num_gpus > found:
        raise errors.ConfigValueError(
            f"`num_gpus` is {num_gpus}, but TensorFlow finds {found} on this host. Use -1 for all "
            "GPUs, or 0 for the CPU."
        )
    count = found if num_gpus == -1 else num_gpus
    return [f"device:GPU:{i}" for i in range(count)] or ["device:CPU:0"]


def _checked_devices(devices: Sequence[str]) -> list[str]:
    wanted = [device.upper().removeprefix("/").removeprefix("DEVICE:") for device in devices]
    _make_logical_cpus(sum(device.startswith("CPU:") for device in wanted))
    known = [
        f"{d.device_type}:{d.name.rsplit(':', 1)[1]}" for d in tf.config.list_logical_devices()
    ]
    missing = [device for device in wanted if device not in known]
    if missing or not wanted or len(set(wanted)) < len(wanted):
        raise errors.ConfigValueError(
            f"`devices` must be different devices of this host; got {list(devices)!r}, and "
            f"TensorFlow has {known}."
        )
    return [f"device:{device}" for device in wanted]


def _make_logical_cpus(count: int) -> None:
    """Split the CPU into `count` logical devices unless TensorFlow has already started."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    if count < 2 or tf.config.get_logical_device_configuration(cpu):
        return
    # TensorFlow raises an error here once it has started. The caller then reports the missing
    # devices.
    with contextlib.suppress(RuntimeError):
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * count
        )
