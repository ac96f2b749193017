"""Adam with decoupled weight decay, as BERT was trained."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from official_lite.modeling.optimization import variable_patterns

__all__ = ["AdamWeightDecay"]


@keras.saving.register_keras_serializable("official_lite")
class AdamWeightDecay(keras.optimizers.AdamW):
    """Keras' AdamW with lists of what decays, and gradients clipped to a global norm of 1.

    The weights decay by `learning_rate * weight_decay_rate` of themselves before Adam's step
    (Loshchilov and Hutter, https://arxiv.org/abs/1711.05101).
    """

    def __init__(
        self,
        learning_rate: Any = 0.001,
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
        """Sets the hyperparameters.

        Args:
            learning_rate: A number or a schedule.
            beta_1: Decay of the first moment.
            beta_2: Decay of the second moment.
            epsilon: Added to the root of the second moment.
            amsgrad: Whether the second moment never shrinks.
            weight_decay_rate: How much of itself a weight loses, times the learning rate.
            include_in_weight_decay: Patterns of variables that decay whatever the next list says.
            exclude_from_weight_decay: Patterns of variables that do not decay.
            gradient_clip_norm: Bound of the L2 norm of all gradients together; 0 is none.
            name: The optimizer's name.
            **kwargs: As for any Keras optimizer.
        """
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
        """The arguments of the constructor."""
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

    def _use_weight_decay(self, variable: Any) -> bool:
        if not self.weight_decay:
            return False
        # Keras hands in the raw variable of one replica, which knows its name but not its path.
        variable = self._trainable_variables[self._get_variable_index(variable)]
        if variable_patterns.matches_any(variable, self.include_in_weight_decay):
            return True
        if variable_patterns.matches_any(variable, self.exclude_patterns):
            return False
        return super()._use_weight_decay(variable)
