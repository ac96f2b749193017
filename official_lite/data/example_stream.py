"""The stream of examples between the stages of an input pipeline, single or in chunks."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from official_lite.common import nests
from official_lite.data import input_errors, whole_batches

__all__ = ["ExampleStream", "map_examples"]


@dataclass(frozen=True)
class ExampleStream:
    """A dataset of examples that stay in chunks between consecutive functions of batches.

    Attributes:
        dataset: A dataset of examples, or of chunks of examples if `in_chunks` is set.
        chunk_size: The number of examples in the chunks that this class builds.
        num_parallel_calls: The number of single examples that are mapped in parallel.
        in_chunks: Whether the elements of `dataset` are chunks.
        in_batches: Whether these chunks are the batches that `batch` should return.
    """

    dataset: tf.data.Dataset
    chunk_size: int
    num_parallel_calls: int
    in_chunks: bool = False
    in_batches: bool = False

    def map(self, fn: Callable[..., Any] | None) -> "ExampleStream":
        """Apply a function to each example; return the stream unchanged if `fn` is None."""
        if fn is None:
            return self
        if whole_batches.is_for_batches(fn):
            return self._map_chunks(fn)
        return self.apply(lambda ds: map_examples(ds, fn, self.num_parallel_calls))

    def filter(self, fn: Callable[..., tf.Tensor] | None) -> "ExampleStream":
        """Keep the examples for which a function returns true; keep all if `fn` is None."""
        if fn is None:
            return self
        if not whole_batches.is_for_batches(fn):
            return self.apply(lambda dataset: _filter(dataset, fn))

        def keep(*batch: Any) -> Any:
            is_kept = fn(*batch)
            kept = nests.map_parts(lambda part: tf.boolean_mask(part, is_kept), batch)
            return kept if len(kept) > 1 else kept[0]

        return dataclasses.replace(self._map_chunks(keep), in_batches=False)

    def apply(self, fn: Callable[[tf.data.Dataset], tf.data.Dataset]) -> "ExampleStream":
        """Apply a transformation to the dataset of single examples."""
        return dataclasses.replace(self, dataset=fn(self.singly()), in_chunks=False)

    def singly(self) -> tf.data.Dataset:
        """Return the dataset of single examples."""
        return self.dataset.unbatch() if self.in_chunks else self.dataset

    def batch(self, batch_size: int, *, drop_remainder: bool) -> tf.data.Dataset:
        """Return the dataset of batches."""
        if not self.in_chunks:
            return self.dataset.batch(batch_size, drop_remainder=drop_remainder)
        if self.in_batches:
            return self.dataset
        batches = self.dataset.rebatch(batch_size, drop_remainder=drop_remainder)
        # `rebatch` does not preserve an infinite cardinality.
        if self.dataset.cardinality() == tf.data.INFINITE_CARDINALITY:
            endless = tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY)
            batches = batches.apply(endless)
        return batches

    def _map_chunks(self, fn: Callable[..., Any]) -> "ExampleStream":
        chunks = self.dataset if self.in_chunks else self.dataset.batch(self.chunk_size)
        mapped = map_examples(chunks, fn, tf.data.AUTOTUNE)
        return dataclasses.replace(self, dataset=mapped, in_chunks=True)


def map_examples(
    dataset: tf.data.Dataset, fn: Callable[..., Any], num_parallel_calls: int
) -> tf.data.Dataset:
    """Call `dataset.map`; an error about a missing key names the available keys."""
    with input_errors.naming_the_keys(fn, dataset.element_spec):
        return dataset.map(fn, num_parallel_calls=num_parallel_calls)


def _filter(dataset: tf.data.Dataset, fn: Callable[..., tf.Tensor]) -> tf.data.Dataset:
    with input_errors.naming_the_keys(fn, dataset.element_spec):
        return dataset.filter(fn)
