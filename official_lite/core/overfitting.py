"""`trainer.overfit_batches`: a training on its first batches alone, which are evaluated as well.

A model that can't learn a few batches by heart has a mistake in it, and more data won't help.
"""

from collections.abc import Callable
from typing import Any

from absl import logging

from official_lite.common import errors
from official_lite.core import micro_batches
from official_lite.data import endless, first_batches

__all__ = ["check_given_data", "evaluation_inputs", "training_inputs", "validation_steps"]

_Inputs = Callable[..., Any]


def training_inputs(config: Any, build_inputs: _Inputs) -> _Inputs:
    """What builds the training data: endless, all of them or only the first batches."""
    count = _count(config)
    if not count:
        return endless.endless(build_inputs)
    logging.info(
        "`trainer.overfit_batches`: the first %d batches of the training data are trained on, over "
        "and over, and evaluated.",
        config.trainer.overfit_batches,
    )
    return first_batches.first_batches(build_inputs, count, config.runtime.seed, repeat=True)


def evaluation_inputs(config: Any, build_inputs: _Inputs, num_replicas: int) -> tuple[_Inputs, Any]:
    """What builds the data of an evaluation, and its `DataConfig`.

    Args:
        config: The experiment's config.
        build_inputs: That of the task.
        num_replicas: Among which each batch is divided.
    """
    count = _count(config)
    if not count:
        return build_inputs, config.task.validation_data
    data = micro_batches.micro_batch_data(config, num_replicas)
    first = first_batches.first_batches(build_inputs, count, config.runtime.seed, repeat=False)
    return first, data


def validation_steps(config: Any) -> int:
    """The batches of an evaluation; -1 is all of them."""
    steps: int = config.trainer.validation_steps
    return steps if steps == -1 else _count(config) or steps


def check_given_data(config: Any, *datasets: Any) -> None:
    """Refuses datasets that a trainer was given, of which no first batches can be taken.

    Raises:
        errors.ConfigValueError: There is one, and there is `trainer.overfit_batches`.
    """
    if _count(config) and any(dataset is not None for dataset in datasets):
        raise errors.ConfigValueError(
            f"`trainer.overfit_batches` is {config.trainer.overfit_batches}, but the trainer was "
            "given its data. Set it to 0, or leave the data to `task.build_inputs`."
        )


def _count(config: Any) -> int:
    """The micro-batches to learn; 0 also where the config has no word for it."""
    batches: int = getattr(config.trainer, "overfit_batches", 0)
    return batches * micro_batches.count_micro_batches(config)
