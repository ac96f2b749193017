"""Gradient accumulation: one optimizer update from several micro-batches."""

import contextlib
import contextvars
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from official_lite.common import errors, keras_variables
from official_lite.modeling import distributed_gradients

__all__ = ["GradientAccumulator", "GradientCollector", "GradientSink", "weighing"]

# The weight of the current micro-batch. Use a context variable, which is set per thread, because
# each replica of a `MirroredStrategy` has its own thread.
_weight: contextvars.ContextVar[tf.Tensor | None] = contextvars.ContextVar("weight", default=None)

GradientsAndVariables = Iterable[tuple[Any, keras.Variable]]


class GradientSink:
    """Stand-in for the optimizer in a task's `train_step` that discards the gradients.

    All other attributes are the optimizer's, and `isinstance` accepts the sink as the optimizer. A
    task that queries loss scaling or the learning rate therefore cannot tell the difference. On its
    own, a sink is useful for tracing a train step without training.
    """

    def __init__(self, optimizer: keras.optimizers.Optimizer) -> None:
        self._optimizer = optimizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._optimizer, name)

    @property  # type: ignore[misc]  # intentionally read-only
    def __class__(self) -> type:
        return type(self._optimizer)

    def apply_gradients(self, grads_and_vars: GradientsAndVariables, **kwargs: Any) -> None:
        """Accept and discard the gradients that the optimizer would apply."""

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Accept gradients through the Keras 3 method and pass them to `apply_gradients`."""
        variables = trainable_variables or self._optimizer._trainable_variables
        self.apply_gradients(zip(grads, variables, strict=True))


class GradientAccumulator(GradientSink):
    """Optimizer stand-in that averages the gradients of micro-batches on every replica.

    All micro-batches weigh the same, except within `weighing`.

    The sums are kept per replica and are reduced over the replicas by the optimizer, once per
    update. The number of all-reduces therefore does not grow with the number of micro-batches.
    (Keras' own `gradient_accumulation_steps` raises with more than one replica.) All sums are
    dense, including those of embedding tables of which a step looks up only some rows, unless the
    table is listed in `tables`.

    Create the accumulator in the strategy's scope.

    Args:
        optimizer: The optimizer that receives the averaged gradients.
        variables: The variables that may receive gradients, besides those of the optimizer.
        num_micro_batches: The number of `apply_gradients` calls per update.
        tables: Variables for which only the looked-up rows are kept, so that no sum has the size
            of the table.
        are_summed: Whether all gradients and weights are already summed over all replicas.
    """

    def __init__(
        self,
        optimizer: keras.optimizers.Optimizer,
        variables: Sequence[keras.Variable],
        num_micro_batches: int,
        tables: Sequence[keras.Variable] = (),
        *,
        are_summed: bool = False,
    ) -> None:
        super().__init__(optimizer)
        of_optimizer = (
            variable
            for one in distributed_gradients.wrapped_optimizers(optimizer)
            for variable in getattr(one, "_trainable_variables", ())
        )
        self._variables = list({id(v): v for v in (*variables, *of_optimizer)}.values())
        self._num_micro_batches = num_micro_batches
        self._are_summed = are_summed
        are_tables = {id(table) for table in tables}
        self._sums: dict[int, _DenseSum | _RowSum] = {
            id(v): (_RowSum if id(v) in are_tables else _DenseSum)(v) for v in self._variables
        }
        self._touched: set[int] = set()
        self._total_weight = _per_replica(tf.constant(0.0))
        self._is_weighted = False

    def apply_gradients(
        self,
        grads_and_vars: GradientsAndVariables,
        *,
        experimental_aggregate_gradients: bool = True,
        skip_gradients_aggregation: bool = False,
        **kwargs: Any,
    ) -> None:
        """Add the gradients to the sums; call this in a replica context.

        The arguments are those of `DistributedOptimizer.apply_gradients`.
        """
        is_summed = skip_gradients_aggregation or not experimental_aggregate_gradients
        for gradient, variable in grads_and_vars:
            if gradient is None:
                continue
            if id(variable) not in self._sums:
                raise errors.ConfigValueError(
                    f"`train_step` passes a gradient for the variable "
                    f"{keras_variables.path_of(variable)}, but the optimizer was built without "
                    "this variable. Build the optimizer on all variables in `create_optimizer`, or "
                    "make the variable a weight of the model."
                )
            if isinstance(gradient, tf.IndexedSlices):
                self._require_rows(variable)
            if is_summed and not self._are_summed:
                # The optimizer sums the averages over the replicas again.
                num_replicas = tf.distribute.get_strategy().num_replicas_in_sync
                gradient = _weighted(gradient, tf.constant(1.0 / num_replicas))
            self._touched.add(id(variable))
            self._sums[id(variable)].add(_weighted(gradient, _weight.get()))

    def add_weight(self, weight: tf.Tensor) -> None:
        """Add the weight of a micro-batch to the total weight of the update."""
        self._is_weighted = True
        self._total_weight.assign_add(weight)

    def _require_rows(self, variable: keras.Variable) -> None:
        keeps_rows = isinstance(self._sums[id(variable)], _RowSum)
        if distributed_gradients.has_lazy_rows(self._optimizer) and not keeps_rows:
            raise errors.ConfigValueError(
                "With `lazy_rows`, gradient accumulation supports only lookups by a "
                "`keras.layers.Embedding`, but other code makes the lookups in "
                f"`{keras_variables.path_of(variable)}`. Set `trainer.grad_accum_steps` to 1, or "
                "`lazy_rows` to false."
            )

    def flush(self) -> None:
        """Apply the averages and reset the sums; call this in a replica context, after tracing."""
        # Pass only variables that received a gradient from a micro-batch. A zero gradient would let
        # momentum and weight decay change the other variables.
        touched = [v for v in self._variables if id(v) in self._touched]
        total: Any = self._num_micro_batches
        if self._is_weighted:
            total = self._total_weight.read_value()
        averages = [self._sums[id(v)].divide_by(total) for v in touched]
        summed = distributed_gradients.gradients_already_summed
        with summed() if self._are_summed else contextlib.nullcontext():
            self._optimizer.apply_gradients(list(zip(averages, touched, strict=True)))
        for variable in touched:
            self._sums[id(variable)].reset()
        if self._is_weighted:
            self._total_weight.assign(0.0)


@contextlib.contextmanager
def weighing(accumulator: GradientAccumulator, weight: tf.Tensor | None) -> Iterator[None]:
    """Weigh the gradients of one micro-batch, which are accumulated in the `with` block.

    Args:
        accumulator: The accumulator.
        weight: The weight, a scalar; None if all micro-batches weigh the same.
    """
    if weight is None:
        yield
        return
    accumulator.add_weight(weight)
    token = _weight.set(weight)
    try:
        yield
    finally:
        _weight.reset(token)


def _weighted(
    gradient: tf.Tensor | tf.IndexedSlices, weight: tf.Tensor | None
) -> tf.Tensor | tf.IndexedSlices:
    if weight is None:
        return gradient
    if isinstance(gradient, tf.IndexedSlices):
        values = _weighted(gradient.values, weight)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    # Use `multiply_no_nan`: the gradients of a micro-batch without examples may be NaN, and its
    # weight is 0, but 0 * NaN would be NaN.
    return tf.math.multiply_no_nan(gradient, tf.cast(weight, gradient.dtype))


class _DenseSum:
    """Running sum of one variable's gradients on each replica."""

    def __init__(self, variable: keras.Variable) -> None:
        self._dtype = variable.dtype
        # Half precision would lose the gradients that are small compared with the sum.
        dtype = keras.backend.result_type(variable.dtype, "float32")
        self._total = _per_replica(tf.zeros(variable.shape, dtype))

    def add(self, gradient: tf.Tensor | tf.IndexedSlices) -> None:
        dense = tf.convert_to_tensor(gradient)
        self._total.assign_add(tf.cast(dense, self._total.dtype))

    def divide_by(self, total: Any) -> Any:
        """Return the sum divided by the total weight."""
        average = self._total.read_value() / tf.cast(total, self._total.dtype)
        return tf.cast(average, self._dtype)

    def reset(self) -> None:
        self._total.assign(tf.zeros_like(self._total))


class _RowSum:
    """Sum of a table's gradients, stored like `tf.IndexedSlices` as concatenated rows."""

    def __init__(self, table: keras.Variable) -> None:
        self._num_rows, *width = table.shape
        self._width = width
        self._rows = _per_replica(tf.zeros([0], tf.int64), [None])
        self._values = _per_replica(tf.zeros([0, *width], table.dtype), [None, *width])

    def add(self, gradient: tf.Tensor | tf.IndexedSlices) -> None:
        if not isinstance(gradient, tf.IndexedSlices):
            # The gradient is dense if the table is also used for something other than lookups.
            gradient = tf.IndexedSlices(gradient, tf.range(self._num_rows))
        for kept, new in ((self._rows, gradient.indices), (self._values, gradient.values)):
            kept.assign(tf.concat([kept.read_value(), tf.cast(new, kept.dtype)], 0))

    def divide_by(self, total: Any) -> Any:
        shape = tf.constant([self._num_rows, *self._width], tf.int64)
        values = self._values.read_value() / tf.cast(total, self._values.dtype)
        return tf.IndexedSlices(values, self._rows.read_value(), shape)

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
    """Optimizer stand-in that keeps the gradients of one traced call, to be applied elsewhere.

    XLA cannot compile the exchange between replicas. The step is therefore compiled with a
    collector in place of the optimizer, and the collected gradients are applied outside the
    compiled step.

    Attributes:
        updates: The gradients and variables of each call of `apply_gradients`.
    """

    def __init__(self, optimizer: keras.optimizers.Optimizer) -> None:
        super().__init__(optimizer)
        self.updates: list[list[tuple[tf.Tensor, keras.Variable]]] = []

    def apply_gradients(self, grads_and_vars: GradientsAndVariables, **kwargs: Any) -> None:
        """Collect the pairs that have a gradient."""
        self.updates.append([(g, v) for g, v in grads_and_vars if g is not None])
