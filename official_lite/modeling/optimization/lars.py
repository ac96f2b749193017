"""LARS: momentum with a step size proportional to the norm of the layer's weights."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from official_lite.modeling.optimization import adamw, lamb

__all__ = ["LARS"]


@keras.saving.register_keras_serializable("official_lite")
class LARS(keras.optimizers.Optimizer):
    """Layer-wise adaptive rate scaling, for training with large batches.

    From "Large Batch Training of Convolutional Networks" (You, Gitman and Ginsburg,
    https://arxiv.org/abs/1708.03888).

    Args:
        learning_rate: A number or a schedule.
        momentum: The fraction of the previous step that is kept.
        weight_decay_rate: The fraction of the weights that is added to the gradient.
        eeta: The coefficient of the ratio between the norms of the weights and the gradient.
        nesterov: Whether to use Nesterov momentum.
        classic_momentum: Whether the scaled learning rate multiplies the gradient before it enters
            the momentum, as in the paper. If False, it multiplies the finished step.
        exclude_from_weight_decay: Patterns of variables without weight decay.
        exclude_from_layer_adaptation: Patterns of variables whose learning rate is not scaled. If
            empty or None, `exclude_from_weight_decay` is used.
        name: The optimizer's name.
        **kwargs: Arguments of any Keras optimizer.
    """

    def __init__(
        self,
        learning_rate: float | keras.optimizers.schedules.LearningRateSchedule = 0.01,
        momentum: float = 0.9,
        weight_decay_rate: float = 0.0,
        eeta: float = 0.001,
        nesterov: bool = False,
        classic_momentum: bool = True,
        exclude_from_weight_decay: Sequence[str] | None = None,
        exclude_from_layer_adaptation: Sequence[str] | None = None,
        name: str = "LARS",
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate=learning_rate, name=name, **kwargs)
        self.momentum = momentum
        self.weight_decay_rate = weight_decay_rate
        self.eeta = eeta
        self.nesterov = nesterov
        self.classic_momentum = classic_momentum
        self.no_decay_patterns = exclude_from_weight_decay
        self.no_adaptation_patterns = exclude_from_layer_adaptation or exclude_from_weight_decay

    def build(self, variables: Sequence[Any]) -> None:
        """Create a momentum variable for each variable."""
        if self.built:
            return
        super().build(variables)
        self._momentums = self.add_optimizer_variables(variables, "momentum")

    def update_step(
        self,
        gradient: tf.Tensor | tf.IndexedSlices,
        variable: tf.Variable,
        learning_rate: tf.Tensor,
    ) -> None:
        """Update one variable."""
        index = self._get_variable_index(variable)
        reference, momentum = self._trainable_variables[index], self._momentums[index]
        gradient = tf.cast(gradient, variable.dtype)
        learning_rate = tf.cast(learning_rate, variable.dtype)
        if self.weight_decay_rate and not adamw.matches_any(reference, self.no_decay_patterns):
            gradient += self.weight_decay_rate * variable
        is_adapted = not adamw.matches_any(reference, self.no_adaptation_patterns)
        if self.classic_momentum:
            scale = self._scale(variable, gradient) if is_adapted else 1.0
            step = self._with_momentum(learning_rate * scale * gradient, momentum)
        else:
            step = self._with_momentum(gradient, momentum)
            scale = self._scale(variable, step) if is_adapted else 1.0
            step *= learning_rate * scale
        self.assign_sub(variable, step)

    def get_config(self) -> dict[str, Any]:
        """Return the constructor arguments."""
        return super().get_config() | {
            "momentum": self.momentum,
            "weight_decay_rate": self.weight_decay_rate,
            "eeta": self.eeta,
            "nesterov": self.nesterov,
            "classic_momentum": self.classic_momentum,
            "exclude_from_weight_decay": self.no_decay_patterns,
            "exclude_from_layer_adaptation": self.no_adaptation_patterns,
        }

    def _scale(self, variable: tf.Variable, update: tf.Tensor) -> tf.Tensor:
        return lamb.trust_ratio(variable, update, coefficient=self.eeta)

    def _with_momentum(self, update: tf.Tensor, momentum: tf.Variable) -> tf.Tensor:
        accumulated = self.momentum * momentum + update
        self.assign(momentum, accumulated)
        return self.momentum * accumulated + update if self.nesterov else accumulated
