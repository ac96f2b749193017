"""LAMB: Adam with a step size proportional to the norm of the layer's weights."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from official_lite.modeling.optimization import adamw

__all__ = ["LAMB", "trust_ratio"]


@keras.saving.register_keras_serializable("official_lite")
class LAMB(keras.optimizers.Lamb):
    """Keras' Lamb with weight decay inside the adapted step and lists of excluded variables.

    From "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes"
    (You et al., https://arxiv.org/abs/1904.00962). In the paper, the step is scaled by
    the norm of the sum of Adam's update and the weight decay. Keras applies its own `weight_decay`
    outside of the scaled step.

    Args:
        learning_rate: A number or a schedule.
        beta_1: The decay of the first moment.
        beta_2: The decay of the second moment.
        epsilon: A small number added to the square root of the second moment.
        weight_decay_rate: The fraction of the weights that is added to the update.
        exclude_from_weight_decay: Patterns of variables without weight decay.
        exclude_from_layer_adaptation: Patterns of variables that use Adam's step unscaled. If empty
            or None, `exclude_from_weight_decay` is used.
        name: The optimizer's name.
        **kwargs: Arguments of any Keras optimizer.
    """

    def __init__(
        self,
        learning_rate: float | keras.optimizers.schedules.LearningRateSchedule = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        weight_decay_rate: float = 0.0,
        exclude_from_weight_decay: Sequence[str] | None = None,
        exclude_from_layer_adaptation: Sequence[str] | None = None,
        name: str = "LAMB",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            learning_rate=learning_rate,
            beta_1=beta_1,
            beta_2=beta_2,
            epsilon=epsilon,
            name=name,
            **kwargs,
        )
        self.weight_decay_rate = weight_decay_rate
        self.no_decay_patterns = exclude_from_weight_decay
        self.no_adaptation_patterns = exclude_from_layer_adaptation or exclude_from_weight_decay

    def update_step(
        self,
        gradient: tf.Tensor | tf.IndexedSlices,
        variable: tf.Variable,
        learning_rate: tf.Tensor,
    ) -> None:
        """Update one variable."""
        index = self._get_variable_index(variable)
        reference = self._trainable_variables[index]
        gradient = tf.cast(gradient, variable.dtype)
        update = self._adam_update(gradient, index)
        if self.weight_decay_rate and not adamw.matches_any(reference, self.no_decay_patterns):
            update += self.weight_decay_rate * variable
        step_size = tf.cast(learning_rate, variable.dtype)
        if not adamw.matches_any(reference, self.no_adaptation_patterns):
            step_size *= trust_ratio(variable, update)
        self.assign_sub(variable, step_size * update)

    def get_config(self) -> dict[str, Any]:
        """Return the constructor arguments."""
        return super().get_config() | {
            "weight_decay_rate": self.weight_decay_rate,
            "exclude_from_weight_decay": self.no_decay_patterns,
            "exclude_from_layer_adaptation": self.no_adaptation_patterns,
        }

    def _adam_update(self, gradient: tf.Tensor, index: int) -> tf.Tensor:
        first, second = self._momentums[index], self._velocities[index]
        self.assign_add(first, (gradient - first) * (1.0 - self.beta_1))
        self.assign_add(second, (tf.square(gradient) - second) * (1.0 - self.beta_2))
        step, dtype = self.iterations + 1, gradient.dtype
        unbiased_first = first / adamw.bias_correction(self.beta_1, step, dtype)
        unbiased_second = second / adamw.bias_correction(self.beta_2, step, dtype)
        return unbiased_first / (tf.sqrt(unbiased_second) + self.epsilon)


def trust_ratio(weights: tf.Tensor, update: tf.Tensor, coefficient: float = 1.0) -> tf.Tensor:
    """Return the scalar `coefficient * |weights| / |update|`, or 1 if either norm is 0."""
    weights_norm, update_norm = tf.norm(weights), tf.norm(update)
    is_defined = tf.logical_and(weights_norm > 0, update_norm > 0)
    ratio = tf.math.divide_no_nan(coefficient * weights_norm, update_norm)
    return tf.where(is_defined, ratio, tf.ones_like(ratio))
