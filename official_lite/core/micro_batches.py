"""Batches in parts: as many micro-batches as `trainer.grad_accum_steps` says make an update."""

from typing import Any

from official_lite.common import errors

__all__ = ["count_micro_batches", "micro_batch_data"]


def count_micro_batches(config: Any) -> int:
    """How many make an update; 1 also where the config has no word for it."""
    return getattr(config.trainer, "grad_accum_steps", 1)


def micro_batch_data(config: Any, num_replicas: int) -> Any:
    """The training data's config, with the batch size of one micro-batch.

    Args:
        config: The experiment's config.
        num_replicas: Among which each micro-batch is divided.

    Raises:
        errors.ConfigValueError: There are no training data to divide, or their batches can't be
            divided evenly.
    """
    data: Any = config.task.train_data
    count = count_micro_batches(config)
    if count == 1:
        return data
    if data is None:
        raise errors.ConfigValueError(
            f"`trainer.grad_accum_steps` is {count}, but there is no `task.train_data` whose "
            "batches could be divided."
        )
    if data.global_batch_size % (count * num_replicas):
        raise errors.ConfigValueError(
            f"`task.train_data.global_batch_size` is {data.global_batch_size}; wanted a "
            f"multiple of {count * num_replicas}: `trainer.grad_accum_steps` ({count}) times the "
            f"number of replicas ({num_replicas})."
        )
    return data.replace(global_batch_size=data.global_batch_size // count)
