"""Gradient accumulation: several micro-batches, one update."""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import keras
import tensorflow as tf

from official_lite.common import errors
from official_lite.modeling import distributed_gradients

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
    of tables of which a step looks up some rows, unless `tables` says otherwise.
    """

    def __init__(
        self,
        optimizer: keras.optimizers.Optimizer,
        variables: Sequence[keras.Variable],
        num_micro_batches: int,
        tables: Sequence[keras.Variable] = (),
    ) -> None:
        """Creates the sums; call it in the strategy's scope.

        Args:
            optimizer: Where the averaged gradients go.
            variables: The variables that may get gradients.
            num_micro_batches: How many calls of `apply_gradients` make an update.
            tables: Those of which the rows that were looked up are kept, and nothing of the size
                of the table.
        """
        super().__init__(optimizer)
        self._variables = list(variables)
        self._num_micro_batches = num_micro_batches
        are_tables = {id(table) for table in tables}
        self._sums: dict[int, _Sum] = {
            id(v): (_RowSum if id(v) in are_tables else _DenseSum)(v) for v in self._variables
        }
        self._touched: set[int] = set()

    def apply_gradients(self, grads_and_vars: GradientsAndVariables, **kwargs: Any) -> None:
        """Adds to the sums. Call it in a replica's context."""
        for gradient, variable in grads_and_vars:
            if gradient is None:
                continue
            if isinstance(gradient, tf.IndexedSlices):
                self._require_rows(variable)
            self._touched.add(id(variable))
            self._sums[id(variable)].add(gradient)

    def _require_rows(self, variable: keras.Variable) -> None:
        keeps_rows = isinstance(self._sums[id(variable)], _RowSum)
        if distributed_gradients.has_lazy_rows(self._optimizer) and not keeps_rows:
            raise errors.ConfigValueError(
                f"The optimizer has `lazy_rows`, and `{variable.path}` is looked up in, but by no "
                "`keras.layers.Embedding`: only of those are the rows of micro-batches kept. Set "
                "`trainer.grad_accum_steps` to 1, or `lazy_rows` to false."
            )

    def flush(self) -> None:
        """Applies the average and starts anew. Call it in a replica's context, after tracing."""
        # A variable that no micro-batch gave a gradient to must not be touched by the optimizer:
        # a zero gradient would still move it by momentum and weight decay.
        touched = [v for v in self._variables if id(v) in self._touched]
        averages = [self._sums[id(v)].divide_by(self._num_micro_batches) for v in touched]
        self._optimizer.apply_gradients(list(zip(averages, touched, strict=True)))
        for variable in touched:
            self._sums[id(variable)].reset()


class _Sum(Protocol):
    """The sum of one variable's gradients, on each replica."""

    def add(self, gradient: Any) -> None: ...

    def divide_by(self, count: int) -> Any:
        """The sum over that number."""

    def reset(self) -> None: ...


class _DenseSum:
    def __init__(self, variable: keras.Variable) -> None:
        self._total = _per_replica(tf.zeros(variable.shape, variable.dtype))

    def add(self, gradient: Any) -> None:
        dense = tf.convert_to_tensor(gradient)
        self._total.assign_add(tf.cast(dense, self._total.dtype))

    def divide_by(self, count: int) -> Any:
        return self._total.read_value() / count

    def reset(self) -> None:
        self._total.assign(tf.zeros_like(self._total))


class _RowSum:
    """All look-ups one after the other, as `tf.IndexedSlices` have them."""

    def __init__(self, table: keras.Variable) -> None:
        self._num_rows, *width = table.shape
        self._width = width
        self._rows = _per_replica(tf.zeros([0], tf.int64), [None])
        self._values = _per_replica(tf.zeros([0, *width], table.dtype), [None, *width])

    def add(self, gradient: Any) -> None:
        if not isinstance(gradient, tf.IndexedSlices):
            # The table is used in another way as well.
            gradient = tf.IndexedSlices(gradient, tf.range(self._num_rows))
        for kept, new in ((self._rows, gradient.indices), (self._values, gradient.values)):
            kept.assign(tf.concat([kept.read_value(), tf.cast(new, kept.dtype)], 0))

    def divide_by(self, count: int) -> Any:
        shape = tf.constant([self._num_rows, *self._width], tf.int64)
        return tf.IndexedSlices(self._values.read_value() / count, self._rows.read_value(), shape)

    def reset(self) -> None:
        for kept in (self._rows, self._values):
            kept.assign(kept.read_value()[:0])


def _per_replica(value: tf.Tensor, shape: Sequence[int | None] | None = None) -> tf.Variable:
    return tf.Variable(
        value,
        shape=shape and tf.TensorShape(shape),
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
