"""The stream of examples between the stages of an input pipeline, single or in chunks.

Calling TensorFlow once per example costs several times as much as parsing a small example. A
decoder, parser or filter may therefore declare that it takes batches: the same nest, with an
additional leading axis on each tensor. This affects neither the examples nor their order.

The streams of several sources can be mixed by weights.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from official_lite.common import errors, nests, suggestions
from official_lite.data import input_errors, position
from official_lite.modeling import hyperparams
from official_lite.modeling.hyperparams import base_config

__all__ = [
    "ExampleStream",
    "FeatureDecoder",
    "build_weighted_sampling_combine_fn",
    "create_combine_fn",
    "is_for_batches",
    "map_examples",
    "takes_batches",
    "vectorize",
]

CombineFn = Callable[[Mapping[str, tf.data.Dataset]], tf.data.Dataset]

_MARK = "takes_batches"


@dataclasses.dataclass(frozen=True)
class ExampleStream:
    """A dataset of examples that stay in chunks between consecutive batch functions.

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
        if is_for_batches(fn):
            return self._map_chunks(fn)
        return self.apply(lambda ds: map_examples(ds, fn, self.num_parallel_calls))

    def filter(self, fn: Callable[..., tf.Tensor] | None) -> "ExampleStream":
        """Keep the examples for which a function returns true; keep all if `fn` is None."""
        if fn is None:
            return self
        if not is_for_batches(fn):
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
        # Restore an infinite cardinality, which `rebatch` does not preserve.
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


def build_weighted_sampling_combine_fn(
    weights: Mapping[str, float], stop_on_empty_dataset: bool = True, seed: int | None = None
) -> CombineFn:
    """Return a function that draws each example from one of several datasets.

    Args:
        weights: The weight of each dataset, by name. The weights need not add up to 1.
        stop_on_empty_dataset: Whether to stop when the first dataset is exhausted, so that the
            proportions hold to the end. Otherwise the remaining datasets continue.
        seed: Seed of the draws. With None, a training run uses the seed of the run; any other
            reading draws different examples each time.

    Raises:
        ConfigValueError: A weight is negative, or no weight is positive. The returned function
            raises it if a dataset has no weight or a weight has no dataset.
    """
    if any(weight < 0 for weight in weights.values()) or not any(weights.values()):
        raise errors.ConfigValueError(
            "`weights` must be non-negative, and at least one must be positive; got "
            f"{dict(weights)}."
        )

    def combine_fn(datasets: Mapping[str, tf.data.Dataset]) -> tf.data.Dataset:
        _check_same_names(list(datasets), list(weights))
        begin = position.current()
        return tf.data.Dataset.sample_from_datasets(
            list(datasets.values()),
            [float(weights[name]) for name in datasets],
            seed=begin.seed if begin and seed is None else seed,
            stop_on_empty_dataset=stop_on_empty_dataset,
        )

    return combine_fn


def create_combine_fn(params: base_config.Config) -> CombineFn | None:
    """Build the `combine_fn` of a data config whose `input_path` and `weights` are `Config`s.

    Args:
        params: A `DataConfig` with the additional field `weights` and optionally
            `stop_on_empty_dataset`, which defaults to True.

    Returns:
        The function, or None if there are no weights.

    Raises:
        ConfigValueError: `input_path` or `weights` is not a `Config`, or their names differ.
    """
    weights = hyperparams.get_by_path(params, "weights")
    if not weights:
        return None
    if not all(isinstance(v, base_config.Config) for v in (params.input_path, weights)):
        raise errors.ConfigValueError(
            "Weighted sampling requires `input_path` and `weights` that are mappings with the same "
            f"names; got {params.input_path!r} and {weights!r}."
        )
    shares = weights.as_dict()
    _check_same_names(list(params.input_path.as_dict()), list(shares))
    stop = hyperparams.get_by_path(params, "stop_on_empty_dataset", True)
    return build_weighted_sampling_combine_fn(shares, stop_on_empty_dataset=stop, seed=params.seed)


def _check_same_names(sources: list[str], weights: list[str]) -> None:
    for kind, names, others in (("Input", sources, weights), ("Weight", weights, sources)):
        for name in names:
            if name not in others:
                wanted = "weight" if kind == "Input" else "input"
                raise errors.ConfigValueError(
                    f"{kind} {name!r} does not have a corresponding {wanted}. "
                    f"{suggestions.did_you_mean(name, others)}"
                )
