import numpy as np
import pytest
import tensorflow as tf

from official_lite import keras2


class Scaled(keras2.LossFunctionWrapper):
    def __init__(self, scale=2.0, reduction="auto", name="scaled"):
        super().__init__(_scaled, reduction=reduction, name=name, scale=scale)


def _scaled(y_true, y_pred, scale):
    return scale * tf.reduce_mean(tf.square(y_true - y_pred), axis=-1)


@pytest.mark.parametrize(("reduction", "expected"), [("auto", 5.0), ("none", [2.0, 8.0])])
def test_function_gets_its_arguments(reduction: str, expected: object) -> None:
    loss = Scaled(reduction=reduction)
    np.testing.assert_allclose(loss(tf.zeros([2, 3]), [[1.0] * 3, [2.0] * 3]), expected)


def test_config_gives_the_loss_back() -> None:
    config = Scaled(scale=3.0).get_config()
    assert Scaled.from_config({k: config[k] for k in ("scale", "reduction", "name")}).fn is _scaled
    assert (config["scale"], config["reduction"]) == (3.0, "sum_over_batch_size")
