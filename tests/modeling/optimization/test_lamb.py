"""LAMB, against its formula and the Model Garden's numbers."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_lite.modeling.distributed_gradients import make_distributed
from official_lite.modeling.optimization.lamb import LAMB, trust_ratio
from tests import rounding
from tests.modeling.conftest import ADAM_ERROR, ROUNDINGS

# Arguments, and what the Model Garden's class of the same name makes of them.
RTOL = rounding.tolerance(roundings=ROUNDINGS)
ATOL = 3 * 0.1 * ADAM_ERROR

GOLDEN = [
    (
        {"exclude_from_weight_decay": ["bias"]},
        [0.5384735, -1.4598974, 2.3813181, 0.0777621, 0.2194666, 0.0305336],
    ),
    (
        {
            "exclude_from_weight_decay": ["bias"],
            "exclude_from_layer_adaptation": ["kernel"],
        },
        [0.6547648, -1.595958, 2.537149, 0.1841686, 0.3922016, -0.1422015],
    ),
]


@pytest.mark.parametrize(("arguments", "expected"), GOLDEN)
def test_numbers_are_those_of_the_model_garden(
    three_updates: Callable[..., np.ndarray], arguments: dict[str, Any], expected: list[float]
) -> None:
    weights = three_updates(LAMB(0.1, weight_decay_rate=0.2, **arguments))
    np.testing.assert_allclose(weights, expected, rtol=RTOL, atol=ATOL)


def test_norm_of_the_step_is_that_of_update_and_decay(
    three_updates: Callable[..., np.ndarray], three_updates_in_numpy: Callable[..., np.ndarray]
) -> None:
    def step(w: np.ndarray, g: np.ndarray, t: int, state: dict[str, Any]) -> np.ndarray:
        m = state["m"] = 0.9 * state.get("m", 0.0) + 0.1 * g
        v = state["v"] = 0.999 * state.get("v", 0.0) + 0.001 * g * g
        update = m / (1 - 0.9**t) / (np.sqrt(v / (1 - 0.999**t)) + 1e-6) + 0.2 * w
        return w - 0.1 * np.linalg.norm(w) / np.linalg.norm(update) * update

    expected = three_updates_in_numpy(step)
    actual = three_updates(LAMB(0.1, weight_decay_rate=0.2))
    np.testing.assert_allclose(actual, expected, rtol=RTOL, atol=ATOL)


def test_without_decay_it_is_keras_lamb(three_updates: Callable[..., np.ndarray]) -> None:
    expected = three_updates(keras.optimizers.Lamb(0.1))
    np.testing.assert_allclose(three_updates(LAMB(0.1)), expected, rtol=RTOL, atol=ATOL)


def test_two_replicas_update_like_one(train_on: Callable[..., Any]) -> None:
    def optimizer() -> Any:
        return make_distributed(
            LAMB(0.1, weight_decay_rate=0.2, exclude_from_weight_decay=["bias"])
        )

    one, two = (train_on(n, optimizer) for n in (1, 2))
    rounding.assert_close(two.weights, one.weights, roundings=ROUNDINGS)


def test_config_is_complete() -> None:
    optimizer = LAMB(
        0.25,
        weight_decay_rate=0.5,
        exclude_from_weight_decay=["a"],
        exclude_from_layer_adaptation=["b"],
        global_clipnorm=1.0,
    )
    restored = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert type(restored) is LAMB
    assert restored.get_config() == optimizer.get_config()
    assert restored.get_config()["exclude_from_layer_adaptation"] == ["b"]


@pytest.mark.parametrize(
    ("weights", "update", "expected"),
    [([3.0, 4.0], [0.0, 2.0], 2.5), ([0.0, 0.0], [1.0, 1.0], 1.0), ([3.0, 4.0], [0.0, 0.0], 1.0)],
)
def test_ratio_of_norms(weights: list[float], update: list[float], expected: float) -> None:
    assert float(trust_ratio(tf.constant(weights), tf.constant(update))) == expected


def test_coefficient_scales_it_unless_a_norm_is_zero() -> None:
    ones, zeros = tf.ones([2]), tf.zeros([2])
    assert float(trust_ratio(ones, ones, coefficient=0.25)) == 0.25
    assert float(trust_ratio(ones, zeros, coefficient=0.25)) == 1.0
