"""The autotuner of tf.data: off where nobody asks for it, so that datasets end when told to."""

from typing import Any

import tensorflow as tf

from official_lite.common import errors, suggestions

__all__ = ["algorithm", "without_idle_autotuner"]


def without_idle_autotuner(dataset: Any) -> Any:
    """The dataset with tf.data's autotuner switched off, unless its options say something of it.

    With it, whoever lets go of an iterator (the next evaluation, the end of the process) may have
    to wait as long as the iterator has lived; see docs/decisions/0010.

    Args:
      dataset: What is no `tf.data.Dataset` is returned as it is.
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
    """The member of `tf.data.experimental.AutotuneAlgorithm` with this name.

    Raises:
      ConfigValueError: There is none.
    """
    algorithms = tf.data.experimental.AutotuneAlgorithm.__members__
    if name not in algorithms:
        raise errors.ConfigValueError(
            f"There is no `autotune_algorithm` {name!r}. "
            f"{suggestions.did_you_mean(name, algorithms)}"
        )
    return algorithms[name]
