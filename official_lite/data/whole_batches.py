"""Stages of an input pipeline that are handed a batch where others are handed an example.

Calling TensorFlow for each example costs several times what parsing a small one does. So a decoder,
parser or filter may say that it takes batches: the same nest, each tensor with one more axis in
front. Which examples come, and in which order, does not depend on it.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

__all__ = ["FeatureDecoder", "is_for_batches", "takes_batches", "vectorize"]

_MARK = "takes_batches"


def takes_batches(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Marks a function whose arguments and results have an axis of examples in front.

    ::

        @input_reader.takes_batches
        def parse(raw):
            return tf.math.log1p(raw["dense"]), raw["label"][:, 0]

    The batches need not be those that the model gets, and the last may be shorter: what is done
    with an example must not depend on the others.
    """

    @functools.wraps(fn)
    def marked(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    setattr(marked, _MARK, True)
    return marked


def is_for_batches(fn: Callable[..., Any] | None) -> bool:
    """Whether a function is marked by `takes_batches`."""
    return getattr(fn, _MARK, False)


def vectorize(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The same for batches as a function for single examples, such as a decoder of Model Garden.

    `tf.vectorized_map` does that: it has a counterpart for `tf.io.parse_single_example`, casts,
    reshapes and arithmetic, but none for images being decoded, for example. The batches then can't
    be made, and the message names what is missing.

    Args:
        fn: All its results are tensors whose shapes are the same for all examples.
    """

    @takes_batches
    @functools.wraps(fn)
    def vectorized(*batch: Any) -> Any:
        return tf.vectorized_map(lambda example: fn(*example), batch, fallback_to_while_loop=False)

    return vectorized


class FeatureDecoder:
    """Decodes `tf.train.Example`s by the description of their features, a batch in one call.

    ::

        decoder = input_reader.FeatureDecoder({
            "label": tf.io.FixedLenFeature((), tf.int64),
            "dense": tf.io.FixedLenFeature((13,), tf.float32),
        })
        reader = input_reader.InputReader(params, decoder_fn=decoder.decode, parser_fn=parse)
    """

    def __init__(self, features: Mapping[str, Any]) -> None:
        """Takes the description that `tf.io.parse_example` takes.

        Args:
            features: `tf.io.FixedLenFeature` and the like, by name.
        """
        self._features = dict(features)

    @property
    def required_features(self) -> list[str]:
        """The names of those that no record may lack."""
        return [
            name
            for name, feature in self._features.items()
            if isinstance(feature, tf.io.FixedLenFeature) and feature.default_value is None
        ]

    @takes_batches
    def decode(self, records: tf.Tensor) -> dict[str, Any]:
        """The features by name, of a vector of serialized examples or of a single one."""
        return tf.io.parse_example(records, self._features)
