"""Three updates of a kernel and a bias with gradients that grow and shrink."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

KERNEL = np.array([[1.0, -2.0], [3.0, 0.5]], np.float32)
BIAS = np.array([0.5, -0.25], np.float32)
KERNEL_GRADIENT = np.array([[0.3, -0.1], [0.2, 0.4]], np.float32)
BIAS_GRADIENT = np.array([1.0, -2.0], np.float32)


@pytest.fixture
def three_updates() -> Callable[[Any], np.ndarray]:
    """Applies them with the optimizer and returns kernel and bias, flat."""

    def update(optimizer: Any) -> np.ndarray:
        kernel, bias = keras.Variable(KERNEL, name="kernel"), keras.Variable(BIAS, name="bias")
        for step in range(1, 4):
            gradients = [KERNEL_GRADIENT * step, BIAS_GRADIENT / step]
            optimizer.apply_gradients(zip(gradients, [kernel, bias], strict=True))
        return np.concatenate([kernel.numpy().ravel(), bias.numpy()])

    return update


@pytest.fixture
def three_updates_in_numpy() -> Callable[..., np.ndarray]:
    """The same with `step_fn(weights, gradient, step, state) -> weights` for each variable."""

    def update(step_fn: Callable[..., np.ndarray]) -> np.ndarray:
        results = []
        for weights, gradient, factor in (
            (KERNEL, KERNEL_GRADIENT, lambda t: t),
            (BIAS, BIAS_GRADIENT, lambda t: 1 / t),
        ):
            state: dict[str, np.ndarray] = {}
            for step in range(1, 4):
                weights = step_fn(weights, gradient * factor(step), step, state)
            results.append(weights.ravel())
        return np.concatenate(results)

    return update
