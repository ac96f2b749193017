"""Resolvers, which compute an open choice as a mixture of its options or as one of them.

The `Draw` of a step tells resolvers which paths, noise and temperature to use. All draws are
derived from the seed of the run and the step. Therefore all replicas draw the same values, and a
resumed training draws the same values as an uninterrupted one.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from official_lite.common import errors, nests
from official_lite.nas import choices

__all__ = [
    "Draw",
    "GateResolver",
    "GumbelResolver",
    "MixtureResolver",
    "PathResolver",
    "active_draw",
    "current_draw",
    "gumbel_noise",
    "require_sum",
    "sample",
]

# The largest number of equally spaced values (k + 0.5) / n in (0, 1) that float32 can represent.
_NUMBERS = 2**23
# The same as in NNI and the paper: all options are nearly equal at the beginning.
_INITIAL_SPREAD = 1e-3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Draw:
    """The draws that resolvers use in one part of a step.

    Attributes:
        paths: The index of the drawn option for each label.
        noise: The noise to add to the logits of each label.
        temperature: The divisor of the noisy logits.
        gates: Whether to compute all options, with binary gates that let one of them through.
    """

    paths: Mapping[str, tf.Tensor] = dataclasses.field(default_factory=dict)
    noise: Mapping[str, tf.Tensor] = dataclasses.field(default_factory=dict)
    temperature: Any = 1.0
    gates: bool = False


# A context variable is local to its thread. Each replica of a `MirroredStrategy` has its own
# thread.
_current: contextvars.ContextVar[Draw | None] = contextvars.ContextVar("draw", default=None)


def current_draw() -> Draw | None:
    """Return the active draw; None outside of training."""
    return _current.get()


@contextlib.contextmanager
def active_draw(draw: Draw | None) -> Iterator[None]:
    """Make `draw` the active draw of this thread while models are traced."""
    token = _current.set(draw)
    try:
        yield
    finally:
        _current.reset(token)


def gumbel_noise(sizes: Sequence[int], *, seed: int, step: tf.Tensor, salt: int) -> list[tf.Tensor]:
    """Return Gumbel noise. The argmax of logits plus this noise is a sample of their softmax.

    Args:
        sizes: The number of logits of each label.
        seed: The seed of the run.
        step: The number of completed steps, int64.
        salt: A number that distinguishes the independent draws within a step.
    """
    key = tf.stack([tf.constant(seed, tf.int64), tf.cast(step, tf.int64)])
    key = tf.random.experimental.stateless_fold_in(key, tf.constant(salt, tf.int64))
    # Draw integers, which are the same with and without XLA.
    integers = tf.random.stateless_uniform(
        [sum(sizes)], key, minval=0, maxval=_NUMBERS, dtype=tf.int32, alg="philox"
    )
    uniform = (tf.cast(integers, tf.float32) + 0.5) / _NUMBERS
    return tf.split(-tf.math.log(-tf.math.log(uniform)), list(sizes))


def sample(logits: Sequence[tf.Tensor], noise: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Return an int32 index for each distribution, drawn with the given Gumbel noise."""
    return [
        tf.argmax(one + drawn, output_type=tf.int32)
        for one, drawn in zip(logits, noise, strict=True)
    ]


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

    def __call__(self, choice: choices.Choice, inputs: nests.Nest, training: bool | None) -> Any:
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
        draw = current_draw()
        if draw is None:
            return _one_hot_of_largest(self.logits()) if self._hard else self.probs()
        soft = tf.nn.softmax((self.logits() + draw.noise[label]) / draw.temperature)
        return _straight_through(soft, tf.argmax(soft)) if self._hard else soft


class PathResolver(MixtureResolver):
    """A resolver that computes one option: the drawn one in a step, else the preferred one."""

    def __call__(self, choice: choices.Choice, inputs: nests.Nest, training: bool | None) -> Any:
        draw = current_draw()
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

    def __call__(self, choice: choices.Choice, inputs: nests.Nest, training: bool | None) -> Any:
        draw = current_draw()
        if draw is None or not draw.gates:
            return super().__call__(choice, inputs, training)
        gates = _straight_through(self.probs(), draw.paths[choice.label])
        return _mix(choice.outputs(inputs), gates)


def _mix(outputs: Sequence[Any], weights: tf.Tensor) -> Any:
    shares = tf.unstack(weights)
    return tf.add_n(
        [tf.cast(share, out.dtype) * out for share, out in zip(shares, outputs, strict=True)]
    )


def _switch(choice: choices.Choice, inputs: nests.Nest, index: tf.Tensor) -> Any:
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
