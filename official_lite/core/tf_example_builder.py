"""A builder that creates a `tf.train.Example` feature by feature."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import tensorflow as tf

__all__ = ["TfExampleBuilder"]

BytesValueType = bytes | str | Sequence[bytes] | Sequence[str]


class TfExampleBuilder:
    """Builder of a `tf.train.Example`.

    Every method that adds a feature returns the builder, so that calls can be chained::

        example = (
            TfExampleBuilder()
            .add_bytes_feature("name", "cat")
            .add_ints_feature("shape", [32, 32])
            .example
        )

    Adding a feature under an existing key replaces the earlier feature.
    """

    def __init__(self) -> None:
        self._example = tf.train.Example()

    @property
    def example(self) -> tf.train.Example:
        """A copy of the example built so far."""
        return _copy(self._example)

    @property
    def serialized_example(self) -> bytes:
        """The example built so far, serialized as bytes."""
        return self._example.SerializeToString()

    def set(self, example: tf.train.Example) -> Self:
        """Replace the builder's state with a copy of `example`."""
        self._example = _copy(example)
        return self

    def reset(self) -> Self:
        """Reset the builder to an empty example."""
        self._example = tf.train.Example()
        return self

    def add_feature_dict(self, feature_dict: Mapping[str, tf.train.Feature]) -> Self:
        """Add several `tf.train.Feature` objects, keyed by name."""
        for key, feature in feature_dict.items():
            self.add_feature(key, feature)
        return self

    def add_feature(self, key: str, feature: tf.train.Feature) -> Self:
        """Add a `tf.train.Feature`."""
        self._example.features.feature[key].CopyFrom(feature)
        return self

    def add_bytes_feature(self, key: str, value: BytesValueType) -> Self:
        """Add one or more byte strings; text is encoded as UTF-8."""
        values = [item.encode() if isinstance(item, str) else item for item in _as_list(value)]
        return self.add_feature(key, tf.train.Feature(bytes_list=tf.train.BytesList(value=values)))

    def add_ints_feature(self, key: str, value: int | Sequence[int]) -> Self:
        """Add one or more integers, stored as int64."""
        return self.add_feature(
            key, tf.train.Feature(int64_list=tf.train.Int64List(value=_as_list(value)))
        )

    def add_floats_feature(self, key: str, value: float | Sequence[float]) -> Self:
        """Add one or more numbers, stored as float32."""
        return self.add_feature(
            key, tf.train.Feature(float_list=tf.train.FloatList(value=_as_list(value)))
        )


def _copy(example: tf.train.Example) -> tf.train.Example:
    copied = tf.train.Example()
    copied.CopyFrom(example)
    return copied


def _as_list(value: object) -> Any:
    return value if isinstance(value, (list, tuple, np.ndarray)) else [value]
