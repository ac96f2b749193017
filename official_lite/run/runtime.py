"""Functions that apply a `RuntimeConfig`: strategy, threads, seed and precision."""

import contextlib
import gc
from collections.abc import Iterator

import keras
import tensorflow as tf
from absl import logging

from official_lite.common import distribute_utils
from official_lite.config import parsing
from official_lite.core import config_definitions
from official_lite.modeling import performance
from official_lite.run import xla_cache


def build_strategy(config: config_definitions.RuntimeConfig) -> tf.distribute.Strategy:
    """Build the distribution strategy, in the cluster that the config or `TF_CONFIG` describes.

    Raises:
        errors.ConfigValueError: If the devices or the cluster do not exist as described, or if an
            untrusted config names machines or a directory of compiled programs.
    """
    use_xla_cache(config)
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


def use_xla_cache(config: config_definitions.RuntimeConfig) -> None:
    """Keep compiled programs in `xla_cache_dir`; call it before TensorFlow looks for devices.

    Raises:
        errors.ConfigValueError: If an untrusted config names machines or a directory of compiled
            programs.
    """
    parsing.refuse_foreign_code(config)
    xla_cache.use_directory(config.xla_cache_dir)


def set_intra_op_threads(num_threads: int | None) -> None:
    """Set the number of CPU threads that share the work of one op; None keeps the current setting.

    Call this function before TensorFlow runs anything. A later call only logs a warning.
    """
    if num_threads is None:
        return
    try:
        tf.config.threading.set_intra_op_parallelism_threads(num_threads)
    except RuntimeError:
        # Only warn, because the number of threads affects only speed.
        logging.warning(
            "`runtime.intra_op_parallelism_threads` is %d, which has no effect, because "
            "TensorFlow has already started its threads. Start another process to apply it.",
            num_threads,
        )


@contextlib.contextmanager
def seed_and_precision(config: config_definitions.RuntimeConfig) -> Iterator[None]:
    """Set all seeds, and within the context also the precision of new layers.

    If the configured precision is None, the current precision is kept.
    """
    keras.utils.set_random_seed(config.seed)
    with performance.mixed_precision_policy(config.mixed_precision_dtype):
        yield


def forget_last_run() -> None:
    """Free the unused objects of the last run, and Keras' global state except the dtype policy."""
    policy = keras.mixed_precision.dtype_policy()
    keras.utils.clear_session()
    keras.mixed_precision.set_dtype_policy(policy)
    gc.collect()
