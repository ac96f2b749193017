"""Schedule-free AdamW starts from the weights of the model, whenever they were loaded."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from official_lite.modeling.optimization import optimizer_factory
from official_lite.modeling.optimization.schedule_free import ScheduleFreeAdamW


def _one_update(weight: keras.Variable, optimizer: Any) -> np.ndarray:
    optimizer.apply_gradients([(np.array([1.0, -1.0], np.float32), weight)])
    return weight.numpy()


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
    np.testing.assert_allclose(two.weights, one.weights, rtol=1e-6)
