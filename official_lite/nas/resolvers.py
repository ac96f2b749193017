"""How a choice is computed while it is open: as a mixture of its options, or as one of them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from official_lite.common import errors
from official_lite.nas import choices, draws

__all__ = ["GateResolver", "GumbelResolver", "MixtureResolver", "PathResolver", "require_sum"]

# NNI's and the paper's: nearly equal at the beginning.
_INITIAL_SPREAD = 1e-3


class MixtureResolver:
    """All options, added up by the softmax of α, a number for each (DARTS).

    Create it in the strategy's scope.

    Attributes:
        alpha: The numbers, `[options]`.
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
        """What is trained."""
        return [self.alpha]

    def logits(self) -> tf.Tensor:
        """How much each option is preferred, `[options]`."""
        return tf.convert_to_tensor(self.alpha)

    def probs(self) -> tf.Tensor:
        """How probable each option is, `[options]`."""
        return tf.nn.softmax(self.logits())

    def export(self) -> int:
        """The index of the option that is preferred."""
        return int(tf.argmax(self.probs()))

    def __call__(self, choice: choices.Choice, inputs: Any, training: Any) -> Any:
        return _mix(choice.outputs(inputs), self.weights(choice.label))

    def weights(self, label: str) -> tf.Tensor:
        """What the options are multiplied with."""
        return self.probs()


class GumbelResolver(MixtureResolver):
    """All options, by a softmax of α with noise, which a temperature makes more or less decided.

    Args:
        choice: The choice.
        hard: Whether one of them counts alone, of which the gradient knows nothing.
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
    """One option: the one drawn in a step, the preferred one outside of it."""

    def __call__(self, choice: choices.Choice, inputs: Any, training: Any) -> Any:
        draw = draws.current()
        index = self.preferred() if draw is None else draw.paths[choice.label]
        return _switch(choice, inputs, index)

    def preferred(self) -> tf.Tensor:
        """The index of the preferred option, int32."""
        return tf.argmax(self.logits(), output_type=tf.int32)


class GateResolver(PathResolver):
    """One option; where the architecture learns, all of them behind gates that let one through.

    The gradient with respect to α is that of ProxylessNAS: Σ_j ∂L/∂g_j p_j (δ_ij − p_i).
    """

    def __call__(self, choice: choices.Choice, inputs: Any, training: Any) -> Any:
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


def _switch(choice: choices.Choice, inputs: Any, index: tf.Tensor) -> Any:
    def branch(number: int) -> Any:
        return lambda: choice.branch(number, inputs)

    return tf.switch_case(index, [branch(number) for number in range(len(choice.options))])


def _straight_through(probs: tf.Tensor, index: tf.Tensor) -> tf.Tensor:
    """One and zeros, with the gradient of the probabilities."""
    one_hot = tf.one_hot(index, probs.shape[0], dtype=probs.dtype)
    return tf.stop_gradient(one_hot - probs) + probs


def _one_hot_of_largest(logits: tf.Tensor) -> tf.Tensor:
    return tf.one_hot(tf.argmax(logits), logits.shape[0], dtype=logits.dtype)


def require_sum(choice: choices.Choice) -> None:
    reduction = getattr(choice, "reduction", "sum")
    if reduction not in ("sum", "mean"):
        raise errors.ConfigValueError(
            f"The choice {choice.label!r} has `reduction={reduction!r}`, which can't be searched "
            "in one training; `sum` and `mean` can."
        )


def _name(prefix: str, choice: choices.Choice) -> str:
    return f"{prefix}_{re.sub(r'[^0-9A-Za-z_.]', '_', choice.label)}"
