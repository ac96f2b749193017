"""Stacks of several batches, for loops that run many steps in one call."""

import weakref
from collections.abc import Callable

import tensorflow as tf

__all__ = ["offer_stacks", "stack_batches"]

BuildStacks = Callable[[int], tf.data.Dataset]

# Maps a dataset to a function that builds stacks of its batches at a lower cost than `batch` does.
_OFFERS: weakref.WeakKeyDictionary[tf.data.Dataset, BuildStacks] = weakref.WeakKeyDictionary()

# Dataset types that return the batches of their input dataset unchanged.
_TRANSPARENT = ("_OptionsDataset", "_PrefetchDataset")


def stack_batches(dataset: tf.data.Dataset, count: int) -> tf.data.Dataset:
    """Collect the batches of a dataset in stacks, in order and without dropping any.

    For `arrays.from_arrays`, a stack is built by one gather of all its rows. This also holds if
    `prefetch`, `with_options`, or a `repeat` of a dataset that already repeats was applied to it.
    The batches of any other dataset, including a mapped `from_arrays` dataset, are built as usual
    and then copied once more.

    Args:
        dataset: A dataset of batches with any nest structure and static shapes.
        count: The number of batches in a stack.

    Returns:
        A dataset of the same nests of tensors with an additional leading axis of length `count`.
        The last stack may be shorter. The length is known statically if the data is infinite. One
        stack is prefetched.
    """
    source = _find_source(dataset)
    if source in _OFFERS:
        stacks = _OFFERS[source](count)
    else:
        stacks = source.batch(count, drop_remainder=_is_endless(dataset))
    return stacks.with_options(dataset.options()).prefetch(1)


def offer_stacks(dataset: tf.data.Dataset, build_stacks: BuildStacks) -> None:
    """Register a cheaper way for `stack_batches` to stack the batches of a source.

    Args:
        dataset: The source.
        build_stacks: Maps the number of batches in a stack to a dataset of stacks.
    """
    _OFFERS[dataset] = build_stacks


def _find_source(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Return the nearest upstream dataset that changes batches or has registered a stack builder.

    Skipping the datasets in between saves time: prefetching single batches, for example, costs more
    than building a small batch.
    """
    while dataset not in _OFFERS:
        inputs = dataset._inputs()
        if len(inputs) != 1 or not _is_transparent(dataset, inputs[0]):
            break
        (dataset,) = inputs
    return dataset


def _is_transparent(dataset: tf.data.Dataset, source: tf.data.Dataset) -> bool:
    name = type(dataset).__name__
    return name in _TRANSPARENT or (name == "_RepeatDataset" and _is_endless(source))


def _is_endless(dataset: tf.data.Dataset) -> bool:
    return bool(dataset.cardinality() == tf.data.INFINITE_CARDINALITY)
