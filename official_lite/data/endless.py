"""Training data without an end."""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

__all__ = ["endless"]


def endless(build_inputs: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, but the dataset that it returns is repeated.

    Repeating what repeats already changes nothing, so a task need not think of it.
    """

    @functools.wraps(build_inputs)
    def repeated(*args: Any, **kwargs: Any) -> Any:
        dataset = build_inputs(*args, **kwargs)
        return dataset.repeat() if isinstance(dataset, tf.data.Dataset) else dataset

    return repeated
