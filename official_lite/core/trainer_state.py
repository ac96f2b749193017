"""What of a trainer belongs in its checkpoints, and what of these an evaluation needs."""

from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from official_lite.modeling import step_seeds
from official_lite.modeling.optimization import ema_optimizer

__all__ = ["find_unneeded"]


def find_unneeded(checkpoint: tf.train.Checkpoint, optimizer: Any) -> Iterator[Any]:
    """Yield the variables of a checkpoint that an evaluation does not read.

    These are the states of random generators and of optimizers, but not the averages of the
    weights, which are what is evaluated if the optimizer keeps them.

    Args:
        checkpoint: The checkpoint of a trainer.
        optimizer: Its optimizer.
    """
    average = ema_optimizer.get_moving_average(optimizer)
    needed: list[Any] = []
    if average is not None:
        # Without the count inside of it, what was saved is an optimizer that keeps no average.
        needed = [average.inner_optimizer.iterations, *average.averages]
    needed_ids = {id(variable) for variable in needed}
    for part in tf.train.TrackableView(checkpoint).descendants():
        if isinstance(part, keras.optimizers.Optimizer):
            # Not all below it, which includes the weights of the model.
            yield from (v for v in part.variables if id(v) not in needed_ids)
        elif isinstance(part, keras.Variable) and step_seeds.is_seed(part):
            yield part
