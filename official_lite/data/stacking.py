"""Several batches in one element, for a loop that takes many steps in one call."""

import weakref
from collections.abc import Callable

import tensorflow as tf

from official_lite.common import errors

__all__ = ["offer_stacks", "stack_batches"]

BuildStacks = Callable[[int], tf.data.Dataset]

# How to build the stacks of a dataset at less cost than by collecting its batches.
_OFFERS: weakref.WeakKeyDictionary[tf.data.Dataset, BuildStacks] = weakref.WeakKeyDictionary()

# What changes no batch.
_TRANSPARENT = ("_OptionsDataset", "_PrefetchDataset")


def stack_batches(dataset: tf.data.Dataset, count: int) -> tf.data.Dataset:
    """Collects the batches of a dataset in stacks, in their order and without losing one.

    Of `arrays.from_arrays` a stack costs one gather of all its rows, also where `prefetch`,
    `with_options` or a `repeat` of what repeats already came after it. The batches of any other
    dataset, such as one of `from_arrays` that was mapped, are made as ever and copied once more.

    Args:
        dataset: Its elements are batches, of any nest and of static shapes.
        count: Batches in a stack.

    Returns:
        A dataset of the same nests of tensors with one more axis in front, which is `count` long,
        and may be shorter in the last stack. The length is known statically where the data has no
        end. One stack is made ahead.

    Raises:
        ConfigValueError: `count` is less than 1.
    """
    if count < 1:
        raise errors.ConfigValueError(f"`count` is {count}; wanted 1 or more batches in a stack.")
    source = _find_source(dataset)
    if source in _OFFERS:
        stacks = _OFFERS[source](count)
    else:
        stacks = source.batch(count, drop_remainder=_is_endless(dataset))
    return stacks.with_options(dataset.options()).prefetch(1)


def offer_stacks(dataset: tf.data.Dataset, build_stacks: BuildStacks) -> None:
    """Tells `stack_batches` of a better way to stack the batches of a source.

    Args:
        dataset: The source.
        build_stacks: Maps the number of batches in a stack to a dataset of stacks.
    """
    _OFFERS[dataset] = build_stacks


def _find_source(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """The first one below that makes other batches, or has an offer.

    A prefetch of single batches, above all, costs more than a small batch itself.
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
