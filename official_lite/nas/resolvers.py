"""Resolvers, which compute an open choice as a mixture of its options or as one of them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from official_lite.common import errors, types
from official_lite.nas import choices, draws

__all__ = ["GateResolver", "GumbelResolver", "MixtureResolver", "PathResolver", "require_sum"]

# The same as in NNI and the paper: all options are nearly equal at the beginning.
_INITIAL_SPREAD = 1e-3


class MixtureResolver:
    """A resolver that sums all options, weighted by the softmax of α (DARTS).

    Create it in the strategy's scope.

    Attributes:
        alpha: The architecture parameters α, of shape `[options]`.
    """

    def __init__(self, choice: choices.Choice) -> None:
        require_sum(choice)
        prior = [math.log(p) for p in choice.prior] if choice.prior else 0.0
        noise = keras.random.normal([len(choice.options)], stddev=_INITIAL_SPREAD)
        self.alpha = keras.Variable(
            noise + prior, dtype="float32", autocast=False, name=_name("alpha", choice)
        )

    @property
    def variables(self) -> list[keras.Variable]:
        """The trainable variables."""
        return [self.alpha]

    def logits(self) -> tf.Tensor:
        """Return the logits of the options, of shape `[options]`."""
        return tf.convert_to_tensor(self.alpha)

    def probs(self) -> tf.Tensor:
        """Return the probabilities of the options, of shape `[options]`."""
        return tf.nn.softmax(self.logits())

    def export(self) -> int:
        """Return the index of the preferred option."""
        return int(tf.argmax(self.probs()))

    def __call__(self, choice: choices.Choice, inputs: types.Nest, training: bool | None) -> Any:
        return _mix(choice.outputs(inputs), self.weights(choice.label))

    def weights(self, label: str) -> tf.Tensor:
        """Return the factors of the options in the sum, of shape `[options]`."""
        return self.probs()


class GumbelResolver(MixtureResolver):
    """A resolver that sums all options, weighted by a Gumbel softmax of α.

    The weights are the softmax of (α + noise) / temperature, or of α alone outside of training.

    Args:
        choice: The choice.
        hard: Whether the output is the single option with the largest weight. The gradient is that
            of the soft weights (straight-through estimator).
    """

    def __init__(self, choice: choices.Choice, *, hard: bool) -> None:
        super().__init__(choice)
        self._hard = hard

    def weights(self, label: str) -> tf.Tensor:
        draw = draws.current()
        if draw is None:
            return _one_hot_of_largest(self.logits()) if self._hard else self.probs()
        soft = tf.nn.softmax((self.logits() + draw.noise[label]) / draw.temperature)
        return _straight_through(soft, tf.argmax(soft)) if self._hard else soft


class PathResolver(MixtureResolver):
    """A resolver that computes one option: the drawn one in a step, else the preferred one."""

    def __call__(self, choice: choices.Choice, inputs: types.Nest, training: bool | None) -> Any:
        draw = draws.current()
        index = self.preferred() if draw is None else draw.paths[choice.label]
        return _switch(choice, inputs, index)

    def preferred(self) -> tf.Tensor:
        """Return the index of the preferred option, int32."""
        return tf.argmax(self.logits(), output_type=tf.int32)


class GateResolver(PathResolver):
    """A resolver that computes one option, or all options behind binary gates.

    The gates are used in steps of the architecture. They let one option through, and the gradient
    with respect to α is that of ProxylessNAS: Σ_j ∂L/∂g_j p_j (δ_ij − p_i).
    """

    def __call__(self, choice: choices.Choice, inputs: types.Nest, training: bool | None) -> Any:
        draw = draws.current()
        if draw is None or not draw.gates:
            return super().__call__(choice, inputs, training)
        gates = _straight_through(self.probs(), draw.paths[choice.label])
        return _mix(choice.outputs(inputs), gates)


def _mix(outputs: Sequence[Any], weights: tf.Tensor) -> Any:
    shares = tf.unstack(weights)
    return tf.add_n(
        [tf.cast(share, out.dtype) * out for share, out in zip(shares, outputs, strict=True)]
    )


def _switch(choice: choices.Choice, inputs: types.Nest, index: tf.Tensor) -> Any:
    def branch(number: int) -> Any:
        return lambda: choice.branch(number, inputs)

    return tf.switch_case(index, [branch(number) for number in range(len(choice.options))])


def _straight_through(probs: tf.Tensor, index: tf.Tensor) -> tf.Tensor:
    """Return a one-hot vector that has the gradient of the probabilities."""
    one_hot = tf.one_hot(index, probs.shape[0], dtype=probs.dtype)
    return tf.stop_gradient(one_hot - probs) + probs


def _one_hot_of_largest(logits: tf.Tensor) -> tf.Tensor:
    return tf.one_hot(tf.argmax(logits), logits.shape[0], dtype=logits.dtype)


def require_sum(choice: choices.Choice) -> None:
    reduction = getattr(choice, "reduction", "sum")
    if reduction not in ("sum", "mean"):
        raise errors.ConfigValueError(
            f"The choice {choice.label!r} has `reduction={reduction!r}`, which one-shot trainers "
            "don't support. Use `sum` or `mean`."
        )


def _name(prefix: str, choice: choices.Choice) -> str:
    return f"{prefix}_{re.sub(r'[^0-9A-Za-z_.]', '_', choice.label)}"
