"""Reading through the tf.data service: workers elsewhere prepare the data.

https://www.tensorflow.org/api_docs/python/tf/data/experimental/service
"""

import random
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from official_lite.common import errors

__all__ = ["DataServiceOptions", "distribute"]

# A job that outlived the process which asked for it would go on where that process had stopped;
# every process asks for a job of its own, the same for all of its datasets.
_process_id = random.randrange(1 << 31)


@dataclass(frozen=True, kw_only=True)
class DataServiceOptions:
    """Which service, and how to share it.

    Attributes:
        address: The dispatcher, such as `grpc://host:5000`.
        job_name: What to call the job.
        batch_size: Global batch size; runs with another batch size get another job.
        before_batching: Whether the service hands out single examples.
        shared_by_trainers: Whether several trainers read one pass over the data.
        trainer_id: This trainer's name among them.
        round_robin: Whether all replicas get their batches from the same worker at each step,
            which keeps batches of like sizes together.

    Raises:
        ConfigValueError: There is no address, trainers share without a `trainer_id`, or they are
            to be served round-robin.
    """

    address: str | None
    job_name: str | None = None
    batch_size: int = 0
    before_batching: bool = False
    shared_by_trainers: bool = False
    trainer_id: str | None = None
    round_robin: bool = False

    def __post_init__(self) -> None:
        if not self.address:
            raise errors.ConfigValueError(
                "`enable_tf_data_service` needs `tf_data_service_address`, the address of the "
                "dispatcher, such as `grpc://host:5000`."
            )
        if self.shared_by_trainers and self.round_robin:
            raise errors.ConfigValueError(
                "Shared tf.data service does not support round-robin tf.data service."
            )
        if self.shared_by_trainers and not self.trainer_id:
            raise errors.ConfigValueError(
                "Trainers that share a tf.data service need a `trainer_id` each."
            )

    @property
    def unique_job_name(self) -> str:
        """The name of the job that this dataset comes from.

        Trainers that share a job, and hosts that are served in turns, must call it the same, so
        their name is the config's. Any other job belongs to this process.
        """
        parts = [self.job_name or "job"]
        if not self.before_batching:
            parts.append(f"bs{self.batch_size}")
        if not self.shared_by_trainers and not self.round_robin:
            parts.append(str(_process_id))
        return "_".join(parts)


def distribute(
    dataset: tf.data.Dataset,
    options: DataServiceOptions,
    input_context: tf.distribute.InputContext | None = None,
) -> tf.data.Dataset:
    """The same elements, prepared by the service.

    Raises:
        ConfigValueError: Round-robin reading without an `input_context`.
    """
    if options.round_robin:
        return _distribute_round_robin(dataset, options, input_context)
    kwargs: dict[str, Any] = {"processing_mode": "parallel_epochs"}
    if options.shared_by_trainers:
        kwargs = {
            "processing_mode": tf.data.experimental.service.ShardingPolicy.OFF,
            "cross_trainer_cache": tf.data.experimental.service.CrossTrainerCache(
                trainer_id=options.trainer_id
            ),
        }
    return dataset.apply(_transformation(options, **kwargs))


def _distribute_round_robin(
    dataset: tf.data.Dataset,
    options: DataServiceOptions,
    input_context: tf.distribute.InputContext | None,
) -> tf.data.Dataset:
    if input_context is None:
        raise errors.ConfigValueError(
            "`enable_round_robin_tf_data_service` serves the replicas of a strategy in turns, but "
            "there is no strategy: its `input_context` is missing."
        )
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
        service=options.address, job_name=options.unique_job_name, **kwargs
    )
