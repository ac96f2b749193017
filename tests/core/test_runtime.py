import keras
import pytest
import tensorflow as tf

from official_lite.common import errors
from official_lite.core import config_definitions as cfg
from official_lite.core import runtime


def test_strategy_is_the_one_that_is_named() -> None:
    config = cfg.RuntimeConfig(distribution_strategy="mirrored", devices=["CPU:0", "CPU:1"])
    strategy = runtime.build_strategy(config)
    assert isinstance(strategy, tf.distribute.MirroredStrategy)
    assert strategy.num_replicas_in_sync == 2


@pytest.mark.parametrize(
    ("strategy", "num_gpus"), [("mirrored", 1), ("mirrored", 99), ("one_device", 1)]
)
def test_more_gpus_than_there_are_is_refused(strategy: str, num_gpus: int) -> None:
    config = cfg.RuntimeConfig(distribution_strategy=strategy, num_gpus=num_gpus)
    with pytest.raises(errors.ConfigValueError, match=f"num_gpus` is {num_gpus}"):
        runtime.build_strategy(config)


def test_seed_makes_random_numbers_equal() -> None:
    def draw() -> float:
        with runtime.seed_and_precision(cfg.RuntimeConfig(seed=3)):
            return float(keras.random.normal(()))

    assert draw() == draw()


def test_precision_is_given_back() -> None:
    with runtime.seed_and_precision(cfg.RuntimeConfig(mixed_precision_dtype="bfloat16")):
        assert keras.layers.Dense(1).compute_dtype == "bfloat16"
    assert keras.layers.Dense(1).compute_dtype == "float32"


def test_no_precision_keeps_the_one_that_is_set() -> None:
    keras.mixed_precision.set_dtype_policy("mixed_bfloat16")
    with runtime.seed_and_precision(cfg.RuntimeConfig()):
        assert keras.layers.Dense(1).compute_dtype == "bfloat16"
