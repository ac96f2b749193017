"""Stages of an input pipeline that process a batch of examples in one call.

Calling TensorFlow once per example costs several times as much as parsing a small example. A
decoder, parser or filter may therefore declare that it takes batches: the same nest, with an
additional leading axis on each tensor. This affects neither the examples nor their order.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

__all__ = ["FeatureDecoder", "is_for_batches", "takes_batches", "vectorize"]

_MARK = "takes_batches"


def takes_batches(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a function whose arguments and results have a leading axis of examples.

    ::

        @input_reader.takes_batches
        def parse(raw):
            return tf.math.log1p(raw["dense"]), raw["label"][:, 0]

    These batches need not be the batches that the model receives, and the last one may be shorter.
    The result for an example must therefore not depend on other examples.
    """

    @functools.wraps(fn)
    def marked(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    setattr(marked, _MARK, True)
    return marked


def is_for_batches(fn: Callable[..., Any] | None) -> bool:
    """Return whether a function is marked by `takes_batches`."""
    return getattr(fn, _MARK, False)


def vectorize(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Convert a function of single examples, such as a Model Garden decoder, to one of batches.

    The conversion uses `tf.vectorized_map`, which supports `tf.io.parse_single_example`, casts,
    reshapes and arithmetic, but not image decoding, for example. For an unsupported op, building
    the batches fails with a message that names the op.

    Args:
        fn: The function. All its results must be tensors whose shapes are the same for all
            examples.
    """

    @takes_batches
    @functools.wraps(fn)
    def vectorized(*batch: Any) -> Any:
        return tf.vectorized_map(lambda example: fn(*example), batch, fallback_to_while_loop=False)

    return vectorized


class FeatureDecoder:
    """A decoder of `tf.train.Example`s that parses a whole batch in one call.

    ::

        decoder = input_reader.FeatureDecoder({
            "label": tf.io.FixedLenFeature((), tf.int64),
            "dense": tf.io.FixedLenFeature((13,), tf.float32),
        })
        reader = input_reader.InputReader(params, decoder_fn=decoder.decode, parser_fn=parse)

    Args:
        features: The description of each feature by name, such as `tf.io.FixedLenFeature`, as in
            `tf.io.parse_example`.
    """

    def __init__(self, features: Mapping[str, Any]) -> None:
        self._features = dict(features)

    @takes_batches
    def decode(self, records: tf.Tensor) -> dict[str, Any]:
        """Decode a vector of serialized examples, or a single one, to features by name."""
        return tf.io.parse_example(records, self._features)
