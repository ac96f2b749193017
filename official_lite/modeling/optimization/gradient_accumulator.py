"""Gradient accumulation: several micro-batches, one update."""

from collections.abc import Iterable, Sequence
from typing import Any

import keras
import tensorflow as tf

__all__ = ["GradientAccumulator", "GradientCollector", "GradientSink"]

GradientsAndVariables = Iterable[tuple[Any, keras.Variable]]


class GradientSink:
    """Stands where the optimizer stands in a task's `train_step`, and drops the gradients.

    Every other attribute is the optimizer's, `isinstance` included, so that a task that asks for
    loss scaling or for the learning rate can't tell the difference. Useful by itself for tracing a
    train step without training.
    """

    def __init__(self, optimizer: keras.optimizers.Optimizer) -> None:
        self._optimizer = optimizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._optimizer, name)

    @property  # type: ignore[misc]  # read-only: it is not to be reassigned
    def __class__(self) -> type:
        return type(self._optimizer)

    def apply_gradients(self, grads_and_vars: GradientsAndVariables, **kwargs: Any) -> None:
        """Takes what the optimizer would have taken."""

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """As `apply_gradients`, in Keras 3's form."""
        variables = trainable_variables or self._optimizer._trainable_variables
        self.apply_gradients(zip(grads, variables, strict=True))


class GradientAccumulator(GradientSink):
    """Averages the gradients of `num_micro_batches` calls, each on every replica.

    The sums are kept per replica and meet only in the optimizer, once per update, so that the
    number of all-reduces does not grow with the number of micro-batches. Keras' own
    `gradient_accumulation_steps` raises under more than one replica. The sums are dense, also those
    of tables of which a step looks up some rows.
    """

    def __init__(
        self,
        optimizer: keras.optimizers.Optimizer,
        variables: Sequence[keras.Variable],
        num_micro_batches: int,
    ) -> None:
        """Creates the sums; call it in the strategy's scope.

        Args:
            optimizer: Where the averaged gradients go.
            variables: The variables that may get gradients.
            num_micro_batches: How many calls of `apply_gradients` make an update.
        """
        super().__init__(optimizer)
        self._variables = list(variables)
        self._num_micro_batches = num_micro_batches
        self._sums = {id(v): _zeros_per_replica(v) for v in self._variables}
        self._touched: set[int] = set()

    def apply_gradients(self, grads_and_vars: GradientsAndVariables, **kwargs: Any) -> None:
        """Adds to the sums. Call it in a replica's context."""
        for gradient, variable in grads_and_vars:
            if gradient is None:
                continue
            self._touched.add(id(variable))
            dense = tf.convert_to_tensor(gradient)
            self._sums[id(variable)].assign_add(tf.cast(dense, variable.dtype))

    def flush(self) -> None:
        """Applies the average and starts anew. Call it in a replica's context, after tracing."""
        # A variable that no micro-batch gave a gradient to must not be touched by the optimizer:
        # a zero gradient would still move it by momentum and weight decay.
        touched = [v for v in self._variables if id(v) in self._touched]
        averages = [self._sums[id(v)].read_value() / self._num_micro_batches for v in touched]
        self._optimizer.apply_gradients(list(zip(averages, touched, strict=True)))
        for variable in touched:
            total = self._sums[id(variable)]
            total.assign(tf.zeros_like(total))


def _zeros_per_replica(variable: keras.Variable) -> tf.Variable:
    return tf.Variable(
        tf.zeros(variable.shape, variable.dtype),
        trainable=False,
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.SUM,
    )


class GradientCollector(GradientSink):
    """Keeps the gradients of one traced call, so that they can be applied somewhere else.

    XLA can't compile the exchange between replicas: the step is compiled with a collector in the
    optimizer's place, and what it collected is applied outside.
    """

    def __init__(self, optimizer: keras.optimizers.Optimizer) -> None:
        super().__init__(optimizer)
        self.grads_and_vars: list[tuple[tf.Tensor, keras.Variable]] = []

    def apply_gradients(self, grads_and_vars: GradientsAndVariables, **kwargs: Any) -> None:
        """Keeps what has a gradient."""
        self.grads_and_vars += [(g, v) for g, v in grads_and_vars if g is not None]
