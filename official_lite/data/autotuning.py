"""Control of the tf.data autotuner, which is off by default so that datasets shut down promptly."""

from typing import Any

import tensorflow as tf

from official_lite.common import errors, suggestions

__all__ = ["algorithm", "without_idle_autotuner"]


def without_idle_autotuner(dataset: Any) -> Any:
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
            f"There is no `autotune_algorithm` {name!r}. "
            f"{suggestions.did_you_mean(name, algorithms)}"
        )
    return algorithms[name]
