"""Optimizer wrapper that keeps a moving average of the weights."""

import contextlib
import functools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import keras
import tensorflow as tf

from official_lite.common import errors
from official_lite.common.keras_variables import local_values, path_of, raw
from official_lite.modeling import distributed_gradients

__all__ = [
    "ExponentialMovingAverage",
    "averaged_weights",
    "evaluate_averages",
    "evaluated_state",
    "follow_weights",
    "following_weights",
    "get_moving_average",
    "keeps_averages",
    "swap_weights",
    "weights_and_averages",
]

# Pairs of a model weight and its average.
Pairs: TypeAlias = Sequence[tuple[Any, Any]]


def get_moving_average(
    optimizer: keras.optimizers.Optimizer | None,
) -> "ExponentialMovingAverage | None":
    """Return the moving average inside `optimizer`, at any nesting depth, or None."""
    for wrapped in distributed_gradients.wrapped_optimizers(optimizer):
        if isinstance(wrapped, ExponentialMovingAverage):
            return wrapped
    return None


def keeps_averages(optimizer: keras.optimizers.Optimizer | None) -> bool:
    """Return whether an optimizer averages the weights, so that the averages are evaluated.

    True for an `ExponentialMovingAverage`, and for a Keras optimizer with `use_ema=True` on which
    `evaluate_averages` was called.
    """
    return get_moving_average(optimizer) is not None or bool(_with_use_ema(optimizer))


def weights_and_averages(optimizer: keras.optimizers.Optimizer | None) -> Pairs:
    """Return the averaged weights, each with its average; empty if there are no averages."""
    average = get_moving_average(optimizer)
    if average is not None:
        return average.shadows
    return [
        (weight, average)
        for one in _with_use_ema(optimizer)
        if one.built
        for weight, average in zip(
            one._trainable_variables, one._model_variables_moving_average, strict=True
        )
        if average is not None
    ]


def evaluate_averages(optimizer: keras.optimizers.Optimizer) -> None:
    """Make evaluations use the averages of a Keras optimizer with `use_ema=True`.

    An Orbit trainer that does not call this function evaluates the trained weights instead.
    """
    for one in distributed_gradients.innermost_optimizers(optimizer):
        if getattr(one, "use_ema", False):
            # Bypass `__setattr__`, which would track the value for saving.
            one.__dict__["evaluates_averages"] = True


def _with_use_ema(optimizer: keras.optimizers.Optimizer | None) -> list[Any]:
    if optimizer is None:
        return []
    innermost = distributed_gradients.innermost_optimizers(optimizer)
    return [one for one in innermost if getattr(one, "evaluates_averages", False)]


@contextlib.contextmanager
def averaged_weights(optimizer: keras.optimizers.Optimizer | None) -> Iterator[None]:
    """Switch the model to its averaged weights for the duration of the `with` block.

    The trained weights are restored on exit, even if the block raises. If `optimizer` keeps no
    averages, nothing changes.
    """
    swap_weights(optimizer)
    try:
        yield
    finally:
        swap_weights(optimizer)


@contextlib.contextmanager
def following_weights(optimizer: keras.optimizers.Optimizer | None) -> Iterator[None]:
    """Make the averages equal to the weights within the `with` block, and restore them on exit.

    Use this to save averaged weights in place of the trained ones. A program that restores the
    checkpoint and swaps the weights for an evaluation then gets the same model.
    """
    averages = [average for _, average in weights_and_averages(optimizer)]
    kept = [
        [tf.identity(one.read_value()) for one in local_values(average)] for average in averages
    ]
    follow_weights(optimizer)
    try:
        yield
    finally:
        for average, values in zip(averages, kept, strict=True):
            for one, value in zip(local_values(average), values, strict=True):
                one.assign(value)


@contextlib.contextmanager
def evaluated_state(optimizer: keras.optimizers.Optimizer | None) -> Iterator[None]:
    """Replace the trained weights by the evaluated ones within the `with` block.

    A checkpoint that is saved because of an evaluation result is saved in this context. Within the
    context, both the model's weights and their averages have the averaged values.
    """
    with averaged_weights(optimizer), following_weights(optimizer):
        yield


