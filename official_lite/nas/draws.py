"""Random draws of a search step: paths through the model, noise and a temperature.

All draws are derived from the seed of the run and the step. Therefore all replicas draw the same
values, and a resumed training draws the same values as an uninterrupted one.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

__all__ = ["Draw", "current", "gumbel_noise", "active", "sample"]

# The largest number of equally spaced values (k + 0.5) / n in (0, 1) that float32 can represent.
_NUMBERS = 2**23


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


def current() -> Draw | None:
    """Return the active draw; None outside of training."""
    return _current.get()


@contextlib.contextmanager
def active(draw: Draw | None) -> Iterator[None]:
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
