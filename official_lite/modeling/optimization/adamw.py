"""Variants of AdamW: the one used to train BERT, and schedule-free AdamW."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

import keras
import tensorflow as tf

from official_lite.common.keras_variables import local_values
from official_lite.modeling import distributed_gradients

__all__ = [
    "AdamWeightDecay",
    "ScheduleFreeAdamW",
    "bias_correction",
    "matches_any",
    "restart_averaging",
]


@keras.saving.register_keras_serializable("official_lite")
class AdamWeightDecay(keras.optimizers.AdamW):
    """Keras' AdamW with lists of decaying variables and gradients clipped to a global norm of 1.

    Before each Adam step, a weight shrinks by `learning_rate * weight_decay_rate` times its value
    (Loshchilov and Hutter, https://arxiv.org/abs/1711.05101).

    Args:
        learning_rate: A number or a schedule.
        beta_1: The decay of the first moment.
        beta_2: The decay of the second moment.
        epsilon: A small number added to the square root of the second moment.
        amsgrad: Whether to use the maximum of all second moments so far, which never shrinks.
        weight_decay_rate: The fraction of a weight to subtract, before multiplying by the learning
            rate.
        include_in_weight_decay: Patterns of variables that always decay; they take precedence over
            `exclude_from_weight_decay`.
        exclude_from_weight_decay: Patterns of variables that do not decay.
        gradient_clip_norm: The maximum L2 norm of all gradients together; 0 disables clipping.
        name: The optimizer's name.
        **kwargs: Arguments of any Keras optimizer.
    """

    def __init__(
        self,
        learning_rate: float | keras.optimizers.schedules.LearningRateSchedule = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        amsgrad: bool = False,
        weight_decay_rate: float = 0.0,
        include_in_weight_decay: Sequence[str] | None = None,
        exclude_from_weight_decay: Sequence[str] | None = None,
        gradient_clip_norm: float = 1.0,
        name: str = "AdamWeightDecay",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            learning_rate=learning_rate,
            weight_decay=weight_decay_rate,
            beta_1=beta_1,
            beta_2=beta_2,
            epsilon=epsilon,
            amsgrad=amsgrad,
            name=name,
            **kwargs,
        )
        self.gradient_clip_norm = gradient_clip_norm
        self.include_in_weight_decay = include_in_weight_decay
        self.exclude_patterns = exclude_from_weight_decay

    def get_config(self) -> dict[str, Any]:
        """Return the constructor arguments."""
        config = super().get_config()
        config["weight_decay_rate"] = config.pop("weight_decay")
        return config | {
            "include_in_weight_decay": self.include_in_weight_decay,
            "exclude_from_weight_decay": self.exclude_patterns,
            "gradient_clip_norm": self.gradient_clip_norm,
        }

    def _clip_gradients(self, grads: Sequence[Any]) -> Sequence[Any]:
        if self.gradient_clip_norm > 0:
            grads, _ = tf.clip_by_global_norm(grads, self.gradient_clip_norm)
        return super()._clip_gradients(grads)

    def _use_weight_decay(self, variable: keras.Variable | tf.Variable) -> bool:
        if not self.weight_decay:
            return False
        # Keras passes the raw variable of one replica, which has a name but no path.
        variable = self._trainable_variables[self._get_variable_index(variable)]
        if matches_any(variable, self.include_in_weight_decay):
            return True
        if matches_any(variable, self.exclude_patterns):
            return False
        return super()._use_weight_decay(variable)


@keras.saving.register_keras_serializable("official_lite")
class ScheduleFreeAdamW(keras.optimizers.ScheduleFreeAdamW):
    """Keras' optimizer of the same name (https://arxiv.org/abs/2405.15682), with a correction.

    With TensorFlow, Keras 3.15 reads the old momentum after it has assigned the new one, so that
    `beta_1` has no effect.
    """

    def warmup_factor(self, dtype: Any = "float32") -> tf.Tensor:
        """Return the number by which the next update multiplies the learning rate.

        It is computed in at least float32 and then cast to `dtype`.
        """
        step = tf.cast(self.iterations + 1, keras.backend.result_type(dtype, "float32"))
        return tf.cast(tf.minimum(step / max(self.warmup_steps, 1), 1.0), dtype)

    def update_step(
        self, gradient: tf.Tensor, variable: tf.Variable, learning_rate: tf.Tensor
    ) -> None:
        """Update one variable."""
        index = self._get_variable_index(variable)
        momentum, velocity = self._momentums[index], self._velocities[index]
        gradient = tf.cast(gradient, variable.dtype)
        rate, step = (tf.cast(x, variable.dtype) for x in (learning_rate, self.iterations + 1))
        rate *= self.warmup_factor(variable.dtype)
        # The weights are `beta_1` times their average plus `1 - beta_1` times the momentum, so
        # `average` is the average of the weights times `beta_1`.
        average = variable - (1.0 - self.beta_1) * momentum
        self.assign_add(velocity, (tf.square(gradient) - velocity) * (1.0 - self.beta_2))
        unbiased = velocity / bias_correction(self.beta_2, self.iterations + 1, variable.dtype)
        self.assign_sub(momentum, rate * gradient / (tf.sqrt(unbiased) + self.epsilon))
        average += (self.beta_1 * momentum - average) / step
        self.assign(variable, average + (1.0 - self.beta_1) * momentum)


def restart_averaging(optimizer: keras.optimizers.Optimizer) -> None:
    """Make schedule-free optimizers restart their averaging at the current weights.

    Keras copies the weights when such an optimizer is built. Weights that are loaded later, such as
    those of `task.init_checkpoint`, would be pulled back to the random initial weights.

    Args:
        optimizer: Any optimizer. It and the optimizers inside it change only if they are
            schedule-free and built.
    """
    for one in distributed_gradients.innermost_optimizers(optimizer):
        # A `MultiOptimizer` does not build an optimizer to which it assigns no variables.
        if not isinstance(one, keras.optimizers.ScheduleFreeAdamW) or not one.built:
            continue
        for weight, momentum in zip(one._trainable_variables, one._momentums, strict=True):
            for value, copy in zip(local_values(weight), local_values(momentum), strict=True):
                copy.assign(value.read_value())


def bias_correction(beta: float, step: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Return `1 - beta**step`, the sum of the weights of a moving average that starts at 0.

    It is computed in at least float32 and then cast to `dtype`: 0.999 is 1 in bfloat16.
    """
    precise = keras.backend.result_type(dtype, "float32")
    power = tf.pow(tf.cast(beta, precise), tf.cast(step, precise))
    return tf.cast(1.0 - power, dtype)


def matches_any(
    variable: keras.Variable | tf.Variable, patterns: Iterable[str] | str | None
) -> bool:
    """Return whether a pattern matches the variable's path (`encoder/layer_norm/gamma`) or name.

    Args:
        variable: A `keras.Variable` or a `tf.Variable`.
        patterns: A regular expression for `re.search`, or several; None matches nothing. A pattern
            that contains a colon, such as `kernel:0$`, is searched for in the names of Keras 2,
            which end in `:0`.
    """
    patterns = [patterns] if isinstance(patterns, str) else patterns or ()
    name = variable.name.partition(":")[0]
    path = getattr(variable, "path", name)
    return any(
        re.search(pattern, text + (":0" if ":" in pattern else ""))
        for pattern in patterns
        for text in (path, name)
    )
