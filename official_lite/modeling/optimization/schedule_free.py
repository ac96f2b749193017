"""Schedule-free AdamW that can start from loaded weights."""

import keras

from official_lite.common.keras_variables import local_values

__all__ = ["ScheduleFreeAdamW"]


@keras.saving.register_keras_serializable("official_lite")
class ScheduleFreeAdamW(keras.optimizers.ScheduleFreeAdamW):
    """Keras' optimizer of the same name (https://arxiv.org/abs/2405.15682).

    Keras copies the weights when the optimizer is built. Weights that are loaded later, such as
    those of `task.init_checkpoint`, would be pulled back to the random initial weights.
    """

    def follow_weights(self) -> None:
        """Start the averaging at the present weights."""
        for weight, momentum in zip(self._trainable_variables, self._momentums, strict=True):
            for one, other in zip(local_values(weight), local_values(momentum), strict=True):
                other.assign(one.read_value())