def swap_weights(optimizer: keras.optimizers.Optimizer | None) -> None:
    """Exchange the weights and their averages exactly; a second call undoes the first.

    In a graph, averages of weights in half precision are rounded.
    """
    wrapper = get_moving_average(optimizer)
    unrounded = {} if wrapper is None else wrapper._unrounded
    for weight, average in weights_and_averages(optimizer):
        for one, other in zip(local_values(weight), local_values(average), strict=True):
            value, mean = tf.identity(one.read_value()), tf.identity(other.read_value())
            one.assign(tf.cast(mean, one.dtype))
            kept = unrounded.pop(id(other), None)
            other.assign(_unround(value, mean.dtype, kept))
            if kept is None and one.dtype != other.dtype and tf.executing_eagerly():
                unrounded[id(other)] = mean


def follow_weights(optimizer: keras.optimizers.Optimizer | None) -> None:
    """Set every average to its weight, for weights that were loaded after the averages existed."""
    for weight, average in weights_and_averages(optimizer):
        for one, other in zip(local_values(weight), local_values(average), strict=True):
            other.assign(tf.cast(one.read_value(), other.dtype))


def _unround(value: tf.Tensor, dtype: tf.DType, unrounded: tf.Tensor | None) -> tf.Tensor:
    """Return `value` in `dtype`, with the elements of `unrounded` where they round to `value`."""
    exact = tf.cast(value, dtype)
    if unrounded is None:
        return exact
    return tf.where(value == tf.cast(unrounded, value.dtype), unrounded, exact)


