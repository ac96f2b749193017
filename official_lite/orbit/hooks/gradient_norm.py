"""A hook that logs gradient norms."""

import re
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from official_lite import telemetry
from official_lite.common import errors, keras_variables, suggestions
from official_lite.orbit import runner
from official_lite.orbit.hooks.hook import GraphHook


class GradientNorm(GraphHook):
    """Logs the L2 norm of the gradients of each update to the event storage.

    `gradient_norm` covers all variables, and `gradient_norm/<path>` covers a single variable. The
    gradients are those of the whole update: summed over replicas, averaged over micro-batches,
    without the loss scale, and not yet clipped. A report contains the mean over the updates in its
    interval, so a single spike shows at full height only with a `log_interval` of 1. Updates that
    loss scaling skips are not counted. If there are several optimizers, each makes its own update.

    Args:
      histograms: Whether to also log `gradients/<path>`, a histogram of each gradient.
      pattern: A regular expression that is searched for in variable paths. Norms and histograms of
        single variables are limited to matching variables. If `histograms` is false, a pattern
        implies `per_variable=True`.
      per_variable: Whether to also log the norm of each variable's gradient.
    """

    takes_rows = True

    def __init__(
        self, histograms: bool = False, pattern: str | None = None, per_variable: bool = False
    ) -> None:
        self._histograms = histograms
        self._pattern = re.compile(pattern or "")
        self._per_variable = per_variable or (pattern is not None and not histograms)

    def before_train(self) -> None:
        model = runner.model_of(self.trainer)
        if not self._pattern.pattern or model is None:
            return
        paths = [keras_variables.path_of(variable) for variable in model.trainable_variables]
        if not any(self._pattern.search(path) for path in paths):
            raise errors.ConfigValueError(
                f"GradientNorm: no trainable weight matches {self._pattern.pattern!r}. "
                + suggestions.did_you_mean(self._pattern.pattern, paths)
            )

    def on_gradients(self, grads_and_vars: Sequence[tuple[Any, Any]]) -> None:
        # In float32: the squares overflow in half precision. A histogram counts all zeros.
        gradients = [tf.cast(self._numbers(g), tf.float32) for g, _ in grads_and_vars]
        telemetry.put_scalar("gradient_norm", tf.linalg.global_norm(gradients))
        for gradient, (_, variable) in zip(gradients, grads_and_vars, strict=True):
            if self._pattern.search(keras_variables.path_of(variable)):
                self._put(keras_variables.path_of(variable), gradient)

    def _numbers(self, gradient: tf.Tensor | tf.IndexedSlices) -> tf.Tensor:
        is_of_rows = isinstance(gradient, tf.IndexedSlices) and not self._histograms
        return gradient.values if is_of_rows else tf.convert_to_tensor(gradient)

    def _put(self, path: str, gradient: tf.Tensor) -> None:
        if self._per_variable:
            telemetry.put_scalar(f"gradient_norm/{path}", tf.norm(gradient))
        if self._histograms:
            telemetry.put_histogram(f"gradients/{path}", gradient)
