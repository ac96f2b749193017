"""The per-replica share of a global batch."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from absl import logging

from official_lite.common import errors, nests, plugins, terminal, user_code

__all__ = [
    "per_replica_batch_size",
    "refuse_context",
    "warn_of_dropped_examples",
    "warn_of_large_batch",
    "watch_batch_size",
    "with_any_batch_size",
]


def per_replica_batch_size(
    batch_size: int, input_context: tf.distribute.InputContext | None = None
) -> int:
    """Return the batch size of one replica.

    Args:
        batch_size: The global batch size.
        input_context: Provides the number of replicas; None means one replica.

    Raises:
        ConfigValueError: `batch_size` is less than 1 or not divisible by the number of replicas.
    """
    if batch_size < 1:
        raise errors.ConfigValueError(f"`global_batch_size` is {batch_size}; expected 1 or more.")
    num_replicas = input_context.num_replicas_in_sync if input_context else 1
    if batch_size % num_replicas:
        raise errors.ConfigValueError(
            f"`global_batch_size` is {batch_size}, which can't be divided evenly among "
            f"{num_replicas} replicas (real ones or `trainer.virtual_replicas`). The next larger "
            f"valid value is {-(-batch_size // num_replicas) * num_replicas}."
        )
    return batch_size // num_replicas


def warn_of_large_batch(batch_size: int, num_examples: int) -> None:
    """Warn that a batch of the training data is larger than the data."""
    logging.warning(
        "A training batch should have %d examples, but there are only %d, so each batch contains "
        "all of them. Lower `global_batch_size` if this is not intended.",
        batch_size,
        num_examples,
    )


def warn_of_dropped_examples(batch_size: int, num_examples: int) -> None:
    """Warn if data that are read once do not fill the last batch, which is dropped."""
    if rest := num_examples % batch_size:
        terminal.warn_once(
            "%d of %d examples are never read, because they do not fill a batch of %d. To read "
            "them, set `drop_remainder` to false.",
            rest,
            num_examples,
            batch_size,
        )


def with_any_batch_size(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Return the same batches with a batch size that is statically unknown.

    If the batch size is static, tf.distribute drops the last batches when some replica gets none.
    """

    def relax(part: Any) -> Any:
        if not isinstance(part, tf.Tensor) or not part.shape.rank:
            return part
        return tf.compat.v1.placeholder_with_default(part, [None, *part.shape[1:]])

    @user_code.not_converted
    def relax_all(*batch: Any) -> Any:
        parts = [relax(part) for part in tf.nest.flatten(batch)]
        return tf.nest.pack_sequence_as(dataset.element_spec, parts)

    return dataset.map(relax_all)


def refuse_context(function: Callable[..., Any] | None, caller: str) -> None:
    """Refuse a function with the parameter `input_context` if its caller has no context to pass.

    Args:
        function: The function; None is accepted.
        caller: What calls the function, for the message.

    Raises:
        ConfigTypeError: The function has the parameter.
    """
    if function is None:
        return
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # A function that is written in C may have no signature.
        return
    if "input_context" in parameters:
        raise errors.ConfigTypeError(
            f"{plugins.described(function)} has the parameter `input_context`, which {caller} "
            "does not pass. Only `build_inputs` receives it. Remove the parameter, or bind it in "
            "`build_inputs` with `functools.partial`."
        )


def watch_batch_size(build_inputs: Callable[..., Any], num_replicas: int) -> Callable[..., Any]:
    """Wrap `build_inputs`: warn once if its first batch is not the share of one replica.

    Args:
        build_inputs: A function of a `DataConfig` and maybe of an `InputContext`.
        num_replicas: The number of replicas that share a global batch.
    """

    @functools.wraps(build_inputs)
    def build(params: Any, *args: Any, **kwargs: Any) -> Any:
        dataset = build_inputs(params, *args, **kwargs)
        # The workers of parameter server training trace this function in a graph, where the dataset
        # can't be inspected.
        if not isinstance(dataset, tf.data.Dataset) or not tf.executing_eagerly():
            return dataset
        batch_size = getattr(params, "global_batch_size", None) or 0
        if num_replicas == 1 or not batch_size or batch_size % num_replicas:
            return dataset
        watch = _Watch(build_inputs, batch_size, num_replicas)
        sizes = {x.shape[0] for x in _batched(dataset.element_spec, tf.TensorSpec)}
        if None in sizes:
            return dataset.enumerate().map(watch.look)
        watch.compare(np.array([*sizes]))
        return dataset

    return build


def _batched(batch: nests.Nest, kind: Any) -> list[Any]:
    """Return the dense tensors of a batch (or their specs) that have a batch dimension."""
    return [x for x in tf.nest.flatten(batch) if isinstance(x, kind) and x.shape.rank]


class _Watch:
    """A check that the first batch of a dataset has the size of one replica's share.

    If a dataset has only one batch, this batch may be smaller. The first batch is therefore checked
    only when the second batch is read.
    """

    def __init__(
        self, build_inputs: Callable[..., Any], batch_size: int, num_replicas: int
    ) -> None:
        self._build_inputs = build_inputs
        self._batch_size = batch_size
        self._num_replicas = num_replicas
        self._first: npt.NDArray[Any] = np.array([])

    @user_code.not_converted
    def look(self, index: tf.Tensor, batch: nests.Nest) -> nests.Nest:
        sizes = [tf.shape(x)[0] for x in _batched(batch, tf.Tensor)]
        if sizes:
            tf.cond(
                index < 2,
                lambda: tf.numpy_function(self._note, [index, tf.stack(sizes)], tf.bool),
                lambda: False,
            )
        return batch

    def compare(self, sizes: npt.NDArray[Any]) -> None:
        # If the tensors differ in length, as in batches of graphs with nodes and edges, the batch
        # size is unknown.
        wanted = self._batch_size // self._num_replicas
        if len(set(sizes.tolist())) != 1 or sizes[0] == wanted:
            return
        terminal.warn_once(
            "The first batch of %s has %d examples, but each of the %d replicas should get %d: "
            "`global_batch_size` (%d) divided by the number of replicas. Create batches of "
            "`input_context.get_per_replica_batch_size(params.global_batch_size)` examples.",
            plugins.described(self._build_inputs),
            sizes[0],
            self._num_replicas,
            wanted,
            self._batch_size,
        )

    def _note(self, index: np.int64, sizes: npt.NDArray[Any]) -> bool:
        if index == 0:
            self._first = sizes
        else:
            self.compare(self._first)
        return True
