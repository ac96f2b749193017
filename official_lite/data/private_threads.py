"""Private thread pools for input pipelines."""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

__all__ = ["with_private_threads"]


def with_private_threads(dataset_or_fn: Any, num_threads: int | None) -> Any:
    """Give a dataset, or the dataset that a function returns, a private thread pool.

    Args:
      dataset_or_fn: The dataset or function. Anything else is returned unchanged.
      num_threads: The number of threads. None leaves the pipeline in the thread pool that also runs
        the training steps.
    """
    if num_threads is None:
        return dataset_or_fn
    if isinstance(dataset_or_fn, tf.data.Dataset):
        options = tf.data.Options()
        options.threading.private_threadpool_size = num_threads
        return dataset_or_fn.with_options(options)
    return _for_function(dataset_or_fn, num_threads) if callable(dataset_or_fn) else dataset_or_fn


def _for_function(
    build_inputs: Callable[..., tf.data.Dataset], num_threads: int
) -> Callable[..., Any]:
    @functools.wraps(build_inputs)
    def build(*args: Any, **kwargs: Any) -> Any:
        return with_private_threads(build_inputs(*args, **kwargs), num_threads)

    return build
