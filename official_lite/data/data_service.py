"""Support for the tf.data service, whose remote workers prepare the data.

https://www.tensorflow.org/api_docs/python/tf/data/experimental/service
"""

import functools
import threading
import time
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from absl import logging

from official_lite.common import cluster, errors, tf_config
from official_lite.data import input_errors

__all__ = ["DataServiceOptions", "choose", "distribute", "wait_for_dispatcher", "wait_for_service"]

_SECONDS_BETWEEN_LOOKS = 0.5


@dataclass(frozen=True, kw_only=True)
class DataServiceOptions:
    """The address of a tf.data service and the way its data is shared.

    Attributes:
        address: The address of the dispatcher, such as `grpc://host:5000`.
        job_name: The name of the job, if it is shared.
        batch_size: The global batch size. Runs with different batch sizes use different jobs.
        before_batching: Whether the service returns single examples.
        shared_by_trainers: Whether several trainers share one pass over the data.
        trainer_id: The name of this trainer among those that share a pass.
        round_robin: Whether all replicas get their batches of a step from the same worker, which
            keeps batches of similar size together.
        shares_files: Whether the workers of the service divide the files of a pass among them, so
            that each record is read once. Otherwise each worker reads all files.

    Raises:
        ConfigValueError: There is no address, or `shared_by_trainers` is set without a `trainer_id`
            or together with `round_robin`.
    """

    address: str | None
    job_name: str | None = None
    batch_size: int = 0
    before_batching: bool = False
    shared_by_trainers: bool = False
    trainer_id: str | None = None
    round_robin: bool = False
    shares_files: bool = False

    def __post_init__(self) -> None:
        if not self.address:
            raise errors.ConfigValueError(
                "`enable_tf_data_service` requires `tf_data_service_address`. Set it to the "
                "address of the dispatcher, such as `grpc://host:5000`."
            )
        if self.shared_by_trainers and self.round_robin:
            raise errors.ConfigValueError(
                "A tf.data service that is shared by trainers does not support round-robin "
                "reading. Disable `enable_shared_tf_data_service_between_parallel_trainers` or "
                "`enable_round_robin_tf_data_service`."
            )
        if self.shared_by_trainers and not self.trainer_id:
            raise errors.ConfigValueError(
                "Each trainer that shares a tf.data service needs its own `trainer_id`, but it is "
                "not set. Set it to a different name in each trainer."
            )

    @property
    def gives_once(self) -> bool:
        """Whether each element is returned exactly once, unless a worker of the service is lost."""
        return self.shares_files and not self.shared_by_trainers and not self.round_robin

    @property
    def shared_job_name(self) -> str | None:
        """The name of the job that serves this dataset, or None for a job that is not shared.

        Trainers that share a job, and hosts that are served round-robin, must use the same name, so
        their name depends only on the config. The service itself gives any other job a new name
        each time the dataset is read. If it had a name, another dataset, or a restarted process,
        that requested the same name would receive the rest of its elements.
        """
        if not self.shared_by_trainers and not self.round_robin:
            return None
        name = self.job_name or "job"
        return name if self.before_batching else f"{name}_bs{self.batch_size}"


def choose(
    options: DataServiceOptions | None,
    input_context: tf.distribute.InputContext | None,
    *,
    is_training: bool,
) -> DataServiceOptions | None:
    """Return the options, or None if this process should read the data itself.

    An evaluation must see each example once, so it uses the service only if the service guarantees
    that. The decision not to use the service, and the loss of a reproducible order in training, are
    logged.
    """
    if options is None:
        return None
    pipelines = input_context.num_input_pipelines if input_context else 1
    if is_training:
        logging.log_first_n(
            logging.WARNING,
            "The training data come from the tf.data service at %s in an order that changes with "
            "every run, so a resumed run will differ from an uninterrupted one. See docs/input.md.",
            1,
            options.address,
        )
    elif pipelines > 1 or not options.gives_once:
        logging.log_first_n(
            logging.INFO,
            "The evaluation data are read locally, because the tf.data service at %s would not "
            "return each example exactly once.",
            1,
            options.address,
        )
        return None
    return options


