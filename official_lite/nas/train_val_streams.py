"""Training data in two streams: one trains the weights, the other the architecture.

Each element of the dataset is `{"train": batch, "val": batch}`. Each stream repeats independently,
so the shorter one does not end the epoch of the other. A resumed training continues both streams
where it was interrupted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from official_lite.core import config_definitions
from official_lite.data import length, position

__all__ = ["TRAIN", "VAL", "build_streams"]

TRAIN, VAL = "train", "val"


def build_streams(
    build_inputs: Callable[..., tf.data.Dataset],
    *,
    names: Sequence[str] = (TRAIN, VAL),
    arch_data: config_definitions.DataConfig | None = None,
) -> Callable[..., tf.data.Dataset]:
    """Return a function like a task's `build_inputs` that builds a dataset of both streams.

    Args:
        build_inputs: The method of the task.
        names: The streams to build. With a single name, the dataset yields the batches of that
            stream directly.
        arch_data: The data config of the `val` stream. Without it, the training data are split as
            if each worker were two workers: the first reads one half, the second the other half.
            The split therefore follows the rules for several workers. Data that are not sharded
            among workers (`sharding: false`) are not split here either.
    """
    build_inputs = length.repeat(build_inputs)

    def build(
        params: config_definitions.DataConfig,
        input_context: tf.distribute.InputContext | None = None,
    ) -> tf.data.Dataset:
        begin = position.current()
        parts, are_kept = {}, []
        for name in names:
            part, context = _part(name, params, arch_data, input_context)
            if begin is None:
                parts[name] = build_inputs(part, context)
                continue
            with position.begin_at(begin.batch, begin.seed) as own:
                parts[name] = build_inputs(part, context)
            are_kept.append(own.is_kept)
        if begin is not None and all(are_kept):
            position.take()
        return tf.data.Dataset.zip(parts) if len(names) > 1 else parts[names[0]]

    return build


def _part(
    name: str,
    params: config_definitions.DataConfig,
    arch_data: config_definitions.DataConfig | None,
    input_context: tf.distribute.InputContext | None,
) -> tuple[Any, tf.distribute.InputContext | None]:
    """Return the data config and the input context of a stream."""
    if arch_data is not None:
        return (params if name == TRAIN else arch_data), input_context
    context = input_context or tf.distribute.InputContext()
    # Double everything, so the batch of each replica and the replicas per pipeline stay the same.
    twice = tf.distribute.InputContext(
        num_input_pipelines=2 * context.num_input_pipelines,
        input_pipeline_id=2 * context.input_pipeline_id + (name == VAL),
        num_replicas_in_sync=2 * context.num_replicas_in_sync,
    )
    return params.replace(global_batch_size=2 * params.global_batch_size), twice
