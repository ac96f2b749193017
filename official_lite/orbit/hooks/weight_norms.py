"""A hook that logs weight norms."""

import re
from typing import Any

import keras
import tensorflow as tf

from official_lite.common import errors, keras_variables, suggestions
from official_lite.orbit import runner
from official_lite.orbit.hooks.hook import Hook


class WeightNorms(Hook):
    """Logs the L2 norm of trainable weights to the event storage.

    Without a pattern, the hook logs `weight_norm/global`, the norm over all weights. With a
    pattern, it logs `weight_norm/<path>` for each matching weight.

    Args:
      pattern: A regular expression that is searched for in variable paths.
      histograms: Whether to also log `weights/<path>`, a histogram of each weight.
      every_n_steps: The interval.
    """

    def __init__(
        self, pattern: str | None = None, histograms: bool = False, every_n_steps: int = 100
    ) -> None:
        self.every_n_steps = every_n_steps
        self._pattern = pattern
        self._histograms = histograms

    def before_train(self) -> None:
        self._weights()

    def after_step(self) -> None:
        storage = self.controller.storage
        weights = self._weights()
        squares = {path: _sum_of_squares(weight) for path, weight in weights.items()}
        if self._pattern is None:
            squares = {"global": tf.add_n(list(squares.values()))}
        for path, square in squares.items():
            storage.put_scalar(f"weight_norm/{path}", float(tf.sqrt(square)), smoothing_hint=False)
        if self._histograms:
            for path, weight in weights.items():
                storage.put_histogram(f"weights/{path}", tf.convert_to_tensor(weight).numpy())

    def _weights(self) -> dict[str, Any]:
        model = runner.model_of(self.trainer)
        if model is None:
            raise errors.ConfigValueError(
                f"{type(self.trainer).__name__} has no `model`, so WeightNorms has no weights to "
                "measure."
            )
        weights = {keras_variables.path_of(weight): weight for weight in model.trainable_variables}
        found = {p: w for p, w in weights.items() if re.search(self._pattern or "", p)}
        if not found:
            raise errors.ConfigValueError(
                f"WeightNorms: no trainable weight matches {self._pattern!r}. "
                + suggestions.did_you_mean(self._pattern or "", weights)
            )
        return found


def _sum_of_squares(weight: keras.Variable | tf.Variable) -> tf.Tensor:
    # In float32: half precision overflows.
    return tf.reduce_sum(tf.square(tf.cast(tf.convert_to_tensor(weight), tf.float32)))
