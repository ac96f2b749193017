"""Faster update steps for Keras optimizers, which compute the same results with fewer ops.

Keras 3 writes the update of a variable as a dozen ops, most of which traverse the whole variable.
It also recomputes shared values for each variable. The classes here are mixins that precede an
optimizer class. Apart from rounding, the results equal Keras' own, and the optimizer's variables
are the same.

The exception is the opt-in `lazy_rows`, which changes the results: the rows of a table that a step
looks up are updated as usual, and everything that belongs to the other rows stays unchanged.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import keras
import tensorflow as tf

from official_lite.common import keras_variables

__all__ = [
    "AdagradUpdate",
    "AdamUpdate",
    "OptimizerHalf",
    "RMSpropUpdate",
    "RowUpdate",
    "SGDUpdate",
    "WeightDecay",
    "mixins_for",
]

if TYPE_CHECKING:
    from keras.optimizers import Optimizer as OptimizerHalf
else:
    # At runtime the mixins derive from `object`; the optimizer class provides the other half.
    OptimizerHalf = object


def mixins_for(optimizer_cls: type[keras.optimizers.Optimizer]) -> Iterator[type]:
    """Yield the mixins for the methods that an optimizer class inherits unchanged from Keras."""
    if optimizer_cls._apply_weight_decay is keras.optimizers.Optimizer._apply_weight_decay:
        yield WeightDecay
    for keras_cls, mixin in _UPDATES.items():
        if optimizer_cls.update_step is keras_cls.update_step:
            yield mixin


class WeightDecay(OptimizerHalf):
    """Mixin for `w -= learning_rate * weight_decay * w`; the product of the rates is computed once.

    With `lazy_rows`, rows of a table decay in the steps that look them up.
    """

    lazy_rows = False

    def _apply_weight_decay(self, variables: Sequence[Any]) -> None:
        # With lazy rows, the gradients determine which variables decay as a whole.
        if not self.lazy_rows:
            self._decay_whole(variables)

    def _backend_update_step(
        self, grads: Sequence[Any], trainable_variables: Sequence[Any], learning_rate: tf.Tensor
    ) -> None:
        if self.lazy_rows:
            pairs = zip(grads, trainable_variables, strict=True)
            self._decay_whole([v for g, v in pairs if not isinstance(g, tf.IndexedSlices)])
        super()._backend_update_step(grads, trainable_variables, learning_rate)

    def _decay_whole(self, variables: Sequence[Any]) -> None:
        optimizer: Any = self
        if not optimizer.weight_decay:
            return
        rate = tf.convert_to_tensor(optimizer.learning_rate) * optimizer.weight_decay
        tf.__internal__.distribute.interim.maybe_merge_call(
            self._decay_all,
            optimizer._distribution_strategy,
            [*map(keras_variables.raw, variables)],
            rate,
        )

    def _decay_all(
        self, strategy: tf.distribute.Strategy, variables: Sequence[Any], rate: tf.Tensor
    ) -> None:
        for variable in variables:
            strategy.extended.update(variable, self._decay, args=(rate,), group=False)

    def _decay(self, variable: tf.Variable, rate: tf.Tensor) -> None:
        optimizer: Any = self
        if optimizer._use_weight_decay(variable):
            variable.assign_sub(tf.cast(rate, variable.dtype) * variable, read_value=False)


class RowUpdate(OptimizerHalf):
    """Base class of mixins that can update individual rows of a variable.

    Attributes:
        lazy_rows: Whether a row without a gradient and its moments stay unchanged even if the
            optimizer's formula would move them.
    """

    lazy_rows = False

    @property
    def leaves_other_rows(self) -> bool:
        """Whether rows without a gradient stay unchanged."""
        return self.lazy_rows

    def _subtract(
        self, variable: tf.Variable, rows: tf.Tensor, step: tf.Tensor, rate: tf.Tensor
    ) -> None:
        """Subtract `step` from rows of a variable; with `lazy_rows`, apply weight decay first."""
        optimizer: Any = self
        values = _read_rows(variable, rows)
        if self.lazy_rows and optimizer.weight_decay and optimizer._use_weight_decay(variable):
            values -= tf.cast(rate * optimizer.weight_decay, values.dtype) * values
        _write_rows(variable, rows, values - step)


class _AdamScalars(NamedTuple):
    """Scalars shared by all variables of an Adam update.

    `unbiased_rate` is the learning rate with the correction for the bias of the moments.
    """

    learning_rate: tf.Tensor
    beta_1_power: tf.Tensor
    beta_2_power: tf.Tensor
    unbiased_rate: tf.Tensor


class AdamUpdate(RowUpdate):
    """Mixin for `keras.optimizers.Adam` and its subclasses that updates a variable with one kernel.

    This class computes `1 - beta` in float32, as it does the powers of beta. Keras uses float32
    only for the powers, which makes its updates inexact by 7 parts per million for a `beta_2` of
    0.999. The updates of this class are closer to the formula.
    """

    def _backend_update_step(
        self, grads: Sequence[Any], trainable_variables: Sequence[Any], learning_rate: tf.Tensor
    ) -> None:
        scalars = self._scalars(learning_rate)
        super()._backend_update_step(grads, trainable_variables, scalars)

    def update_step(
        self,
        gradient: tf.Tensor | tf.IndexedSlices,
        variable: tf.Variable,
        learning_rate: tf.Tensor,
    ) -> None:
        """Update one variable.

        Args:
            gradient: The gradient.
            variable: The variable of one replica.
            learning_rate: A scalar, or an `_AdamScalars` shared by all variables.
        """
        optimizer: Any = self
        is_shared = isinstance(learning_rate, _AdamScalars)
        shared = learning_rate if is_shared else self._scalars(learning_rate)
        if isinstance(gradient, tf.IndexedSlices):
            self._apply_to_rows(gradient, variable, shared)
            return
        if variable.dtype != tf.float32 or optimizer.amsgrad:
            super().update_step(gradient, variable, shared.learning_rate)
            return
        index = optimizer._get_variable_index(variable)
        moments = optimizer._momentums[index], optimizer._velocities[index]
        apply = self._apply_kernel if _has_fast_kernel(variable) else self._apply_ops
        apply(tf.cast(gradient, tf.float32), variable, *moments, shared)

    def _scalars(self, learning_rate: tf.Tensor) -> _AdamScalars:
        optimizer: Any = self
        step = tf.cast(tf.convert_to_tensor(optimizer.iterations) + 1, tf.float32)
        power_1 = tf.pow(tf.cast(optimizer.beta_1, tf.float32), step)
        power_2 = tf.pow(tf.cast(optimizer.beta_2, tf.float32), step)
        unbiased_rate = (
            tf.cast(learning_rate, tf.float32) * tf.sqrt(1.0 - power_2) / (1.0 - power_1)
        )
        return _AdamScalars(learning_rate, power_1, power_2, unbiased_rate)

    def _apply_kernel(
        self,
        gradient: tf.Tensor,
        variable: tf.Variable,
        mean: tf.Variable,
        square: tf.Variable,
        shared: _AdamScalars,
    ) -> None:
        optimizer: Any = self
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=mean.handle,
            v=square.handle,
            beta1_power=shared.beta_1_power,
            beta2_power=shared.beta_2_power,
            lr=tf.cast(shared.learning_rate, tf.float32),
            beta1=optimizer.beta_1,
            beta2=optimizer.beta_2,
            epsilon=optimizer.epsilon,
            grad=gradient,
        )

    def _apply_ops(
        self,
        gradient: tf.Tensor,
        variable: tf.Variable,
        mean: tf.Variable,
        square: tf.Variable,
        shared: _AdamScalars,
    ) -> None:
        optimizer: Any = self
        rest_1, rest_2 = (
            1.0 - tf.cast(b, tf.float32) for b in (optimizer.beta_1, optimizer.beta_2)
        )
        optimizer.assign_add(mean, (gradient - mean) * rest_1)
        optimizer.assign_add(square, (tf.square(gradient) - square) * rest_2)
        step = mean * shared.unbiased_rate / (tf.sqrt(square) + optimizer.epsilon)
        optimizer.assign_sub(variable, step)

    def _apply_to_rows(
        self, gradient: tf.IndexedSlices, variable: tf.Variable, shared: _AdamScalars
    ) -> None:
        optimizer: Any = self
        index = optimizer._get_variable_index(variable)
        rows, values = gradient.indices, tf.cast(gradient.values, variable.dtype)
        mean = _move_rows(optimizer._momentums[index], rows, values, optimizer.beta_1)
        square = _move_rows(optimizer._velocities[index], rows, tf.square(values), optimizer.beta_2)
        if optimizer.amsgrad:
            largest = optimizer._velocity_hats[index]
            square = tf.maximum(_read_rows(largest, rows), square)
            _write_rows(largest, rows, square)
        rate = tf.cast(shared.unbiased_rate, variable.dtype)
        step = rate * mean / (tf.sqrt(square) + optimizer.epsilon)
        self._subtract(variable, rows, step, shared.learning_rate)


def _has_fast_kernel(variable: tf.Variable) -> bool:
    """Return whether Adam's kernel is faster than separate ops.

    On CPUs the kernel distributes all but the smallest variables over threads. Up to a certain size
    this takes longer than the update itself: 30 µs for 1,024 elements, compared with 8 µs for the
    ops.
    """
    is_middling = 512 <= variable.shape.num_elements() < 2**15
    return not (is_middling and "CPU" in variable.device)


class SGDUpdate(RowUpdate):
    """Mixin for `keras.optimizers.SGD` that updates a variable with one kernel, or some rows."""

    @property
    def leaves_other_rows(self) -> bool:
        """Whether rows without a gradient stay unchanged."""
        optimizer: Any = self
        return self.lazy_rows or not optimizer.momentum

    def update_step(
        self,
        gradient: tf.Tensor | tf.IndexedSlices,
        variable: tf.Variable,
        learning_rate: tf.Tensor,
    ) -> None:
        """Update one variable."""
        optimizer: Any = self
        rate, gradient = (tf.cast(x, variable.dtype) for x in (learning_rate, gradient))
        if isinstance(gradient, tf.IndexedSlices):
            self._apply_to_rows(gradient, variable, rate)
        elif optimizer.momentum:
            momentum = optimizer.momentums[optimizer._get_variable_index(variable)]
            tf.raw_ops.ResourceApplyKerasMomentum(
                var=variable.handle,
                accum=momentum.handle,
                lr=rate,
                grad=gradient,
                momentum=tf.cast(optimizer.momentum, variable.dtype),
                use_nesterov=optimizer.nesterov,
            )
        else:
            tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=rate, delta=gradient)

    def _apply_to_rows(
        self, gradient: tf.IndexedSlices, variable: tf.Variable, rate: tf.Tensor
    ) -> None:
        optimizer: Any = self
        rows, step = gradient.indices, rate * gradient.values
        if optimizer.momentum:
            momentum = optimizer.momentums[optimizer._get_variable_index(variable)]
            kept = tf.cast(optimizer.momentum, variable.dtype)
            moved = kept * _read_rows(momentum, rows) - step
            _write_rows(momentum, rows, moved)
            step = step - kept * moved if optimizer.nesterov else -moved
        self._subtract(variable, rows, step, rate)


class AdagradUpdate(RowUpdate):
    """Mixin for `keras.optimizers.Adagrad` that updates individual rows of a variable."""

    @property
    def leaves_other_rows(self) -> bool:
        """Always True: the dense update leaves rows without a gradient unchanged as well."""
        return True

    def update_step(
        self,
        gradient: tf.Tensor | tf.IndexedSlices,
        variable: tf.Variable,
        learning_rate: tf.Tensor,
    ) -> None:
        """Update one variable."""
        if not isinstance(gradient, tf.IndexedSlices):
            super().update_step(gradient, variable, learning_rate)
            return
        optimizer: Any = self
        accumulator = optimizer._accumulators[optimizer._get_variable_index(variable)]
        rows, values = gradient.indices, tf.cast(gradient.values, variable.dtype)
        squares = _read_rows(accumulator, rows) + tf.square(values)
        _write_rows(accumulator, rows, squares)
        step = tf.cast(learning_rate, variable.dtype) * values
        step /= tf.sqrt(squares + optimizer.epsilon)
        self._subtract(variable, rows, step, learning_rate)


class RMSpropUpdate(RowUpdate):
    """Mixin for `keras.optimizers.RMSprop` that updates individual rows of a variable."""

    def update_step(
        self,
        gradient: tf.Tensor | tf.IndexedSlices,
        variable: tf.Variable,
        learning_rate: tf.Tensor,
    ) -> None:
        """Update one variable."""
        if not isinstance(gradient, tf.IndexedSlices):
            super().update_step(gradient, variable, learning_rate)
            return
        optimizer: Any = self
        index = optimizer._get_variable_index(variable)
        rows, values = gradient.indices, tf.cast(gradient.values, variable.dtype)
        spread = _move_rows(optimizer._velocities[index], rows, tf.square(values), optimizer.rho)
        if optimizer.centered:
            mean = _move_rows(optimizer._average_gradients[index], rows, values, optimizer.rho)
            spread -= tf.square(mean)
        step = tf.cast(learning_rate, variable.dtype) * values
        step /= tf.sqrt(spread + optimizer.epsilon)
        if optimizer.momentum > 0:
            momentum = optimizer._momentums[index]
            step += optimizer.momentum * _read_rows(momentum, rows)
            _write_rows(momentum, rows, step)
        self._subtract(variable, rows, step, learning_rate)


_UPDATES: dict[Any, type] = {
    keras.optimizers.Adam: AdamUpdate,
    keras.optimizers.SGD: SGDUpdate,
    keras.optimizers.Adagrad: AdagradUpdate,
    keras.optimizers.RMSprop: RMSpropUpdate,
}


def _read_rows(variable: tf.Variable, rows: tf.Tensor) -> tf.Tensor:
    return tf.raw_ops.ResourceGather(resource=variable.handle, indices=rows, dtype=variable.dtype)


def _move_rows(average: tf.Variable, rows: tf.Tensor, target: tf.Tensor, decay: float) -> tf.Tensor:
    """Move rows of a moving average towards `target`, and return their new values."""
    values = _read_rows(average, rows)
    values += (target - values) * (1.0 - tf.cast(decay, target.dtype))
    _write_rows(average, rows, values)
    return values


def _write_rows(variable: tf.Variable, rows: tf.Tensor, values: tf.Tensor) -> None:
    # Copying rows is several times faster than adding to them.
    tf.raw_ops.ResourceScatterUpdate(resource=variable.handle, indices=rows, updates=values)
