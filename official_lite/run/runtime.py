"""What `RuntimeConfig` means: a strategy to run under, a seed, and a precision."""

import contextlib
import gc
from collections.abc import Iterator

import keras
import tensorflow as tf
from absl import logging

from official_lite.common import distribute_utils
from official_lite.core import config_definitions
from official_lite.modeling import performance

__all__ = ["build_strategy", "forget_last_run", "seed_and_precision", "set_intra_op_threads"]


def build_strategy(config: config_definitions.RuntimeConfig) -> tf.distribute.Strategy:
    """The distribution strategy, in the cluster that the config or `TF_CONFIG` describes.

    Raises:
        errors.ConfigValueError: If the devices or the cluster can't be as described.
    """
    set_intra_op_threads(config.intra_op_parallelism_threads)
    distribute_utils.configure_cluster(config.worker_hosts, config.task_index)
    return distribute_utils.get_distribution_strategy(
        distribution_strategy=config.distribution_strategy,
        all_reduce_alg=config.all_reduce_alg,
        num_gpus=config.num_gpus,
        num_packs=config.num_packs,
        devices=config.devices,
        tpu_address=config.tpu,
    )


def set_intra_op_threads(num_threads: int | None) -> None:
    """Sets how many CPU threads share an op; None leaves what is set.

    It has to come before anything is run. Later there is a warning, and no effect.
    """
    if num_threads is None:
        return
    try:
        tf.config.threading.set_intra_op_parallelism_threads(num_threads)
    except RuntimeError:
        # A matter of speed alone, and of a process that has run something before.
        logging.warning(
            "`runtime.intra_op_parallelism_threads` is %d, which has no effect: TensorFlow has "
            "started its threads already.",
            num_threads,
        )


@contextlib.contextmanager
def seed_and_precision(config: config_definitions.RuntimeConfig) -> Iterator[None]:
    """Sets all seeds, and inside it the precision that layers are created with.

    A precision of None leaves the one that is set.
    """
    keras.utils.set_random_seed(config.seed)
    with performance.mixed_precision_policy(config.mixed_precision_dtype):
        yield


def forget_last_run() -> None:
    """Makes names that Keras counts up begin anew, and frees what nobody has kept of the last run.

    Else a metric without a name of its own would be `mean_squared_error_1` in the second run.
    """
    policy = keras.mixed_precision.dtype_policy()
    keras.utils.clear_session()
    keras.mixed_precision.set_dtype_policy(policy)
    gc.collect()