@keras.saving.register_keras_serializable("official_lite")
class ExponentialMovingAverage(
    distributed_gradients.DistributedOptimizer, keras.optimizers.Optimizer
):
    """Optimizer wrapper that averages the weights after each update of the inner optimizer.

    ::

        optimizer = ExponentialMovingAverage(keras.optimizers.SGD(0.1))
        optimizer.shadow_copy(model)
        ...  # train
        optimizer.swap_weights()
        ...  # evaluate with the averages
        optimizer.swap_weights()

    The average `a` of a weight `w` starts as `w` and becomes `d * a + (1 - d) * w` after each
    update. The decay `d` is `average_decay`. With dynamic decay, it is
    `min(average_decay, (1 + t) / (10 + t))`, where `t` is the number of updates since
    `start_step`. Before `start_step` the average equals the weight. With equal weights, the average
    is the plain mean of the weights since `start_step`: stochastic weight averaging
    (https://arxiv.org/abs/1803.05407).

    The averages of weights that are less precise than float32 are float32, because the steps of an
    average are too small for half precision: 0.999 is 1 in bfloat16.

    With loss scaling, put this optimizer inside the `LossScaleOptimizer`. When gradients overflow,
    the `LossScaleOptimizer` then skips both the update and the averaging.

    Args:
        optimizer: The optimizer that updates the weights. It is made distributed
            (see `make_distributed`).
        trainable_weights_only: Whether to average only trainable weights, which excludes for
            example the moving statistics of batch normalization.
        average_decay: The fraction of the average that is kept at each update.
        start_step: The number of updates after which averaging starts.
        dynamic_decay: Whether the decay grows from 2/11 to `average_decay`.
        equal_weights: Whether to average all weights since `start_step` equally; the decay is
            ignored then.
        name: The optimizer's name.
        **kwargs: Keras' clipping arguments, which must be None.

    Raises:
        ConfigValueError: A clipping argument is not None.
    """

    def __init__(
        self,
        optimizer: keras.optimizers.Optimizer,
        trainable_weights_only: bool = True,
        average_decay: float = 0.99,
        start_step: int = 0,
        dynamic_decay: bool = True,
        equal_weights: bool = False,
        name: str = "ExponentialMovingAverage",
        **kwargs: Any,
    ) -> None:
        _refuse_clipping(kwargs)
        super().__init__(learning_rate=0.0, name=name)
        self.inner_optimizer = distributed_gradients.make_distributed(optimizer)
        self._trainable_weights_only = trainable_weights_only
        self._average_decay = average_decay
        self._start_step = start_step
        self._dynamic_decay = dynamic_decay
        self._equal_weights = equal_weights
        # Bypass `__setattr__`, which would track the model's weights as the optimizer's own.
        self.__dict__["_shadows"] = []
        # The averages that `swap_weights` has rounded to the dtypes of less precise weights.
        self.__dict__["_unrounded"] = {}

    @property
    def has_shadow_copy(self) -> bool:
        """Whether the averages exist."""
        return bool(self._shadows)

    @property
    def averages(self) -> list[Any]:
        """The existing averages, one for each averaged weight."""
        return [average for _, average in self._shadows]

    @property
    def shadows(self) -> list[tuple[Any, Any]]:
        """The pairs of a model weight and its average."""
        return list(self._shadows)

    def shadow_copy(self, model: keras.Model) -> None:
        """Create an average for each weight of a built model, initialized to the weight.

        Weights that already have an average keep it. Only floating-point weights are averaged: the
        mean of two counters or of two random seeds is meaningless.
        """
        is_trainable_only = self._trainable_weights_only
        self._add_shadows(model.trainable_variables if is_trainable_only else model.variables)

    def build(self, variables: Sequence[Any]) -> None:
        """Create the inner optimizer's variables, and the averages if there are none yet.

        Raises:
            ConfigValueError: `trainable_weights_only` is False and `shadow_copy` has not been
                called, so the set of weights to average is unknown.
        """
        if self.built:
            return
        if not self.has_shadow_copy:
            self._refuse_unknown_weights()
            self._add_shadows(variables)
        self.inner_optimizer.build(variables)
        super().build(variables)

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Update the weights, then their averages."""
        if not self.built and trainable_variables is not None:
            self.build(list(trainable_variables))
        self.inner_optimizer.apply(grads, trainable_variables)
        self.update_average()

    def update_average(self, strategy: tf.distribute.Strategy | None = None) -> None:
        """Move the averages towards the weights, in a replica or in a cross-replica context.

        Args:
            strategy: The distribution strategy; the current one by default.
        """
        strategy = strategy or tf.distribute.get_strategy()
        if tf.distribute.in_cross_replica_context():
            self._update_average(strategy)
        else:
            merge_call = tf.__internal__.distribute.interim.maybe_merge_call
            merge_call(self._update_average, strategy)

    def swap_weights(self) -> None:
        """Exchange the weights and their averages exactly; a second call undoes the first.

        Raises:
            ValueError: The method was called in a replica, or there are no averages yet.
        """
        context = tf.distribute.get_replica_context()
        if context is not None and context.num_replicas_in_sync > 1:
            raise ValueError(
                "`swap_weights` was called in a replica, but weights are swapped on all replicas "
                "at once. Call it outside `strategy.run`."
            )
        if not self.has_shadow_copy:
            raise ValueError("There are no averages yet. Call `shadow_copy(model)` first.")
        swap_weights(self)

    def assign_average_vars(self, var_list: Iterable[Any]) -> None:
        """Set each trainable variable in `var_list` to its average.

        Raises:
            ValueError: A variable has no average.
        """
        averages = {id(raw(weight)): average for weight, average in self._shadows}
        for variable in var_list:
            if not variable.trainable:
                continue
            if id(raw(variable)) not in averages:
                raise ValueError(f"`{variable.name}` has no average. Call `shadow_copy` first.")
            average = averages[id(raw(variable))]
            for one, other in zip(local_values(variable), local_values(average), strict=True):
                one.assign(tf.cast(other.read_value(), one.dtype))

    @property
    def iterations(self) -> Any:
        """The number of updates so far."""
        return self.inner_optimizer.iterations

    @property
    def learning_rate(self) -> Any:
        """The inner optimizer's learning rate."""
        return self.inner_optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, learning_rate: Any) -> None:
        self.inner_optimizer.learning_rate = learning_rate

    @property
    def variables(self) -> list[Any]:
        """The wrapper's own variables, such as averages, then the inner optimizer's variables."""
        return [*self._variables, *self.inner_optimizer.variables]

    def sum_gradients(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Return the gradients as summed by the inner optimizer."""
        return self.inner_optimizer.sum_gradients(gradients, variables)

    def scale_loss(self, loss: tf.Tensor) -> tf.Tensor:
        """Return the loss as scaled by the inner optimizer."""
        return self.inner_optimizer.scale_loss(loss)

    def finalize_variable_values(self, var_list: Sequence[Any]) -> None:
        """Let the inner optimizer finalize the weights."""
        self.inner_optimizer.finalize_variable_values(var_list)

    def get_config(self) -> dict[str, Any]:
        """Return the constructor arguments."""
        return {
            "optimizer": keras.optimizers.serialize(self.inner_optimizer),
            "trainable_weights_only": self._trainable_weights_only,
            "average_decay": self._average_decay,
            "start_step": self._start_step,
            "dynamic_decay": self._dynamic_decay,
            "equal_weights": self._equal_weights,
            "name": self.name,
        }

    @classmethod
    def from_config(
        cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None
    ) -> "ExponentialMovingAverage":
        """Build an optimizer from the result of `get_config`."""
        optimizer = keras.optimizers.deserialize(config["optimizer"], custom_objects)
        return cls(**(config | {"optimizer": optimizer}))

    def _refuse_unknown_weights(self) -> None:
        if not self._trainable_weights_only:
            raise errors.ConfigValueError(
                "`trainable_weights_only` is False, but the optimizer does not know the model. "
                "Call `shadow_copy(model)` before the first update."
            )

    def _add_shadows(self, weights: Iterable[Any]) -> None:
        known = {id(raw(weight)) for weight, _ in self._shadows}
        for weight in weights:
            if id(raw(weight)) in known or not tf.as_dtype(weight.dtype).is_floating:
                continue
            with self._distribution_strategy.extended.colocate_vars_with(raw(weight)):
                average = self.add_variable(
                    shape=weight.shape,
                    initializer=functools.partial(_value_of, weight),
                    dtype=keras.backend.result_type(weight.dtype, "float32"),
                    name=f"{re.sub('[/:]', '_', path_of(weight))}_average",
                )
            self._shadows.append((weight, average))

    def _update_average(self, strategy: tf.distribute.Strategy) -> None:
        decay = self._decay()
        for weight, average in self._shadows:
            strategy.extended.update(
                average.value, _move_average, args=(raw(weight), decay), group=False
            )

    def _decay(self) -> tf.Tensor:
        step = tf.cast(tf.convert_to_tensor(self.iterations), tf.float32) - self._start_step
        decay = tf.constant(self._average_decay, tf.float32)
        if self._equal_weights:
            decay = step / (step + 1.0)
        elif self._dynamic_decay:
            decay = tf.minimum(decay, (1.0 + step) / (10.0 + step))
        return tf.where(step < 0, 0.0, decay)


def _refuse_clipping(kwargs: dict[str, Any]) -> None:
    unknown = [name for name in kwargs if name not in ("clipnorm", "clipvalue", "global_clipnorm")]
    if unknown:
        raise TypeError(f"ExponentialMovingAverage has no argument {unknown[0]!r}.")
    given = [name for name, value in kwargs.items() if value is not None]
    if given:
        raise errors.ConfigValueError(
            f"ExponentialMovingAverage does not clip gradients. Set `{given[0]}` on the optimizer "
            "that it wraps."
        )


def _value_of(weight: keras.Variable, shape: Sequence[int], dtype: str) -> tf.Tensor:
    """Return the value of `weight`; `shape` and `dtype` are arguments of any Keras initializer."""
    return tf.cast(tf.convert_to_tensor(weight), dtype)


def _move_average(average: tf.Variable, weight: tf.Variable, decay: tf.Tensor) -> None:
    # With this formula, a decay of 0 reproduces the weight bit for bit.
    value = tf.cast(weight, average.dtype)
    average.assign(value + tf.cast(decay, average.dtype) * (average - value))
