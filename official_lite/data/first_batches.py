"""A training dataset that is limited to its first batches."""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from absl import logging

from official_lite.common import errors
from official_lite.data import position

__all__ = ["first_batches"]


def first_batches(
    build_inputs: Callable[..., Any], count: int, seed: int, *, repeat: bool
) -> Callable[..., Any]:
    """Wrap `build_inputs` so that its dataset holds only the first batches of the training.

    The seed determines these batches. A source that supports positions (see `position`) returns the
    same batches every time, in training and in evaluation.

    Args:
        build_inputs: Builds one input pipeline of training data.
        count: The number of global batches.
        seed: The seed of the run.
        repeat: Whether the batches repeat indefinitely, starting with the batch at which a resumed
            training run would continue. Otherwise they are read once.
    """

    @functools.wraps(build_inputs)
    def build(*args: Any, **kwargs: Any) -> tf.data.Dataset:
        asked = position.current()
        with position.begin_at(0, seed) as start:
            dataset = build_inputs(*args, **kwargs)
        if not isinstance(dataset, tf.data.Dataset):
            raise errors.ConfigTypeError(
                f"`build_inputs` returned a {type(dataset).__name__}, of which the first batches "
                "can't be taken; wanted a `tf.data.Dataset`."
            )
        context = kwargs.get("input_context")
        # Without the cache, random augmentations would change the batches on every pass.
        dataset = dataset.take(position.Position(count, seed).batches_of(context)).cache()
        if not repeat:
            _warn_if_others(start)
            return dataset
        if asked is None:
            return dataset.repeat()
        asked.is_kept |= start.is_kept
        return dataset.repeat().skip(asked.batches_of(context))

    return build


def _warn_if_others(start: position.Position) -> None:
    if not start.is_kept:
        logging.warning(
            "The first batches of the training data may be others each time that they are read, "
            "and others in an evaluation than in the training: `build_inputs` does not keep the "
            "position. See docs/resume.md."
        )
