"""Training data in two parts: one trains the weights, from the other the architecture learns.

The two are `{"train": batch, "val": batch}` in one dataset. Each repeats by itself, so the shorter
one does not end the other's epoch; and both go on where an interrupted training has stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from official_lite.data import endless, position

__all__ = ["TRAIN", "VAL", "build_streams"]

TRAIN, VAL = "train", "val"


def build_streams(
    build_inputs: Callable[..., tf.data.Dataset],
    *,
    names: Sequence[str] = (TRAIN, VAL),
    arch_data: Any = None,
) -> Callable[..., tf.data.Dataset]:
    """A function such as a task's `build_inputs`, which gives both.

    Args:
        build_inputs: That of the task.
        names: Which of the two are wanted; one by itself comes as its batches are.
        arch_data: The config of the second part. Without it, the data are divided as if there were
            two workers for each one: the first reads the one half, the second the other. Whatever
            is right for several workers so is right here; data that are not divided among workers
            (`sharding: false`) are not divided here either.
    """
    build_inputs = endless.endless(build_inputs)

    def build(
        params: Any, input_context: tf.distribute.InputContext | None = None
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
    name: str, params: Any, arch_data: Any, input_context: tf.distribute.InputContext | None
) -> tuple[Any, tf.distribute.InputContext | None]:
    """Config and pipeline of a part."""
    if arch_data is not None:
        return (params if name == TRAIN else arch_data), input_context
    context = input_context or tf.distribute.InputContext()
    # Twice of everything, so that each replica's batch and each pipeline's replicas stay the same.
    twice = tf.distribute.InputContext(
        num_input_pipelines=2 * context.num_input_pipelines,
        input_pipeline_id=2 * context.input_pipeline_id + (name == VAL),
        num_replicas_in_sync=2 * context.num_replicas_in_sync,
    )
    return params.replace(global_batch_size=2 * params.global_batch_size), twice
