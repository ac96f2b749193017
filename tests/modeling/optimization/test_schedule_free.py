"""Schedule-free AdamW starts from the weights of the model, whenever they were loaded."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

from official_lite.modeling.optimization import optimizer_factory
from official_lite.modeling.optimization.adamw import ScheduleFreeAdamW
from tests import rounding


def _one_update(weight: keras.Variable, optimizer: Any) -> np.ndarray:
    optimizer.apply_gradients([(np.array([1.0, -1.0], np.float32), weight)])
    return weight.numpy()


@pytest.mark.parametrize("beta_1", [0.9, 0.3])
def test_update_is_adam_at_a_mixture_of_the_momentum_and_its_average(
    beta_1: float,
    three_updates: Callable[..., np.ndarray],
    three_updates_in_numpy: Callable[..., np.ndarray],
) -> None:
    def step(w: np.ndarray, g: np.ndarray, t: int, state: dict[str, Any]) -> np.ndarray:
        z, average = state.get("z", w), state.get("average", w)
        v = state["v"] = 0.999 * state.get("v", 0.0) + 0.001 * g * g
        rate = 0.1 * min(t / 2, 1.0)
        z = state["z"] = z - rate * g / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
        average = state["average"] = average + (z - average) / t
        return (1 - beta_1) * z + beta_1 * average

    optimizer = ScheduleFreeAdamW(0.1, beta_1=beta_1, warmup_steps=2)
    expected = three_updates_in_numpy(step)
    np.testing.assert_allclose(three_updates(optimizer), expected, rtol=1e-5, atol=5e-6)


def test_weights_loaded_after_the_build_are_trained_like_initial_weights(
    two_replicas: Any,
) -> None:
    expected = _one_update(keras.Variable([4.0, -1.0]), ScheduleFreeAdamW(0.1))
    weight = keras.Variable([0.0, 0.0])
    optimizer = ScheduleFreeAdamW(0.1)
    optimizer.build([weight])
    weight.assign([4.0, -1.0])
    optimizer_factory.follow_weights(optimizer)
    np.testing.assert_array_equal(_one_update(weight, optimizer), expected)


def test_two_replicas_train_like_one(train_on: Callable[..., Any]) -> None:
    one, two = (train_on(n, lambda: ScheduleFreeAdamW(0.1)) for n in (1, 2))
    rounding.assert_close(two.weights, one.weights, roundings=4)
