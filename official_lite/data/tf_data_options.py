"""Options of tf.data: its autotuner, and private thread pools."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import tensorflow as tf

from official_lite.common import errors, suggestions

__all__ = ["algorithm", "without_idle_autotuner", "with_private_threads"]

_T = TypeVar("_T")


def without_idle_autotuner(dataset: _T) -> _T:
    """Return the dataset with the tf.data autotuner disabled unless its options configure it.

    While the autotuner is enabled, releasing an iterator (before the next evaluation, or when the
    process ends) may take as long as the iterator has lived; see docs/decisions/0010.

    Args:
        dataset: The dataset. Anything that is not a `tf.data.Dataset` is returned unchanged.
    """
    if not isinstance(dataset, tf.data.Dataset):
        return dataset
    wanted = dataset.options().autotune
    settings = (wanted.enabled, wanted.cpu_budget, wanted.ram_budget, wanted.autotune_algorithm)
    if any(setting is not None for setting in settings):
        return dataset
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def algorithm(name: str) -> Any:
    """Return the member of `tf.data.experimental.AutotuneAlgorithm` with this name.

    Raises:
        ConfigValueError: There is no such algorithm.
    """
    algorithms = tf.data.experimental.AutotuneAlgorithm.__members__
    if name not in algorithms:
        raise errors.ConfigValueError(
            f"Unknown `autotune_algorithm` {name!r}. {suggestions.did_you_mean(name, algorithms)}"
        )
    return algorithms[name]


def with_private_threads(dataset_or_fn: _T, num_threads: int | None) -> _T:
    """Give a dataset, or the dataset that a function returns, a private thread pool.

    Args:
        dataset_or_fn: The dataset or function. Anything else is returned unchanged.
        num_threads: The number of threads. None leaves the pipeline in the thread pool that also
            runs the training steps.
    """
    if num_threads is None:
        return dataset_or_fn
    if isinstance(dataset_or_fn, tf.data.Dataset):
        options = tf.data.Options()
        options.threading.private_threadpool_size = num_threads
        return dataset_or_fn.with_options(options)
    if not callable(dataset_or_fn):
        return dataset_or_fn
    return cast("_T", _for_function(dataset_or_fn, num_threads))


def _for_function(
    build_inputs: Callable[..., tf.data.Dataset], num_threads: int
) -> Callable[..., Any]:
    @functools.wraps(build_inputs)
    def build(*args: Any, **kwargs: Any) -> Any:
        return with_private_threads(build_inputs(*args, **kwargs), num_threads)

    return build
