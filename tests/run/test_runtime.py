import logging
import pathlib

import keras
import pytest
import tensorflow as tf

from official_lite.common import errors
from official_lite.core import config_definitions as cfg
from official_lite.run import runtime
from tests import commands

SHOW_THREADS = """
import tensorflow as tf
from official_lite.core import config_definitions as cfg
from official_lite.run import runtime
runtime.build_strategy(cfg.RuntimeConfig(intra_op_parallelism_threads=1))
tf.zeros([]) + 1.0
print("threads", tf.config.threading.get_intra_op_parallelism_threads())
"""


def test_runtime_config_selects_the_distribution_strategy_by_name() -> None:
    config = cfg.RuntimeConfig(distribution_strategy="mirrored", devices=["CPU:0", "CPU:1"])
    strategy = runtime.build_strategy(config)
    assert isinstance(strategy, tf.distribute.MirroredStrategy)
    assert strategy.num_replicas_in_sync == 2


@pytest.mark.parametrize(
    ("strategy", "num_gpus"), [("mirrored", 1), ("mirrored", 99), ("one_device", 1)]
)
def test_num_gpus_above_the_available_number_raises(strategy: str, num_gpus: int) -> None:
    config = cfg.RuntimeConfig(distribution_strategy=strategy, num_gpus=num_gpus)
    with pytest.raises(errors.ConfigValueError, match=f"num_gpus` is {num_gpus}"):
        runtime.build_strategy(config)


def test_intra_op_parallelism_threads_setting_takes_effect(tmp_path: pathlib.Path) -> None:
    script = tmp_path / "show_threads.py"
    script.write_text(SHOW_THREADS)
    assert "threads 1" in commands.run([script]).stdout


def test_thread_settings_after_tensorflow_has_started_warn_that_they_have_no_effect(
    caplog: pytest.LogCaptureFixture,
) -> None:
    # This initializes TensorFlow.
    assert float(tf.zeros([])) == 0
    caplog.set_level(logging.WARNING, logger="absl")
    runtime.build_strategy(cfg.RuntimeConfig(intra_op_parallelism_threads=7))
    assert "intra_op_parallelism_threads` is 7, which has no effect" in caplog.text


@pytest.mark.parametrize("field", ["intra_op_parallelism_threads", "dataset_num_private_threads"])
def test_non_positive_number_of_threads_raises(field: str) -> None:
    with pytest.raises(errors.ConfigValueError, match=f"{field}` is 0; expected a positive"):
        cfg.RuntimeConfig(**{field: 0}).validate()


def test_equal_seeds_produce_equal_random_numbers() -> None:
    def draw() -> float:
        with runtime.seed_and_precision(cfg.RuntimeConfig(seed=3)):
            return float(keras.random.normal(()))

    assert draw() == draw()


def test_dtype_policy_is_restored_when_the_precision_context_ends() -> None:
    with runtime.seed_and_precision(cfg.RuntimeConfig(mixed_precision_dtype="bfloat16")):
        assert keras.layers.Dense(1).compute_dtype == "bfloat16"
    assert keras.layers.Dense(1).compute_dtype == "float32"


def test_dtype_policy_is_unchanged_if_the_config_sets_no_mixed_precision() -> None:
    keras.mixed_precision.set_dtype_policy("mixed_bfloat16")
    with runtime.seed_and_precision(cfg.RuntimeConfig()):
        assert keras.layers.Dense(1).compute_dtype == "bfloat16"
