"""Adam with decoupled weight decay, as used to train BERT."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from official_lite.modeling.optimization import variable_patterns

__all__ = ["AdamWeightDecay"]


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
        amsgrad: Whether to use the maximum of all second moments so far, so that it never shrinks.
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
        if variable_patterns.matches_any(variable, self.include_in_weight_decay):
            return True
        if variable_patterns.matches_any(variable, self.exclude_patterns):
            return False
        return super()._use_weight_decay(variable)