def distribute(
    dataset: tf.data.Dataset,
    options: DataServiceOptions,
    input_context: tf.distribute.InputContext | None = None,
) -> tf.data.Dataset:
    """Return a dataset of the same elements, prepared by the service, in an unspecified order.

    Raises:
        ClusterError: The dispatcher does not answer, or the service has no workers.
        ConfigValueError: Round-robin reading is enabled without an `input_context`.
    """
    if options.round_robin and input_context is None:
        raise errors.ConfigValueError(
            "`enable_round_robin_tf_data_service` serves the replicas of a strategy in turn, but "
            "`input_context` is missing. Pass the `input_context` of the strategy."
        )
    input_errors.remember_service(str(options.address))
    if tf.executing_eagerly():
        wait_for_service(str(options.address))
    if input_context is not None and options.round_robin:
        return _distribute_round_robin(dataset, options, input_context)
    policies = tf.data.experimental.service.ShardingPolicy
    cache = None
    if options.shared_by_trainers:
        cache = tf.data.experimental.service.CrossTrainerCache(trainer_id=options.trainer_id)
    return dataset.apply(
        _transformation(
            options,
            processing_mode=policies.DYNAMIC if options.gives_once else policies.OFF,
            cross_trainer_cache=cache,
        )
    )


@functools.cache
def wait_for_service(address: str, seconds: float | None = None) -> None:
    """Wait until the service has prepared an element; check each address only once.

    TensorFlow itself would wait for an hour.

    Args:
        address: The address of the dispatcher, such as `grpc://host:5000`.
        seconds: The longest time to wait, in seconds. Defaults to `cluster.patience()`.

    Raises:
        ClusterError: The dispatcher does not answer, or the service has no workers.
    """
    seconds = cluster.patience() if seconds is None else seconds
    deadline = time.monotonic() + seconds
    wait_for_dispatcher(address, seconds)
    answers: list[int] = []

    def ask() -> None:
        policy = tf.data.experimental.service.ShardingPolicy.OFF
        served = tf.data.experimental.service.distribute(policy, address)
        dataset = tf.data.Dataset.range(1).apply(served)
        answers.extend(int(number) for number in dataset)

    # A call that waits for a tf.data worker can't be canceled. If the call does not return in time,
    # abandon its thread.
    thread = threading.Thread(target=ask, name="data service", daemon=True)
    thread.start()
    thread.join(max(1.0, deadline - time.monotonic()))
    if not answers:
        raise errors.ClusterError(
            f"The tf.data service at {address} returned no data within {seconds:g} s. Check that "
            "it has workers, and that this host can reach each worker under the name in its "
            "`--host`."
        )


def wait_for_dispatcher(address: str, seconds: float | None = None) -> None:
    """Wait until the dispatcher answers at an address.

    Raises:
        ConfigValueError: The address is not valid.
        ClusterError: Nothing answers within `seconds`, which defaults to `cluster.patience()`.
    """
    seconds = cluster.patience() if seconds is None else seconds
    host_and_port = address.rpartition("://")[2]
    try:
        tf_config.split_address(host_and_port)
    except ValueError as error:
        raise errors.ConfigValueError(
            f"{address!r} is not the address of a dispatcher. Expected an address such as "
            "`grpc://host:5000`."
        ) from error
    deadline = time.monotonic() + seconds
    while reasons := cluster.unreachable({"dispatcher": host_and_port}):
        if time.monotonic() > deadline:
            raise errors.ClusterError(
                f"No dispatcher of a tf.data service answered at {address} within {seconds:g} s "
                f"({reasons['dispatcher']}). Start the dispatcher, or set "
                f"{cluster.TIMEOUT_VARIABLE} to a longer time limit."
            )
        logging.log_first_n(
            logging.INFO, "Waiting for the dispatcher of the tf.data service at %s.", 1, address
        )
        time.sleep(_SECONDS_BETWEEN_LOOKS)


def _distribute_round_robin(
    dataset: tf.data.Dataset,
    options: DataServiceOptions,
    input_context: tf.distribute.InputContext,
) -> tf.data.Dataset:
    replicas = input_context.num_replicas_in_sync // input_context.num_input_pipelines
    first_consumer = input_context.input_pipeline_id * replicas

    def batches_of(replica: tf.Tensor) -> tf.data.Dataset:
        return dataset.apply(
            _transformation(
                options,
                processing_mode="parallel_epochs",
                consumer_index=first_consumer + replica,
                num_consumers=input_context.num_input_pipelines * replicas,
            )
        )

    return tf.data.Dataset.range(replicas).interleave(
        batches_of, cycle_length=replicas, num_parallel_calls=replicas, deterministic=True
    )


def _transformation(options: DataServiceOptions, **kwargs: Any) -> Any:
    return tf.data.experimental.service.distribute(
        service=options.address, job_name=options.shared_job_name, **kwargs
    )
