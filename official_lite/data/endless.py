"""A wrapper that makes training data repeat indefinitely."""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

__all__ = ["endless"]


def endless(build_inputs: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `build_inputs` so that the dataset it returns repeats indefinitely.

    Repeating a dataset that already repeats changes nothing, so a task may return either kind.
    """

    @functools.wraps(build_inputs)
    def repeated(*args: Any, **kwargs: Any) -> Any:
        dataset = build_inputs(*args, **kwargs)
        return dataset.repeat() if isinstance(dataset, tf.data.Dataset) else dataset

    return repeated
