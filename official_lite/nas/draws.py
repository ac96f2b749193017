"""What a step of a search has drawn: a path through the model, noise, a temperature.

All of it is made of the seed of the run and the step, so that all replicas draw the same and a
training that was interrupted draws what it would have drawn.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

__all__ = ["Draw", "current", "gumbel_noise", "in_force", "sample"]

# All that float32 can tell apart near 1, halves included.
_NUMBERS = 2**23


@dataclasses.dataclass(frozen=True, kw_only=True)
class Draw:
    """What resolvers are to compute in this part of a step.

    Attributes:
        paths: The index of an option for each label.
        noise: What is added to the logits of each label.
        temperature: By which they are divided.
        gates: Whether all options are computed, with gates that let one through.
    """

    paths: Mapping[str, tf.Tensor] = dataclasses.field(default_factory=dict)
    noise: Mapping[str, tf.Tensor] = dataclasses.field(default_factory=dict)
    temperature: Any = 1.0
    gates: bool = False


# Per thread, and each replica of a `MirroredStrategy` has a thread of its own.
_current: contextvars.ContextVar[Draw | None] = contextvars.ContextVar("draw", default=None)


def current() -> Draw | None:
    """What was drawn; None outside of training."""
    return _current.get()


@contextlib.contextmanager
def in_force(draw: Draw | None) -> Iterator[None]:
    """Within it, in this thread, models are traced with this draw."""
    token = _current.set(draw)
    try:
        yield
    finally:
        _current.reset(token)


def gumbel_noise(sizes: Sequence[int], *, seed: int, step: tf.Tensor, salt: int) -> list[tf.Tensor]:
    """Noise that makes the largest of logits a sample of their distribution.

    Args:
        sizes: How many logits there are of each label.
        seed: That of the run.
        step: The steps completed, int64.
        salt: What else is drawn in a step has another.
    """
    key = tf.stack([tf.constant(seed, tf.int64), tf.cast(step, tf.int64)])
    key = tf.random.experimental.stateless_fold_in(key, tf.constant(salt, tf.int64))
    # As integers, which are the same with XLA and without.
    integers = tf.random.stateless_uniform(
        [sum(sizes)], key, minval=0, maxval=_NUMBERS, dtype=tf.int32, alg="philox"
    )
    uniform = (tf.cast(integers, tf.float32) + 0.5) / _NUMBERS
    return tf.split(-tf.math.log(-tf.math.log(uniform)), list(sizes))


def sample(logits: Sequence[tf.Tensor], noise: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """An index of each distribution, int32."""
    return [
        tf.argmax(one + drawn, output_type=tf.int32)
        for one, drawn in zip(logits, noise, strict=True)
    ]
