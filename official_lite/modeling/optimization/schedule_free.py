"""Schedule-free AdamW that can start from loaded weights."""

import keras
import tensorflow as tf

from official_lite.common.keras_variables import local_values

__all__ = ["ScheduleFreeAdamW"]


@keras.saving.register_keras_serializable("official_lite")
class ScheduleFreeAdamW(keras.optimizers.ScheduleFreeAdamW):
    """Keras' optimizer of the same name (https://arxiv.org/abs/2405.15682), with two corrections.

    Keras copies the weights when the optimizer is built. Weights that are loaded later, such as
    those of `task.init_checkpoint`, would be pulled back to the random initial weights.

    With TensorFlow, Keras 3.15 reads the old momentum after it has assigned the new one, so that
    `beta_1` has no effect.
    """

    def update_step(
        self, gradient: tf.Tensor, variable: tf.Variable, learning_rate: tf.Tensor
    ) -> None:
        """Update one variable."""
        index = self._get_variable_index(variable)
        momentum, velocity = self._momentums[index], self._velocities[index]
        gradient = tf.cast(gradient, variable.dtype)
        rate, step = (tf.cast(x, variable.dtype) for x in (learning_rate, self.iterations + 1))
        if self.warmup_steps:
            rate *= tf.minimum(step / self.warmup_steps, 1.0)
        # The weights are `beta_1` times their average plus the rest of the momentum.
        average = variable - (1.0 - self.beta_1) * momentum
        self.assign_add(velocity, (tf.square(gradient) - velocity) * (1.0 - self.beta_2))
        unbiased = velocity / (1.0 - tf.pow(tf.cast(self.beta_2, variable.dtype), step))
        self.assign_sub(momentum, rate * gradient / (tf.sqrt(unbiased) + self.epsilon))
        average += (self.beta_1 * momentum - average) / step
        self.assign(variable, average + (1.0 - self.beta_1) * momentum)

    def follow_weights(self) -> None:
        """Start the averaging at the present weights."""
        for weight, momentum in zip(self._trainable_variables, self._momentums, strict=True):
            for one, other in zip(local_values(weight), local_values(momentum), strict=True):
                other.assign(one.read_value())
