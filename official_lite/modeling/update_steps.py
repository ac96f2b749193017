"""What Keras' optimizers compute, in fewer ops.

Keras 3 writes the update of a variable as a dozen ops, most of which pass over all of it, and
computes anew for each variable what all of them share. The classes here are mixins before the class
of an optimizer; the results are Keras' own up to rounding, and so are the optimizer's variables.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import keras
import tensorflow as tf

__all__ = [
    "AdagradUpdate",
    "AdamUpdate",
    "OptimizerHalf",
    "SGDUpdate",
    "WeightDecay",
    "mixins_for",
]

if TYPE_CHECKING:
    from keras.optimizers import Optimizer as OptimizerHalf
else:
    # A mixin comes before the class of an optimizer, which has the other half.
    OptimizerHalf = object


def mixins_for(optimizer_cls: Any) -> Iterator[type]:
    """The mixins for an optimizer's class: those for what it has from Keras as it is there."""
    if optimizer_cls._apply_weight_decay is keras.optimizers.Optimizer._apply_weight_decay:
        yield WeightDecay
    for keras_cls, mixin in _UPDATES.items():
        if optimizer_cls.update_step is keras_cls.update_step:
            yield mixin


class WeightDecay(OptimizerHalf):
    """Mixin: `w -= learning_rate * weight_decay * w`, the product of the two computed once."""

    def _apply_weight_decay(self, variables: Sequence[Any]) -> None:
        optimizer: Any = self
        if not optimizer.weight_decay:
            return
        rate = tf.convert_to_tensor(optimizer.learning_rate) * optimizer.weight_decay
        tf.__internal__.distribute.interim.maybe_merge_call(
            self._decay_all, optimizer._distribution_strategy, [*map(_raw, variables)], rate
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


class _AdamScalars(NamedTuple):
    """What all variables of an update share; the last one makes up for the bias of the moments."""

    learning_rate: tf.Tensor
    beta_1_power: tf.Tensor
    beta_2_power: tf.Tensor
    unbiased_rate: tf.Tensor


class AdamUpdate(OptimizerHalf):
    """Mixin before `keras.optimizers.Adam` and its like: one kernel for a variable.

    It takes 1 - beta from beta in float32, as it does the powers. Keras does so with the powers
    only, by which its updates are off by 7 parts in a million for a `beta_2` of 0.999; these are
    nearer to the formula.
    """

    def _backend_update_step(
        self, grads: Sequence[Any], trainable_variables: Sequence[Any], learning_rate: Any
    ) -> None:
        scalars = self._scalars(learning_rate)
        super()._backend_update_step(grads, trainable_variables, scalars)

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """One step of one variable.

        Args:
            gradient: The gradient.
            variable: The variable of one replica.
            learning_rate: A scalar; or all that the variables share.
        """
        optimizer: Any = self
        is_shared = isinstance(learning_rate, _AdamScalars)
        shared = learning_rate if is_shared else self._scalars(learning_rate)
        if variable.dtype != tf.float32 or optimizer.amsgrad:
            super().update_step(gradient, variable, shared.learning_rate)
            return
        index = optimizer._get_variable_index(variable)
        moments = optimizer._momentums[index], optimizer._velocities[index]
        apply = self._apply_kernel if _has_fast_kernel(variable) else self._apply_ops
        apply(tf.cast(gradient, tf.float32), variable, *moments, shared)

    def _scalars(self, learning_rate: Any) -> _AdamScalars:
        optimizer: Any = self
        step = tf.cast(tf.convert_to_tensor(optimizer.iterations) + 1, tf.float32)
        power_1 = tf.pow(tf.cast(optimizer.beta_1, tf.float32), step)
        power_2 = tf.pow(tf.cast(optimizer.beta_2, tf.float32), step)
        unbiased_rate = (
            tf.cast(learning_rate, tf.float32) * tf.sqrt(1.0 - power_2) / (1.0 - power_1)
        )
        return _AdamScalars(learning_rate, power_1, power_2, unbiased_rate)

    def _apply_kernel(
        self, gradient: tf.Tensor, variable: Any, mean: Any, square: Any, shared: _AdamScalars
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
        self, gradient: tf.Tensor, variable: Any, mean: Any, square: Any, shared: _AdamScalars
    ) -> None:
        optimizer: Any = self
        rest_1, rest_2 = (
            1.0 - tf.cast(b, tf.float32) for b in (optimizer.beta_1, optimizer.beta_2)
        )
        optimizer.assign_add(mean, (gradient - mean) * rest_1)
        optimizer.assign_add(square, (tf.square(gradient) - square) * rest_2)
        step = mean * shared.unbiased_rate / (tf.sqrt(square) + optimizer.epsilon)
        optimizer.assign_sub(variable, step)


def _has_fast_kernel(variable: tf.Variable) -> bool:
    """Whether Adam's kernel takes less time than the ops.

    On CPUs it hands all but the smallest variables out to threads, which up to a certain size takes
    longer than the update itself: 30 µs at 1,024 elements, where the ops take 8.
    """
    is_middling = 512 <= variable.shape.num_elements() < 2**15
    return not (is_middling and "CPU" in variable.device)


class SGDUpdate(OptimizerHalf):
    """Mixin before `keras.optimizers.SGD`: one kernel for each variable, or some rows of it."""

    @property
    def leaves_other_rows(self) -> bool:
        """Whether rows without a gradient stay as they are."""
        return not self.momentum

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """One step of one variable."""
        optimizer: Any = self
        rate, gradient = (tf.cast(x, variable.dtype) for x in (learning_rate, gradient))
        if isinstance(gradient, tf.IndexedSlices):
            rows = gradient.indices
            _write_rows(variable, rows, _read_rows(variable, rows) - rate * gradient.values)
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


class AdagradUpdate(OptimizerHalf):
    """Mixin before `keras.optimizers.Adagrad`: some rows of a variable."""

    leaves_other_rows = True

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """One step of one variable."""
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
        _write_rows(variable, rows, _read_rows(variable, rows) - step)


_UPDATES: dict[Any, type] = {
    keras.optimizers.Adam: AdamUpdate,
    keras.optimizers.SGD: SGDUpdate,
    keras.optimizers.Adagrad: AdagradUpdate,
}


def _raw(variable: Any) -> Any:
    return variable.value if isinstance(variable, keras.Variable) else variable


def _read_rows(variable: Any, rows: tf.Tensor) -> tf.Tensor:
    return tf.raw_ops.ResourceGather(resource=variable.handle, indices=rows, dtype=variable.dtype)


def _write_rows(variable: Any, rows: tf.Tensor, values: tf.Tensor) -> None:
    # Rows are copied, and several times faster than added to.
    tf.raw_ops.ResourceScatterUpdate(resource=variable.handle, indices=rows, updates=values)
